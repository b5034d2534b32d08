cimport cython
from trainmaster.core.state.cluster_arrays cimport ClusterArrays
from trainmaster.core.state.free_resources cimport FreeResources, any_device_left, fits_gang, give_gang, take_gang
from trainmaster.core.int_list cimport IntList, new_floats
from trainmaster.core.state.job_arrays cimport JobArrays, free_index, log_phase, settle
from trainmaster.core.state.messages cimport Messages
from trainmaster.core.state.packed_allocation cimport (
    gang_devices, gang_hosts, gang_length, gang_servers, gang_workers, same_place, share_a_device, union_gang,
)
from trainmaster.core.types cimport F1, I1, i64

cdef i64 CANCEL, CANCELLED, CAPACITY, FINISH, FINISHED, GIVE_UP, HAS_RESIZED, HAS_STARTED, HEAD, GPU_TYPE, LAUNCH_SENT
cdef i64 LAUNCHING, LOST, MOVE, MOVED, N_PARTS, NEVER_MS, PART, PAUSE, PAUSED, PENDING, PREEMPTED, REJECTED, REQUEUE, RESERVE
cdef i64 RESERVED, RESIZE_SENT, RESIZING, SHARE, STOP_SENT, STOPPING, UNRESERVE, LAUNCH, RESIZE, STOP
cdef i64 N_KEPT, MAX_DOUBLINGS, N_TRIGGERS, N_OVER_INTS, N_OVER_FLOATS

cdef class EngineCore:
    cdef public JobArrays columns
    cdef public ClusterArrays nodes
    cdef public FreeResources planned, physical
    cdef public I1 next_phase
    cdef public i64 resend_ms, backoff_ms, now_ms, seq, wake_at_ms, next_resend_ms, next_backoff_ms
    cdef public i64 decisions, round_ms, round_begun_ms, n_over, n_waiting, n_moves
    cdef public bint changed, gate_changed, has_quotas, named, asks_after_start, own_rounds
    cdef public Messages commands
    cdef public IntList over_ints, reserved, both, pending, spare, moves
    cdef public F1 over_floats
    cdef public dict doubts, ended_on
    cdef public set short
    cpdef object label(self, i64 i)
    cpdef object job_ended(self, i64 i, i64 phase)
    cpdef i64 lease_end_ms(self) except *

@cython.locals(jobs=JobArrays, phase=i64)
cpdef int move(EngineCore e, i64 i, i64 trigger) except -1
@cython.locals(values=I1, at=i64)
cdef void _remember(EngineCore e, i64 i, i64 trigger) noexcept
@cython.locals(jobs=JobArrays)
cdef void _bury(EngineCore e, i64 i, i64 phase) except *
@cython.locals(jobs=JobArrays, ints=IntList, floats=F1, more=F1, k=i64, at=i64)
cdef void _note_end(EngineCore e, i64 i, i64 phase) except *
@cython.locals(n=i64)
cpdef void unreserve(EngineCore e, i64 i) noexcept
@cython.locals(length=i64)
cpdef void write_allocation(JobArrays jobs, i64 i, IntList packed, i64 at) except *
cpdef void set_allocation(EngineCore e, i64 i, IntList packed, i64 at) except *
@cython.locals(jobs=JobArrays)
cpdef void drop_allocation(EngineCore e, i64 i) except *
@cython.locals(jobs=JobArrays, length=i64)
cpdef void set_physical(EngineCore e, i64 i, IntList packed, i64 at) except *
@cython.locals(jobs=JobArrays)
cpdef void release_physical(EngineCore e, i64 i) except *
@cython.locals(jobs=JobArrays)
cpdef bint is_current(EngineCore e, i64 i, i64 generation) noexcept
@cython.locals(phase=i64)
cpdef i64 wanted(EngineCore e, i64 i) noexcept
@cython.locals(jobs=JobArrays, after=i64)
cpdef void gone(EngineCore e, i64 i, double work_saved) except *
@cython.locals(packed=IntList, at=i64)
cdef bint _all_up(EngineCore e, i64 i) noexcept
@cython.locals(jobs=JobArrays, after=i64)
cpdef void failed(EngineCore e, i64 i, double work_saved) except *
@cython.locals(jobs=JobArrays)
cpdef void retry_later(EngineCore e, i64 i, double work_saved, i64 pause_ms) except *
@cython.locals(jobs=JobArrays, order=IntList, i=i64)
cpdef void end_backoffs(EngineCore e) noexcept
@cython.locals(next_ms=i64)
cpdef bint decision_is_due(EngineCore e) noexcept
@cython.locals(wake_ms=i64)
cpdef i64 next_wake_ms(EngineCore e) except *
cpdef double or_saved(EngineCore e, i64 i, double work) noexcept
@cython.locals(jobs=JobArrays, at=i64, kind=i64, base=double)
cpdef void set_rate(EngineCore e, i64 i) except *
@cython.locals(jobs=JobArrays)
cpdef void started(EngineCore e, i64 i, double work, i64 productive_ms) except *
cpdef void start_failed(EngineCore e, i64 i, i64 node) except *
@cython.locals(jobs=JobArrays)
cpdef void resized(EngineCore e, i64 i, i64 seq, double work, i64 productive_ms) except *
@cython.locals(jobs=JobArrays)
cpdef void progressed(EngineCore e, i64 i, double work, double rate) except *
@cython.locals(jobs=JobArrays, saved=double, total=double)
cpdef void exited(EngineCore e, i64 i, i64 code, double work) except *
cpdef void stopped(EngineCore e, i64 i, double work) except *
@cython.locals(jobs=JobArrays)
cpdef void send(EngineCore e, i64 i, i64 kind, i64 why, IntList packed, i64 at) except *
@cython.locals(jobs=JobArrays, commands=Messages, k=Py_ssize_t)
cdef void _write_command(EngineCore e, i64 i, IntList packed, i64 at) except *
@cython.locals(jobs=JobArrays, due=i64, i=i64)
cpdef void resend(EngineCore e) except *
@cython.locals(jobs=JobArrays, order=IntList, pending=IntList, i=i64, at=i64)
cpdef void list_pending(EngineCore e) except *
@cython.locals(jobs=JobArrays)
cpdef void write_pending(EngineCore e, i64 i) except *
@cython.locals(jobs=JobArrays, phase=i64)
cpdef void carry_out(EngineCore e, i64 i, IntList packed, i64 at) except *
@cython.locals(jobs=JobArrays, old=i64, row=IntList)
cdef bint _in_place(EngineCore e, i64 i, IntList packed, i64 at) noexcept
cdef void _relocate(EngineCore e, i64 i, IntList packed, i64 at) except *
@cython.locals(jobs=JobArrays, reserved=IntList, n=i64, i=i64, at=i64)
cpdef void launch_reserved(EngineCore e) except *
cpdef bint fits_physically(EngineCore e, i64 i, IntList packed, i64 at) noexcept
@cython.locals(jobs=JobArrays, both=IntList, here=i64)
cpdef void resize(EngineCore e, i64 i, IntList packed, i64 at) except *
@cython.locals(jobs=JobArrays)
cpdef void stop(EngineCore e, i64 i, i64 after, i64 why) except *
