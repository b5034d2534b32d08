cimport cython
cimport libc.math as math
from trainmaster.core.arithmetic cimport floor_div
from trainmaster.core.sim.due_heap cimport DueHeap
from trainmaster.core.int_list cimport IntList, new_ints
from trainmaster.core.state.messages cimport Messages
from trainmaster.core.state.packed_allocation cimport gang_devices, gang_hosts, gang_servers, gang_workers
from trainmaster.core.sim.attempts cimport Attempts
from trainmaster.core.sim.jobs cimport NodeLists, SimJobs
from trainmaster.core.types cimport B1, F1, I1, i64

cdef i64 DUE_FINISH, EXITED, HEAD, HEAP_MIN, GPU_TYPE, NEVER_MS, PART, PROGRESSED, SHARE, STOPPED
cdef double FURTHEST_MS, MS_PER_S

cdef class SimWorld:
    cdef public i64 now_ms, seen_up_to, serials
    cdef public i64 restart_cost_ms, resize_cost_ms, launch_ms, stop_ms, exit_ms, first_report_ms, report_period_ms
    cdef public i64 collapse_ms, n_unpowered, n_unlinked, heap_max
    cdef public double lost_gpu_s, interference, noise, checkpoint_period_s
    cdef public bint node_variation, unreliable, may_fail, slow_stops, tells_loss
    cdef public SimJobs jobs
    cdef public Attempts attempts
    cdef public DueHeap heap
    cdef public Messages reports
    cdef public IntList zombies
    cdef public I1 job_at, off_since, on_since
    cdef public F1 gpus_of_node, node_speed
    cdef public B1 powered, linked
    cdef public dict factors
    cdef public object hooks
    cdef IntList _changed, _beside, _left, _there

    cdef Py_ssize_t _new_report(self, i64 kind, i64 job, i64 generation, double work) except -1
    cdef void _sent(self, Py_ssize_t row) except *
    @cython.locals(node=i64)
    cdef bint _is_heard(self, i64 a) noexcept
    @cython.locals(k=Py_ssize_t, job=i64, work=double)
    cdef void _report_progress(self, i64 a) except *
    @cython.locals(k=Py_ssize_t)
    cdef void _report_stopped(self, i64 job, i64 generation, double work) except *
    @cython.locals(i=i64)
    cdef void _add_silent(self, Py_ssize_t k, NodeLists lists, i64 job) except *
    cdef bint _is_reachable(self, i64 node) noexcept
    @cython.locals(part=i64)
    cdef bint _any_silent(self, i64 a) noexcept
    @cython.locals(k=Py_ssize_t)
    cdef void _report_exit(self, i64 job, i64 generation, i64 code, double work) except *
    cdef void _record(self, i64 job, i64 generation, i64 code, IntList packed, i64 at) except *
    @cython.locals(recorded=i64)
    cdef bint _knows(self, i64 job, i64 node) noexcept
    @cython.locals(k=i64)
    cdef bint _has_record(self, i64 job) noexcept
    @cython.locals(k=i64, node=i64)
    cdef bint _record_is_reachable(self, i64 job) noexcept
    @cython.locals(part=i64)
    cdef bint _is_productive(self, i64 a) noexcept
    @cython.locals(work=double, total=double)
    cdef void _settle(self, i64 a) noexcept
    @cython.locals(
        job=i64, at=i64, kind=i64, spread=bint, rate=double, workers=i64, servers=i64, k=i64, other=i64, part=i64,
        slowest=double)
    cdef double _rate(self, i64 a) except *
    cdef double _known_speedup(self, i64 job, i64 workers, i64 servers) except *
    @cython.locals(most=double, used=double, part=i64, node=i64, k=i64, other=i64, share_milli=i64)
    cdef double _others_use(self, i64 a) noexcept
    @cython.locals(part=i64)
    cdef i64 _devices_on(self, i64 a, i64 node) noexcept
    @cython.locals(kept=i64, k=i64)
    cdef void _companions(self, i64 a, IntList out) except *
    @cython.locals(k=i64)
    cdef void _rates_changed(self) except *
    @cython.locals(k=i64)
    cdef void _sharing_changed(self, i64 a) except *
    cdef void _rate_changed(self, i64 a) except *
    @cython.locals(total=double, rate=double, left_ms=double, whole_ms=i64)
    cdef void _plan_finish(self, i64 a) except *
    @cython.locals(work=double, rate=double, kept=double, each=double, begin=double)
    cdef void _save_at_failure(self, i64 a) noexcept
    cdef double _gpus(self, IntList packed, i64 at) noexcept
    @cython.locals(job=i64, part=i64, k=i64)
    cdef void _end(self, i64 a, i64 code) except *

@cython.locals(begin=i64, part=i64)
cpdef void note_nodes(NodeLists lists, i64 job, IntList packed, i64 at) except *
