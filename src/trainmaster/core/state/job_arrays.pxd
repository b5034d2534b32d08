cimport cython
from trainmaster.core.int_list cimport IntList
from trainmaster.core.types cimport B2, F1, F2, I1, I2, i64

cdef i64 RUNNING, STOPPING
cdef double MS_PER_S, INFINITE

cdef class JobArrays:
    cdef public object ints, floats, int_block, float_block, throughput, throughput_spread, allowed
    cdef public i64 version, capacity, n_types, width, n_jobs, n_arrivals
    cdef public IntList allocation, physical, order, unused, phase_log
    cdef public bint logs_phases
    cdef public F1 prices
    cdef public dict memo
    cdef I2 int_rows
    cdef F2 float_rows
    cdef I1 submit_ms, arrival, workers_min, workers_max, servers_min, servers_max, workers_ref, servers_ref
    cdef I1 devices_each, share_milli, worker_gpu_milli, worker_cpu_milli, worker_mem_mib, server_cpu_milli
    cdef I1 server_mem_mib, preemptible, deadline_ms, phase, generation, attempts, failures, preemptions, held_type
    cdef I1 workers, servers, nodes_held, first_start_ms, as_of_ms, productive_ms, waiting_since_ms, not_before_ms
    cdef I1 reason, blocker, after_stop, workers_ask, servers_ask, ask_gpu_milli, held_gpu_milli, max_attempts, hidden
    cdef I1 number, pending_kind, pending_seq, pending_sent_ms, pending_why, last_seq, place, node_set, elastic, touched, reasoned
    cdef F1 work_total, work_done, work_saved, rate, service_gpu_s, run_s, cost
    cdef F2 speed, speed_spread
    cdef B2 may_use
    @cython.locals(i=i64, extra=i64)
    cpdef object resize(self, i64 capacity)
    cpdef object grow(self)
    cpdef object widen(self, i64 width)
    cpdef double scaled_rate(self, i64 i, double base, i64 workers, i64 servers) except? -1.0
    cpdef object _bind(self)

@cython.locals(i=i64)
cpdef i64 take_index(JobArrays jobs) noexcept
cpdef void log_phase(JobArrays jobs, i64 i) noexcept
cpdef void free_index(JobArrays jobs, i64 i) noexcept
@cython.locals(i=i64, n=i64)
cpdef void close_gaps(JobArrays jobs) noexcept
@cython.locals(as_of=i64, held_s=double, service=double, gpu_type=i64)
cpdef void settle(JobArrays jobs, i64 i, i64 now_ms) noexcept
@cython.locals(done=double, since=i64)
cdef double _work_since(JobArrays jobs, i64 i, i64 as_of, i64 now_ms) noexcept
cpdef double work_now(JobArrays jobs, i64 i, i64 now_ms) noexcept
@cython.locals(attained=double)
cpdef double service_now(JobArrays jobs, i64 i, i64 now_ms) noexcept
@cython.locals(best=double, left=double)
cpdef double remaining_now(JobArrays jobs, i64 i, i64 now_ms) noexcept

cpdef object work_done_column(JobArrays jobs, object which, i64 now_ms)
cpdef object remaining_column(JobArrays jobs, object which, i64 now_ms)
cpdef object service_column(JobArrays jobs, object which, i64 now_ms)
cpdef void write_column(JobArrays jobs, I1 which, i64 now_ms, i64 what, F1 out) noexcept
