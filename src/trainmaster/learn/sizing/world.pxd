cimport cython
cimport libc.math as math
from trainmaster.core.int_list cimport new_floats, new_ints
from trainmaster.core.types cimport B1, B2, F1, F2, F3, I1, I2, S1, S2, i64
from trainmaster.policies.dl2.features cimport JobFeatures, LogTimes, global_features
from trainmaster.policies.dl2.speed_evidence cimport add_point, drawn_part, likely_best, move, settle, size_near
from trainmaster.policies.shared.speed_curves cimport SpeedCurves

ctypedef long long[:, :, ::1] I3

cdef i64 WORKER, SERVER, BOTH
cdef double PROGRESS_WEIGHT
cdef Py_ssize_t N_TERM

@cython.final
cdef class SlotWorld:
    cdef public bint floor
    cdef Py_ssize_t width, n_kinds
    cdef I1 submit_ms, finish_ms, kind, workers, servers, rows, n_rows, n_jobs, slot, slot_ms, workers_max, servers_max
    cdef F1 work, left, trained, factor, job_factor, error, gpus, cpus, server_cpus, free_gpu, free_cpu
    cdef B1 held, learns
    cdef I2 ran, measured
    cdef I3 sizes
    cdef F3 near, evidence, pools
    cdef F2 noise, kind_curve
    cdef S2 feature_rows
    cdef SpeedCurves curve, believed
    cdef JobFeatures features
    cdef list log_times
    cdef public double present, progress
    @cython.locals(first=Py_ssize_t, next_ms=i64)
    cpdef bint begin_slot(self, Py_ssize_t b) except -1
    @cython.locals(first=Py_ssize_t, now=i64, n=Py_ssize_t, next_ms=i64)
    cdef i64 _admit(self, Py_ssize_t b) noexcept
    @cython.locals(n=Py_ssize_t, first=Py_ssize_t, least_p=i64, cost_w=double, cost_p=double, slot_s=double, log_time=F1,
                   time=double, times=LogTimes, now=i64, age=double, done=double, j=Py_ssize_t)
    cdef object _open_slot(self, Py_ssize_t b)
    @cython.locals(n=Py_ssize_t, first=Py_ssize_t, room=i64, turn=I1, j=Py_ssize_t, k=Py_ssize_t)
    cdef object _least_sizes(self, Py_ssize_t b, i64 least_p)
    @cython.locals(first=Py_ssize_t, now=i64, time_s=F1, waited_s=F1, held=B1, j=Py_ssize_t, i=Py_ssize_t)
    cdef object _turns(self, Py_ssize_t b, Py_ssize_t n, i64 least_p)
    cdef double _server_cost(self, Py_ssize_t b) noexcept
    cdef void _resized(self, Py_ssize_t b, Py_ssize_t j) noexcept
    @cython.locals(w=i64, p=i64)
    cpdef bint legal(self, Py_ssize_t b, Py_ssize_t j, i64 action) noexcept
    @cython.locals(first=Py_ssize_t)
    cpdef bint any_legal(self, Py_ssize_t b) noexcept
    cpdef void grant(self, Py_ssize_t b, Py_ssize_t j, i64 action) noexcept
    @cython.locals(first=Py_ssize_t, now=i64, slot_ms=i64, present=double, progress=double, w=i64, p=i64, ran_ms=i64,
                   done=double, rate=double, left_ms=double, j=Py_ssize_t)
    cpdef void end_slot(self, Py_ssize_t b) noexcept
    @cython.locals(n=Py_ssize_t, least=double, free_gpu=double, free_cpu=double)
    cpdef void write_globals(self, Py_ssize_t b, S2 out, Py_ssize_t row) noexcept
    @cython.locals(n=Py_ssize_t, b=Py_ssize_t, j=Py_ssize_t, at=Py_ssize_t)
    cpdef void gather(self, I1 episodes, S2 rows, B2 allowed, I1 starts, S2 seen, I1 job) noexcept
    @cython.locals(b=Py_ssize_t)
    cpdef object apply_choices(
        self, I1 episodes, I1 row, I1 action, I1 job, B1 ended, F1 present, F1 progress, B1 over)
    @cython.locals(n=Py_ssize_t, first=Py_ssize_t, kinds=Py_ssize_t, changed=B1, j=Py_ssize_t, members=I1,
                   few=Py_ssize_t, kind=Py_ssize_t)
    cdef object _learn_speeds(self, Py_ssize_t b)
    @cython.locals(w=i64, p=i64, point=F2)
    cdef bint _progressed(self, Py_ssize_t b, Py_ssize_t j) except -1
    @cython.locals(own=F2, count=Py_ssize_t, drawn=Py_ssize_t, best_w=i64, best_p=i64, least_p=i64, w=i64, p=i64,
                   speed=double, k=Py_ssize_t)
    cdef object _profile(self, Py_ssize_t b, Py_ssize_t j)
