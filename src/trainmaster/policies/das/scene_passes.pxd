cimport cython
from trainmaster.core.int_list cimport new_floats, new_ints
from trainmaster.core.types cimport B1, B2, F1, F2, I1, RB1, RF1, RF2, RI1, i64

cdef double NEVER_S

@cython.locals(free=I1, room=I1, best=Py_ssize_t, when=double, machine=Py_ssize_t, found=Py_ssize_t, k=Py_ssize_t,
               p=Py_ssize_t, t=Py_ssize_t)
cpdef tuple earliest(
    i64 need, bint whole_only, RF1 speed, RI1 free_now, RI1 type_of, RI1 part_machine, RI1 part_gpus, RF1 part_left_s)

@cython.locals(room=I1, t=Py_ssize_t, k=Py_ssize_t, row=Py_ssize_t)
cpdef void startable(
    RI1 need, RB1 whole_only, RF2 speed, RF1 counted_s, RI1 free, RI1 type_of, RB1 held, double until_s, i64 spare,
    B1 out) noexcept

@cython.locals(n_types=Py_ssize_t, position=Py_ssize_t, row=Py_ssize_t, gpus=i64, best=double, chosen=Py_ssize_t,
               now=Py_ssize_t, end=double, t=Py_ssize_t, k=Py_ssize_t, i=Py_ssize_t)
cpdef void open_types(
    RI1 order, RI1 need, RF1 time_s, RF2 speed, F2 free_at, RI1 count, double later, B2 out) noexcept

@cython.final
cdef class Machines:
    cdef RI1 gpus, free, type_of, rack_of, jobs_on
    cdef RF1 log_left
    cdef F1 free_of_type, all_of_type, free_of_rack, all_of_rack
    cdef double free_in_all
    @cython.locals(free=double, total=double)
    cdef void _sum(self) noexcept
    @cython.locals(t=Py_ssize_t, rack=Py_ssize_t, whole=double, over=i64)
    cpdef void pairs(self, RF1 speed, i64 need, double log_time, double log_need, double pressure, F2 out) noexcept
