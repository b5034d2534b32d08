cimport cython
from trainmaster.core.state.cluster_arrays cimport ClusterArrays
from trainmaster.core.state.free_resources cimport FreeResources, fits_gang, give_gang, take_gang
from trainmaster.core.int_list cimport IntList
from trainmaster.core.state.job_arrays cimport JobArrays
from trainmaster.core.state.packed_allocation cimport gang_devices, gang_servers, gang_workers, is_on, same_place
from trainmaster.core.state.plan_arrays cimport PlanArrays
from trainmaster.core.types cimport I1, i64

cdef i64 HEAD, GPU_TYPE, LAUNCHING, N_PARTS, PART, PENDING, RESERVED, RESIZING, RUNNING, SHARE, WHOLE
cdef i64 SOUND, NOT_CHANGEABLE, NOT_PREEMPTIBLE, HOLDS_NOTHING, WORKERS, SERVERS, TYPE, PART_ORDER, NODE_DOWN, TWO_TYPES
cdef i64 PART_DEVICES, DEVICE_TWICE, NO_SUCH_DEVICE, NOT_WHOLE, WRONG_SHARE, TAKEN

@cython.locals(n=i64, rule=i64, done=i64, taken=i64, i=i64, at=i64)
cpdef i64 apply_changes(
    JobArrays jobs, ClusterArrays nodes, bint counting, PlanArrays plan, FreeResources free) noexcept
cpdef void undo_changes(JobArrays jobs, PlanArrays plan, FreeResources free) noexcept
@cython.locals(i=i64)
cdef void _undo(JobArrays jobs, PlanArrays plan, i64 done, i64 taken, FreeResources free) noexcept
@cython.locals(i=i64, at=i64, old=i64, phase=i64, given=bint, changeable=bint, elastic=bint, other_share=bint)
cdef i64 _check_change(JobArrays jobs, PlanArrays plan, i64 k) noexcept
@cython.locals(flat=IntList, workers=i64, servers=i64, gpu_type=i64, last=i64, device=i64, part=i64, node=i64, rule=i64, share=i64)
cpdef i64 check_gang(
    JobArrays jobs, ClusterArrays nodes, bint counting, i64 i, PlanArrays plan, i64 at) noexcept
@cython.locals(node=i64, n_devices=i64)
cdef i64 _check_devices(
    JobArrays jobs, ClusterArrays nodes, bint counting, i64 i, IntList flat, i64 part, i64 device, i64 gpu_type) noexcept
@cython.locals(waits=bint)
cpdef i64 first_silent(JobArrays jobs, I1 which, I1 why, I1 answered) noexcept
