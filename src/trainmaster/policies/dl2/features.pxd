cimport cython
cimport libc.math as math
from trainmaster.core.int_list cimport new_floats
from trainmaster.core.types cimport F1, S1, S2, i64
from trainmaster.policies.shared.speed_curves cimport SpeedCurves

cdef double LEAST_GAIN

@cython.final
cdef class JobFeatures:
    cdef S2 rows
    cdef SpeedCurves curves
    cpdef void at_slot(
        self, Py_ssize_t i, double log_time, double age_slots, double done, double cost_worker, double cost_server,
        LogTimes log_times, Py_ssize_t place) noexcept
    @cython.locals(at_w=i64, at_p=i64, now=double, log_now=double, gain_w=double, gain_p=double, gain_b=double,
                   shown=i64, shown_max=i64)
    cpdef void at_size(
        self, Py_ssize_t i, double time_least, i64 w, i64 p, i64 w_max, i64 p_max, double cost_worker,
        double cost_server) noexcept

cdef double _gain(double before, double after) noexcept
cdef double _log_rate(double gain, double cost) noexcept

@cython.final
cdef class LogTimes:
    cdef public F1 shorter
    cdef public double mean, spread
    @cython.locals(mean=double, spread=double)
    cdef void _compute(self, F1 log_time, Py_ssize_t n) noexcept

cpdef void global_features(
    S1 out, double free_gpu, double free_cpu, i64 n_jobs, LogTimes log_times, double least_share) noexcept
