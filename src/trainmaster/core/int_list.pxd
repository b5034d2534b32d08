cimport cython
from trainmaster.core.types cimport F1, I1, i64

cpdef I1 new_ints(Py_ssize_t n)
cpdef F1 new_floats(Py_ssize_t n)

@cython.final
cdef class IntList:
    cdef public I1 values
    cdef public Py_ssize_t n
    cpdef void append(self, i64 value) noexcept
    cpdef void clear(self) noexcept
    cpdef object reserve(self, Py_ssize_t capacity)
