cimport cython
from trainmaster.core.int_list cimport new_ints
from trainmaster.core.types cimport F1, I1, I2, RF1, RI1, i64

cdef double NEVER_S

@cython.final
cdef class StreamWorld:
    cdef I1 state, held_type, free
    cdef RF1 submit, type_speed, node_speed
    cdef F1 rate, left, end
    cdef I2 held
    cdef RI1 gpus
    @cython.locals(when=double, passed=double)
    cpdef double next_event(self, double now, I1 touched) noexcept
    @cython.locals(use=double, slowest=double, parts=Py_ssize_t, speed=double)
    cpdef void update_rates(
        self, RI1 touched, RF1 sensitivity, RI1 kind, RF1 luck, double interference, double spread_kept) noexcept
    cdef bint _beside(self, Py_ssize_t j, RI1 touched) noexcept

@cython.final
cdef class ListSchedule:
    cdef RI1 need
    cdef RF1 run_h, type_speed, price
    cdef public double hours, dollars
    @cython.locals(n=Py_ssize_t, placed=I1, now=double, left=Py_ssize_t, j=Py_ssize_t, best=Py_ssize_t, took=double,
                   soonest=Py_ssize_t, i=Py_ssize_t, r=Py_ssize_t)
    cpdef void play(self, RI1 order, I1 free, I1 end_type, I1 end_gpus, F1 ends, Py_ssize_t live) noexcept
    @cython.locals(best=Py_ssize_t)
    cdef Py_ssize_t _fastest(self, i64 need, I1 free) noexcept
