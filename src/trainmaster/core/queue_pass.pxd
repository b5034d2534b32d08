cimport cython
from trainmaster.core.cluster_arrays cimport ClusterArrays
from trainmaster.core.free_resources cimport FreeResources, fits_gang, give_gang, take_gang
from trainmaster.core.int_list cimport IntList, new_floats, new_ints
from trainmaster.core.job_arrays cimport JobArrays, remaining_now, service_now
from trainmaster.core.passes cimport Pass
from trainmaster.core.placement cimport Placer
from trainmaster.core.plan_arrays cimport PlanArrays
from trainmaster.core.sorting cimport sort_by, sort_by_two
from trainmaster.core.types cimport F1, I1, i64

cdef i64 BY_ARRIVAL, BY_DEADLINE, BY_GIVEN_KEY, BY_QUEUE, BY_REMAINING, BY_SERVICE, LOST, PENDING, RESERVED, RUNNING, SHAPE, STOPPING, WHOLE
cdef double MS_PER_S

cdef class QueuePass(Pass):
    cdef public i64 key, quantum_ms, default
    cdef public bint preemptive, strict, hopeless_last, any_waiting
    cdef public double promote
    cdef public F1 thresholds
    cdef IntList ready, start, kinds, stopped, start_at, stop_at, spare, nothing, kept
    cdef F1 keys
    cdef I1 available, other_count, stamp
    cdef IntList last
    cdef i64 round, n_sorted
    cpdef object set_keys(self, object keys)
    cpdef bint decide(
        self, JobArrays jobs, IntList which, i64 now_ms, ClusterArrays cluster, FreeResources free, Placer placer,
        PlanArrays plan) except -1
    cdef object _make_room(self, i64 n, JobArrays jobs)
    @cython.locals(i=i64, phase=i64, any_ready=bint)
    cdef bint _list_ready(self, JobArrays jobs, IntList which, i64 now_ms) except -1
    @cython.locals(i=i64, fastest=i64)
    cdef bint _all_fit(self, JobArrays jobs, i64 now_ms, FreeResources free, Placer placer) except *
    cdef void _start_all(self, JobArrays jobs, FreeResources free, Placer placer, PlanArrays plan) except *
    @cython.locals(key=i64)
    cdef double _key_of(self, JobArrays jobs, i64 i, i64 now_ms) noexcept
    @cython.locals(i=i64, n=i64, ready=IntList, listed=IntList, stamp=I1)
    cdef void _keep_order(self) noexcept
    @cython.locals(i=i64, key=i64, late=bint)
    cdef void _sort(self, JobArrays jobs, i64 now_ms) noexcept
    @cython.locals(level=i64)
    cdef i64 _level(self, double service) noexcept
    @cython.locals(running=bint, since_s=double)
    cdef double _run_ms(self, JobArrays jobs, i64 i, i64 now_ms) noexcept
    @cython.locals(run_ms=double, waited_ms=i64)
    cdef i64 _queue_of(self, JobArrays jobs, i64 i, i64 now_ms) noexcept
    cdef i64 _next_look_ms(self, JobArrays jobs, IntList which, i64 now_ms) noexcept
    @cython.locals(i=i64, soonest_s=double, soonest_ms=double, gpus=double, service=double, level=i64, left_s=double, left_ms=double, run_ms=double, waited_ms=i64)
    cdef i64 _next_queue_change_ms(self, JobArrays jobs, IntList which, i64 now_ms) noexcept
    cpdef object place_in_order(
        self, JobArrays jobs, IntList order, bint strict, FreeResources free, Placer placer, PlanArrays plan)
    @cython.locals(i=i64, begin=i64, end=i64)
    cpdef object run_in_order(
        self, JobArrays jobs, IntList order, FreeResources free, Placer placer, PlanArrays plan)
    @cython.locals(at=i64)
    cdef object _note_misfits(self, Placer placer, PlanArrays plan)
    @cython.locals(i=i64, held=i64, need=i64, best=i64)
    cdef void _choose(self, JobArrays jobs, IntList order, FreeResources free, Placer placer) noexcept
    @cython.locals(i=i64)
    cdef object _write(self, JobArrays jobs, IntList order, FreeResources free, Placer placer, PlanArrays plan)

@cython.locals(whole=double)
cdef i64 _ceiling(double value) noexcept
