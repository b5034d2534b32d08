cimport cython
from trainmaster.core.int_list cimport IntList, new_floats, new_ints
from trainmaster.core.types cimport F1, I1, i64

cdef i64 OTHER
cdef double NOT_MEASURED

@cython.final
cdef class Messages:
    cdef public Py_ssize_t n, capacity
    cdef public I1 kind, job, generation, seq, at_ms, code, extra
    cdef public F1 work, rate, loss
    cdef public IntList numbers
    cdef public list others
    cpdef void clear(self)
    cpdef Py_ssize_t add(self, i64 kind, i64 job, i64 generation, i64 seq) except -1
    cpdef object add_other(self, object message)
    @cython.locals(k=Py_ssize_t)
    cpdef Py_ssize_t put_numbers(self, I1 source, Py_ssize_t begin, Py_ssize_t count) except -1
    cdef object _grow(self)
