cimport cython
cimport libc.math as math
from trainmaster.core.int_list cimport new_floats
from trainmaster.core.types cimport B2, F1, I1, RF1, RI1, S1, S2, i64
from trainmaster.policies.dl2.features cimport JobFeatures, LogTimes, global_features
from trainmaster.policies.dl2.incremental cimport IncrementalNetwork
from trainmaster.policies.shared.node_capacity cimport Room
from trainmaster.policies.shared.speed_curves cimport SpeedCurves

cdef double LARGEST
cdef int USED_UP, STOPPED, NOT_FINITE, STOPPED_AT_ONCE

@cython.final
cdef class Granting:
    cdef Py_ssize_t n, chosen, action
    cdef public Py_ssize_t inferences
    cdef i64 stride
    cdef double least_share
    cdef RI1 row, gpu_type, workers_least, servers_least, workers_max, servers_max
    cdef I1 workers, servers, order
    cdef RF1 work_slots, age_slots, done, worker_cost, server_cost, total
    cdef SpeedCurves curves
    cdef JobFeatures features
    cdef LogTimes log_times
    cdef Room room
    cdef S2 rows, scores
    cdef S1 seen
    cdef B2 allowed
    @cython.locals(log_time=F1, step=double, i=Py_ssize_t)
    cdef object _begin(self)
    @cython.locals(row=Py_ssize_t)
    cdef void _resized(self, Py_ssize_t i) noexcept
    @cython.locals(void=float, outcome=int)
    cpdef int run(self, IncrementalNetwork network) noexcept
    @cython.locals(free=double)
    cpdef S1 see(self)
    @cython.locals(best=double, gain=double, top=double, others=double, score=float, absurd=bint, i=Py_ssize_t,
                   action=Py_ssize_t)
    cpdef int choose(self, S2 scores, float void) noexcept
    @cython.locals(i=Py_ssize_t, action=Py_ssize_t, row=Py_ssize_t, workers=i64, servers=i64)
    cpdef void grant(self) noexcept
    @cython.locals(row=Py_ssize_t, workers=i64, servers=i64)
    cdef bint _may(self, Py_ssize_t i, Py_ssize_t action) noexcept
    @cython.locals(some=bint, possible=bint)
    cpdef bint mark_legal(self) noexcept
