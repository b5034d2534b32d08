cimport cython
from trainmaster.core.state.cluster_arrays cimport ClusterArrays
from trainmaster.core.state.free_resources cimport FreeResources, give_gang, take_gang
from trainmaster.core.int_list cimport IntList
from trainmaster.core.state.job_arrays cimport JobArrays
from trainmaster.core.engine.decision_pass cimport Pass
from trainmaster.core.engine.placement cimport Placer
from trainmaster.core.state.plan_arrays cimport PlanArrays
from trainmaster.core.types cimport F1, F2, i64
from trainmaster.policies.gavel.rounds cimport Rounds

cdef i64 NEXT_ROUND, SHARE_DUE

cdef class RoundPass(Pass):
    cdef public Rounds rounds
    cdef IntList _starters
    cdef F2 _share, _received_s, _deficit_s, _speeds
    cdef F1 _known
    cdef i64 _capacity
    cdef object _seen, _policy, _engine, _shares
    @cython.locals(inside=bint, due=bint, left_s=double, placement=i64)
    cpdef bint decide(
        self, JobArrays jobs, IntList which, i64 now_ms, ClusterArrays cluster, FreeResources free, Placer placer,
        PlanArrays plan) except -1
    @cython.locals(i=i64)
    cdef object _renew(self, JobArrays jobs, IntList which, i64 now_ms)
    @cython.locals(i=i64, n=i64)
    cdef object _gather(self, IntList which, i64 types)
    @cython.locals(i=i64)
    cdef void _scatter(self, IntList which) noexcept
    @cython.locals(at=i64, i=i64, row=i64)
    cdef object _place(self, JobArrays jobs, IntList which, FreeResources free, Placer placer, PlanArrays plan)
