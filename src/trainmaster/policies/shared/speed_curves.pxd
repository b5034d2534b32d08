cimport cython
from trainmaster.core.types cimport F2

@cython.final
cdef class SpeedCurves:
    cdef public F2 coefficients
    cpdef double step_time(self, Py_ssize_t row, double workers, double servers) noexcept
