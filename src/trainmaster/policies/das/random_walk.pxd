cimport cython
cimport libc.math as math
from trainmaster.core.int_list cimport new_floats, new_ints
from trainmaster.core.types cimport F1, F2, I1, RF1, RF2, RI1, i64

ctypedef const long long[:, ::1] RI2

cdef double FAR, PHI_STEP
cdef Py_ssize_t STEPS, LEAST_POINTS

@cython.final
cdef class Walk:
    cdef RI2 rounded
    cdef RI1 rack_of
    cdef double width
    cdef RF2 frequency
    cdef RF1 phase
    cdef I1 node_of, first
    cdef F1 count
    cdef Py_ssize_t n
    cdef F2 psi, near
    cpdef object features(self, double decay)
    @cython.locals(found=Py_ssize_t, j=Py_ssize_t, k=Py_ssize_t, c=Py_ssize_t)
    cdef void _lump(self) noexcept
    @cython.locals(waves=Py_ssize_t, angle=double)
    cdef void _waves(self) noexcept
    @cython.locals(machines=Py_ssize_t, distance=double, apart=double, edge=double, near=double)
    cdef void _edges(self) noexcept
    @cython.locals(waves=Py_ssize_t, weight=double, length=double)
    cdef void _spread(self, double root) noexcept

@cython.locals(n=Py_ssize_t, low=double, high=double, mean_least=double, total=double, step=double, x=double,
               above=double, z=double, beyond=double, density=double)
cpdef double least(RF1 mean, RF1 deviation, F1 p) noexcept
