cimport cython
from trainmaster.core.types cimport B1, I1, i64

@cython.final
cdef class ClusterArrays:
    cdef public I1 type_of, gpus, rack_of
    cdef public B1 up
    cdef public i64 n_nodes, n_types, n_racks, changes
