cimport cython
from libc cimport math
from trainmaster.core.state.cluster_arrays cimport ClusterArrays
from trainmaster.core.state.free_resources cimport FreeResources
from trainmaster.core.int_list cimport IntList, new_floats, new_ints
from trainmaster.core.state.job_arrays cimport JobArrays, work_now
from trainmaster.core.sorting cimport sort_by
from trainmaster.core.types cimport B1, F1, F2, I1, I2, RF2, i64

cdef i64 COUNT, LOST, NEVER_MS, PAUSED, PENDING, RESERVED, RUNNING, BY_TYPE, SHUFFLED, ONLY_POSITIVE, LEHMER, MODULUS
cdef double MS_PER_S, NEVER_RUN, GPU_MILLI, CHANGED_SPEED, NO_DEADLINE

@cython.final
cdef class Rounds:
    cdef public bint original, time_dependent
    cdef public i64 queueing, reset_ms, round_ms, round_end_ms, last_reset_ms, computed_jobs, nodes_then
    cdef public double patience_s, longest_s
    cdef public bint idle, holding, halved, without_gpus, elastic, to_run, speeds_found
    cdef public i64 n, types, pairs, n_new, n_computed
    cdef public F2 share, received_s, deficit_s, speeds, speed_of, pair_share, pair_received_s, pair_speed
    cdef public F1 known, worker_s
    cdef public I1 type_order, gpu_type_of, pair_of
    cdef public I2 members
    cdef public B1 movable, holds
    cdef public IntList order, stop, start, gpu_types
    cdef IntList entries, spare
    cdef F1 first_key, second_key, third_key, arrival_key, slice_s, free_gpus, given_s, largest
    cdef I1 turns
    cpdef object remember(self, F2 share, F2 received_s, F2 deficit_s, F1 known, F2 speeds)
    cpdef object no_pairs(self, i64 types)
    cpdef object set_pairs(self, object members, object speed, object share, object received_s)
    cdef object _reserve(self, i64 n, i64 types)
    @cython.locals(i=i64)
    cpdef object survey(self, JobArrays jobs, IntList which, i64 now_ms)
    cpdef bint is_inside(self, i64 now_ms) noexcept
    @cython.locals(nodes_up=i64, stale=bint, rested=bint)
    cpdef bint shares_are_due(self, JobArrays jobs, IntList which, i64 now_ms, ClusterArrays cluster, i64 placement) noexcept
    @cython.locals(now=double, then=double)
    cdef bint _speeds_changed(self, JobArrays jobs, IntList which, ClusterArrays cluster, i64 placement) noexcept
    @cython.locals(half_s=double)
    cpdef double begin(self, i64 now_ms, bint inside) noexcept
    @cython.locals(half_s=double, elapsed_s=double)
    cpdef void renew(self, JobArrays jobs, IntList which, i64 now_ms, ClusterArrays cluster, i64 placement) noexcept
    @cython.locals(out=I1, found=Py_ssize_t, i=i64)
    cpdef object competitors(self, JobArrays jobs, IntList which)
    @cython.locals(out=F2, n=Py_ssize_t, i=i64, longest=double, any_known=bint, remaining=double, left_ms=i64)
    cpdef object figures(self, JobArrays jobs, IntList which, I1 rows, i64 now_ms)
    @cython.locals(out=F2)
    cpdef object speeds_at(self, I1 rows)
    @cython.locals(out=F1)
    cpdef object gpus_up(self, ClusterArrays cluster)
    @cython.locals(half_s=double)
    cpdef void write_shares(self, I1 rows, RF2 share, i64 n_pairs) noexcept
    cpdef void choose(
        self, JobArrays jobs, IntList which, i64 now_ms, bint inside, ClusterArrays cluster, FreeResources free,
        i64 placement) noexcept
    @cython.locals(i=i64, gpu_type=Py_ssize_t)
    cdef void _find_speeds(self, JobArrays jobs, IntList which, ClusterArrays cluster, i64 placement) noexcept
    @cython.locals(in_order=bint)
    cdef void _sort_by_arrival(self, JobArrays jobs, IntList which) noexcept
    @cython.locals(i=i64, milli=i64)
    cdef void _mark(
        self, JobArrays jobs, IntList which, i64 now_ms, bint inside, ClusterArrays cluster, FreeResources free) noexcept
    @cython.locals(i=i64, waited_s=double, late=bint, due=double, priority=double, entry=i64)
    cdef void _prioritise(self, JobArrays jobs, IntList which, i64 now_ms) noexcept
    @cython.locals(state=i64, other=i64, kept=i64, at=i64, total=double)
    cpdef object find_turns(self, i64 now_ms)
    @cython.locals(low=i64, gpu_type=i64, k=i64, wanted=bint)
    cdef void _list_entries(self, bint with_priority, bint without) noexcept
    @cython.locals(source=I1, target=I1, end=i64, width=i64, begin=i64, middle=i64, high=i64, left=i64, right=i64)
    cdef void _sort(self, i64 low) noexcept
    cdef bint _before(self, i64 a, i64 b) noexcept
    @cython.locals(a=i64, b=i64, need=double, without=bint)
    cdef object _fill(self, JobArrays jobs, IntList which, i64 now_ms)
    cdef bint _any_free(self) noexcept
    @cython.locals(u=i64, gpu_type=i64, a=i64, b=i64, need=double)
    cdef void _take(self, JobArrays jobs, IntList which) noexcept
    @cython.locals(k=i64, stays=bint)
    cdef void _compare(self, JobArrays jobs, IntList which) noexcept
    @cython.locals(k=i64, gpu_type=i64, slice_s=double, shared=bint, a=i64, b=i64)
    cpdef void give_time(self, JobArrays jobs, IntList which, i64 now_ms, double left_s) noexcept
    @cython.locals(p=i64)
    cdef double _speed(self, i64 k, i64 gpu_type) noexcept
    @cython.locals(steps=double, remaining=double)
    cdef double _slice_s(self, JobArrays jobs, i64 i, i64 now_ms, double speed, double left_s) noexcept
    @cython.locals(i=i64, gpu_type=i64)
    cdef bint _could_change(self, JobArrays jobs, IntList which) noexcept
    cpdef i64 end(self, i64 now_ms) noexcept

@cython.locals(phase=i64)
cdef bint _changeable(JobArrays jobs, i64 i, i64 now_ms) noexcept
@cython.locals(fraction=double)
cdef double _priority(double due, double received_s, double worker_s) noexcept
@cython.locals(up=i64)
cpdef i64 count_up(ClusterArrays cluster) noexcept
