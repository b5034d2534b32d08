cimport cython
from trainmaster.core.int_list cimport IntList, new_floats, new_ints
from trainmaster.core.types cimport F1, F2, I1, i64

@cython.final
cdef class NodeLists:
    cdef public I1 at, n, room
    cdef public IntList values
    cpdef object grow(self, i64 capacity)
    cpdef Py_ssize_t begin(self, i64 job, i64 count) except -1
    cpdef object nodes(self, i64 job)

@cython.final
cdef class SimJobs:
    cdef public i64 n, capacity, n_types
    cdef public I1 index, share_asked, workers_ref, servers_ref, curve, key, generation, seen_generation, seen_seq
    cdef public I1 attempt, recorded, record_generation, record_code, record_node, record_failed
    cdef public F1 work_total, sensitivity, saved, record_work
    cdef public F2 speed
    cdef public NodeLists launched, record_nodes
    @cython.locals(job=i64)
    cpdef Py_ssize_t add(self) except -1
    @cython.locals(k=i64)
    cpdef object describe(
        self, i64 job, double work_total, i64 share_asked, i64 workers_ref, i64 servers_ref, i64 curve, object speed)
    cpdef object reserve(self, i64 capacity)
