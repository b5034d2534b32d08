cimport cython
from trainmaster.core.int_list cimport IntList, new_floats, new_ints
from trainmaster.core.state.packed_allocation cimport gang_length
from trainmaster.core.types cimport B2, F1, I1, I2, i64

cdef i64 HEAD, PART, NOBODY

@cython.final
cdef class Attempts:
    cdef public i64 n, capacity, width, orders, serials
    cdef public IntList free, packed
    cdef public I1 job, generation, seq, as_of_ms, productive_ms, finish_ms, n_alive
    cdef public I1 started, stopping, told_to_stop, serial, epoch, order
    cdef public F1 work, work_at_start, rate, luck
    cdef public B2 alive
    cdef public I2 on_node
    cdef public I1 n_on_node
    @cython.locals(a=i64)
    cpdef Py_ssize_t new_row(self) except -1
    cpdef void release(self, i64 a) noexcept
    @cython.locals(length=i64, begin=i64, n_parts=i64, k=i64)
    cpdef object set_gang(self, i64 a, IntList packed, i64 at)
    cpdef i64 n_parts(self, i64 a) noexcept
    cpdef i64 node(self, i64 a, i64 part) noexcept
    cpdef bint is_whole(self, i64 a) noexcept
    @cython.locals(part=i64)
    cpdef bint lives_on(self, i64 a, i64 node) noexcept
    @cython.locals(part=i64, first=i64)
    cpdef i64 first_node(self, i64 a) noexcept
    @cython.locals(part=i64, node=i64, n=i64, k=i64)
    cpdef object enter_nodes(self, i64 a)
    @cython.locals(part=i64, node=i64, n=i64, k=i64, later=i64)
    cpdef void leave_nodes(self, i64 a) noexcept
    @cython.locals(part=i64, node=i64, k=i64)
    cpdef object neighbours(self, i64 a, IntList out)
    @cython.locals(k=i64, later=i64)
    cpdef object insert(self, i64 a, IntList out)
    @cython.locals(kept=i64, k=i64)
    cdef void _drop(self, i64 a, IntList out) noexcept
    @cython.locals(packed=I1, n=i64, m=i64, own=i64, theirs=i64, same_node=bint, n_own=i64, n_theirs=i64, part=i64, k=i64)
    cpdef bint shares_device(self, i64 a, i64 other) noexcept
    cdef object _grow(self)
    cdef object _widen(self, i64 width)

@cython.locals(i=i64, j=i64)
cdef bint _have_common(I1 row, i64 a, i64 n_a, i64 b, i64 n_b) noexcept
