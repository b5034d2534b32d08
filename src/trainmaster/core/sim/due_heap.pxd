cimport cython
from trainmaster.core.types cimport I1, I2, i64


cdef i64 NEVER_MS
cdef Py_ssize_t AT_MS, ORDER, GPU_TYPE, ITEM, EPOCH

@cython.final
cdef class DueHeap:
    cdef public I2 rows
    cdef public Py_ssize_t n
    cdef public i64 added, at_ms, order, kind, item, epoch
    cpdef i64 next_ms(self) noexcept
    @cython.locals(k=Py_ssize_t, parent=Py_ssize_t)
    cpdef Py_ssize_t add(self, i64 at_ms, i64 kind, i64 item, i64 epoch) except -1
    cpdef void pop(self) noexcept
    @cython.locals(kept=Py_ssize_t, k=Py_ssize_t)
    cpdef void drop_stale(self, i64 kind, I1 epoch_of) noexcept
    @cython.locals(child=Py_ssize_t)
    cdef void _sink(self, Py_ssize_t k) noexcept
    cdef void _copy(self, Py_ssize_t source, Py_ssize_t target) noexcept
    cdef bint _before(self, Py_ssize_t a, Py_ssize_t b) noexcept
