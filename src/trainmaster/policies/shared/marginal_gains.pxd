cimport cython
from trainmaster.core.types cimport B2, F1, F2, RF1, RF2, RI1, i64
from trainmaster.policies.shared.node_capacity cimport JobSizes, Room
from trainmaster.policies.shared.speed_curves cimport SpeedCurves

cdef double INFINITE_S

@cython.final
cdef class MarginalGains:
    cdef Room room
    cdef JobSizes sizes
    cdef SpeedCurves curves
    cdef RF1 remaining
    cdef RI1 table
    cdef RF2 tables, scale
    cdef F2 gain
    cdef B2 out_of_room
    @cython.locals(speed=double, step=double)
    cpdef double time_left(self, Py_ssize_t row, i64 workers, i64 servers, Py_ssize_t gpu_type) noexcept
    @cython.locals(best=Py_ssize_t, best_gain=double, role=i64, row=Py_ssize_t, i=Py_ssize_t, k=Py_ssize_t)
    cpdef void grow(self, RI1 rows, RF1 worker_cost, RF1 server_cost) noexcept
    @cython.locals(workers=i64, servers=i64, gpu_type=Py_ssize_t, now=double)
    cdef void _judge(self, Py_ssize_t i, Py_ssize_t row, RF1 worker_cost, RF1 server_cost) noexcept
