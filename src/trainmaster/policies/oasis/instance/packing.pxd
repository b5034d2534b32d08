cimport cython
from trainmaster.core.types cimport F2, I1, I2, i64

@cython.final
cdef class Packing:
    cdef F2 free, dust, demand, total, least
    cdef I2 hosts
    cdef I1 role, twin, at
    cdef Py_ssize_t servers, resources
    cdef public i64 steps, steps_max
    cpdef int search(self, F2 demand, I1 role, I1 twin, I1 at) noexcept
    cpdef void bound_by(self, F2 total, F2 least) noexcept
    @cython.locals(s=Py_ssize_t, r=Py_ssize_t, first=Py_ssize_t, result=int)
    cdef int _place(self, Py_ssize_t k) noexcept
    @cython.locals(r=Py_ssize_t)
    cdef bint _fits(self, Py_ssize_t s, Py_ssize_t k) noexcept
    @cython.locals(other=Py_ssize_t, r=Py_ssize_t, same=bint)
    cdef bint _seen(self, Py_ssize_t first, Py_ssize_t s) noexcept
    @cython.locals(r=Py_ssize_t, s=Py_ssize_t, q=Py_ssize_t, n=Py_ssize_t, usable=bint, room=double, workers=double, ps=double, both=double)
    cdef bint _hopeless(self, Py_ssize_t k) noexcept
