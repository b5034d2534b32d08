cimport cython
cimport libc.math as math
from trainmaster.core.int_list cimport IntList, new_floats, new_ints
from trainmaster.core.sorting cimport sort_by
from trainmaster.core.types cimport B1, F1, F2, I1, I2, i64

ctypedef double[:, :, ::1] F3

cdef double DUST, STAY_FACTOR, INFINITY

@cython.final
cdef class Gang:
    cdef public i64 workers, servers
    cdef public bint one_node

@cython.final
cdef class GangCosts:
    cdef F3 used
    cdef F2 capacity, ln_low, ln_spread
    cdef F1 worker, ps, left
    cdef B1 hosts, ps_hosts
    cdef public Py_ssize_t time_slots, nodes, resources
    cdef Py_ssize_t sorted_slot
    cdef public F2 worker_cost, ps_cost
    cdef public I2 worker_room, ps_room
    cdef public I1 on_workers, on_ps
    cdef public IntList by_worker_cost, by_ps_cost
    cdef IntList spare
    @cython.locals(t=Py_ssize_t, s=Py_ssize_t)
    cpdef object price(self, F2 ln_low, F2 ln_spread, i64 most_workers, i64 most_ps)
    @cython.locals(s=Py_ssize_t, r=Py_ssize_t)
    cpdef bint same_as_before(self, Py_ssize_t t) noexcept
    @cython.locals(r=Py_ssize_t, price=double, whole=double)
    cdef double _unit_cost(self, Py_ssize_t t, Py_ssize_t s, F1 demand) noexcept
    @cython.locals(t=Py_ssize_t, k=Py_ssize_t, same=bint, gang=Gang)
    cpdef object costs(self, list gangs, F2 out, bint both_orders)
    @cython.locals(s=Py_ssize_t, total=double)
    cpdef double place(self, Py_ssize_t t, Gang gang, bint workers_first) noexcept
    cpdef void sort(self, Py_ssize_t t) noexcept
    @cython.locals(s=Py_ssize_t, best=Py_ssize_t)
    cdef double _place_on_one(self, Py_ssize_t t, i64 workers) noexcept
    @cython.locals(i=Py_ssize_t, s=Py_ssize_t, total=double, left=i64, count=i64)
    cdef double _place_workers(self, Py_ssize_t t, i64 workers) noexcept
    @cython.locals(i=Py_ssize_t, s=Py_ssize_t, total=double, left=i64, count=i64)
    cdef double _place_ps(self, Py_ssize_t t, i64 servers) noexcept
    @cython.locals(r=Py_ssize_t)
    cpdef i64 beside(self, Py_ssize_t t, Py_ssize_t s, F1 demand, F1 other, i64 others, i64 most) noexcept
    @cython.locals(t=Py_ssize_t, s=Py_ssize_t, staying=double, gang=Gang, last_workers=I1, last_ps=I1)
    cpdef object place_path(self, list gangs, I1 chosen, I2 path_workers, I2 path_ps, tuple held, F1 cost)
    @cython.locals(s=Py_ssize_t, r=Py_ssize_t, all_workers=i64, all_ps=i64, used_nodes=i64, need=double)
    cdef bint _may_stay(self, Py_ssize_t t, Gang gang, I1 workers, I1 ps) noexcept

@cython.locals(s=Py_ssize_t)
cdef void _sort_row(IntList order, F2 cost, Py_ssize_t t, IntList spare) noexcept

@cython.locals(r=Py_ssize_t, fits=i64, room=double)
cpdef i64 fits_into(F1 free, F2 capacity, Py_ssize_t s, F1 demand, i64 most) noexcept
