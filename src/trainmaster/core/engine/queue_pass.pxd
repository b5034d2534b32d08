cimport cython
from trainmaster.core.state.cluster_arrays cimport ClusterArrays
from trainmaster.core.state.free_resources cimport FreeResources, fits_gang, give_gang, take_gang
from trainmaster.core.int_list cimport IntList, new_floats, new_ints
from trainmaster.core.state.job_arrays cimport JobArrays, log_phase, remaining_now, service_now
from trainmaster.core.engine.decision_pass cimport Pass
from trainmaster.core.engine.placement cimport Placer
from trainmaster.core.state.plan_arrays cimport PlanArrays
from trainmaster.core.sorting cimport sort_by, sort_by_two
from trainmaster.core.types cimport B1, F1, I1, i64
from trainmaster.core.waiting_queue cimport JobHeap, WaitingQueue

cdef i64 BY_DEADLINE, BY_GIVEN_KEY, BY_QUEUE, BY_REMAINING, BY_SERVICE, LOST, NO_NODE, PENDING, RESERVED, RUNNING, SHAPE, STOPPING, WHOLE
cdef double MS_PER_S

cdef class QueuePass(Pass):
    cdef public i64 key, quantum_ms, default
    cdef public bint preemptive, strict, hopeless_last, any_waiting
    cdef public double promote
    cdef public F1 thresholds
    cdef JobArrays followed
    cdef WaitingQueue waiting
    cdef JobHeap promotions
    cdef IntList ready, start, gpu_types, stopped, start_at, stop_at, spare, nothing, kept, deferred, active
    cdef F1 keys, late
    cdef I1 available, other_count
    cdef B1 is_active, contested
    cpdef object set_keys(self, object keys)
    cpdef object follow(self, JobArrays jobs)
    cpdef bint decide(
        self, JobArrays jobs, IntList which, i64 now_ms, ClusterArrays cluster, FreeResources free, Placer placer,
        PlanArrays plan) except -1
    cdef object _make_room(self, JobArrays jobs)
    cdef void _list(self, JobArrays jobs, IntList which, i64 now_ms) except *
    @cython.locals(i=i64, kept=i64, log=IntList, deferred=IntList)
    cdef void _catch_up(self, JobArrays jobs, i64 now_ms) except *
    @cython.locals(phase=i64)
    cdef void _enter(self, JobArrays jobs, i64 i, i64 now_ms) except *
    @cython.locals(rank=i64)
    cdef void _push(self, JobArrays jobs, i64 i, i64 now_ms) except *
    cdef bint _is_late(self, JobArrays jobs, i64 i, i64 now_ms) noexcept
    @cython.locals(key=i64)
    cdef double _key_of(self, JobArrays jobs, i64 i, i64 now_ms) noexcept
    @cython.locals(i=i64, phase=i64, active=IntList, ready=IntList, others=IntList)
    cdef void _sort_active(self, JobArrays jobs, i64 now_ms) except *
    cdef bint _all_fit(self, JobArrays jobs, FreeResources free, Placer placer) except *
    cdef void _start_all(self, JobArrays jobs, FreeResources free, Placer placer, PlanArrays plan) except *
    @cython.locals(level=i64)
    cdef i64 _level(self, double service) noexcept
    @cython.locals(running=bint, since_s=double)
    cdef double _run_ms(self, JobArrays jobs, i64 i, i64 now_ms) noexcept
    @cython.locals(run_ms=double, waited_ms=i64)
    cdef i64 _queue_of(self, JobArrays jobs, i64 i, i64 now_ms) noexcept
    @cython.locals(since_ms=i64, after_ms=double)
    cdef void _note_promotion(self, JobArrays jobs, i64 i) except *
    @cython.locals(i=i64, waits=bint, promotions=JobHeap)
    cdef void _promote(self, JobArrays jobs, i64 now_ms) except *
    cdef i64 _next_look_ms(self, JobArrays jobs, i64 now_ms) except *
    @cython.locals(i=i64, soonest_s=double, soonest_ms=double, gpus=double, service=double, level=i64, left_s=double)
    cdef i64 _next_queue_change_ms(self, JobArrays jobs, i64 now_ms) except *
    @cython.locals(i=i64, c=i64, n_placed=i64, behind=bint)
    cdef object _place_in_order(
        self, JobArrays jobs, ClusterArrays cluster, FreeResources free, Placer placer, PlanArrays plan)
    @cython.locals(anywhere=bint, fits=bint, n_left=i64)
    cdef bint _hold_up(
        self, JobArrays jobs, i64 i, ClusterArrays cluster, Placer placer, PlanArrays plan, bint behind) except *
    @cython.locals(n_workers=i64)
    cdef i64 _n_workers(self, JobArrays jobs, i64 i, ClusterArrays cluster, Placer placer, bint contested) except *
    @cython.locals(i=i64, begin=i64, end=i64)
    cdef object _run_in_order(self, JobArrays jobs, FreeResources free, Placer placer, PlanArrays plan)
    @cython.locals(i=i64, at=i64)
    cdef object _close(self, JobArrays jobs, FreeResources free, Placer placer, PlanArrays plan)
    @cython.locals(i=i64, c=i64, k=i64, held=i64, need=i64)
    cdef void _choose(self, JobArrays jobs, FreeResources free, Placer placer) except *
    @cython.locals(rank=i64)
    cdef bint _waits_before(self, JobArrays jobs, i64 c, i64 i) noexcept
    @cython.locals(need=i64, best=i64, available=I1)
    cdef bint _count_in(self, JobArrays jobs, i64 i, i64 at) except -1
    @cython.locals(i=i64)
    cdef object _write(self, JobArrays jobs, IntList order, FreeResources free, Placer placer, PlanArrays plan)

@cython.locals(whole=double)
cdef i64 _ceiling(double value) noexcept
