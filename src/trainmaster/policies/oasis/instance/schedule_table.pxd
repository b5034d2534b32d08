cimport cython
from trainmaster.core.types cimport F1, F2, I1, I2, i64

cdef double INFINITY

@cython.final
cdef class ScheduleTable:
    cdef F2 cost, table
    cdef I2 gain
    cdef I1 reach
    cdef public F1 finish
    cdef public Py_ssize_t units, rows
    cdef Py_ssize_t time_slots, gangs
    cdef bint part_paid
    @cython.locals(best=double, step=double, value=double, reach=Py_ssize_t, grains=Py_ssize_t, t=Py_ssize_t, k=Py_ssize_t, u=Py_ssize_t)
    cpdef void fill(self, F1 values, bint stop_early) noexcept
    @cython.locals(most=i64, reach=Py_ssize_t, k=Py_ssize_t, u=Py_ssize_t)
    cdef Py_ssize_t _next_row(self, Py_ssize_t t) noexcept
    cdef double _last(self, double step, Py_ssize_t grains, Py_ssize_t u) noexcept
    @cython.locals(step=double, left=Py_ssize_t, grains=Py_ssize_t, t=Py_ssize_t, k=Py_ssize_t, u=Py_ssize_t, back=Py_ssize_t)
    cpdef void trace(self, Py_ssize_t end, I1 chosen) noexcept
