cimport cython
from trainmaster.core.int_list cimport new_ints
from trainmaster.core.types cimport I1, I2, i64

cdef i64 MOST_TOLD_APART

@cython.final
cdef class NodeIndex:
    cdef I1 type_of
    cdef public i64 n_types, n_nodes, n_leaves
    cdef public I2 tree
    cdef public I1 whole_of_type, milli_of_type
    @cython.locals(kind=i64, at=i64, device=i64)
    cdef void _fill(self, I2 milli, I1 whole) noexcept
    @cython.locals(kind=i64, at=i64, below=i64)
    cpdef void change(self, i64 node, i64 whole, i64 more_whole, i64 more_milli) noexcept
    @cython.locals(at=i64)
    cpdef i64 next_node(self, i64 kind, i64 classes, i64 begin) noexcept
    cpdef i64 classes(self, i64 kind) noexcept

@cython.locals(one=i64)
cpdef i64 class_of(i64 whole) noexcept
