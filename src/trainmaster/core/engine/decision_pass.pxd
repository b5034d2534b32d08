from trainmaster.core.state.cluster_arrays cimport ClusterArrays
from trainmaster.core.state.free_resources cimport FreeResources
from trainmaster.core.int_list cimport IntList
from trainmaster.core.state.job_arrays cimport JobArrays
from trainmaster.core.engine.placement cimport Placer
from trainmaster.core.state.plan_arrays cimport PlanArrays
from trainmaster.core.types cimport i64

cdef class Pass:
    cdef public bint for_waiting
    cpdef bint decide(
        self, JobArrays jobs, IntList which, i64 now_ms, ClusterArrays cluster, FreeResources free, Placer placer,
        PlanArrays plan) except -1
    cpdef object follow(self, JobArrays jobs)
    cpdef object bind(self, object engine)
    cpdef object store(self, object engine)
