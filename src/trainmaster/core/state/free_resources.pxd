cimport cython
from trainmaster.core.state.cluster_arrays cimport ClusterArrays
from trainmaster.core.int_list cimport IntList
from trainmaster.core.state.job_arrays cimport JobArrays
from trainmaster.core.node_index cimport NodeIndex
from trainmaster.core.types cimport I1, I2, i64

cdef i64 HEAD, PART, SHARE, WHOLE

cdef class FreeResources:
    cdef public object device_milli, whole, cpu_milli, mem_mib
    cdef public NodeIndex index
    cdef I2 milli
    cdef I1 free_whole, free_cpu, free_mem

cpdef NodeIndex index_of(FreeResources free, ClusterArrays cluster)
@cython.locals(index=NodeIndex)
cpdef bint any_device_left(FreeResources free) noexcept
@cython.locals(n_parts=i64, share=i64, device=i64, part=i64, node=i64, workers=i64, servers=i64, was=i64, now=i64, whole=i64, whole_before=i64)
cpdef void add_gang(
    FreeResources free, IntList packed, i64 at, i64 sign, i64 cpu_each, i64 mem_each, i64 server_cpu, i64 server_mem) noexcept
@cython.locals(n_parts=i64, share=i64, device=i64, part=i64, node=i64, workers=i64, servers=i64, n_devices=i64, need=i64)
cpdef bint gang_fits(FreeResources free, IntList packed, i64 at, i64 cpu_each, i64 mem_each, i64 server_cpu, i64 server_mem) noexcept
cpdef void give_gang(FreeResources free, IntList packed, i64 at, i64 i, JobArrays jobs) noexcept
cpdef void take_gang(FreeResources free, IntList packed, i64 at, i64 i, JobArrays jobs) noexcept
cpdef bint fits_gang(FreeResources free, IntList packed, i64 at, i64 i, JobArrays jobs) noexcept
