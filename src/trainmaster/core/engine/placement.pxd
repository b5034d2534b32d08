cimport cython
from trainmaster.core.state.cluster_arrays cimport ClusterArrays
from trainmaster.core.state.free_resources cimport FreeResources, add_gang, give_gang, index_of
from trainmaster.core.int_list cimport IntList, new_floats, new_ints
from trainmaster.core.state.job_arrays cimport JobArrays
from trainmaster.core.node_index cimport NodeIndex, class_of
from trainmaster.core.sorting cimport sort_by
from trainmaster.core.types cimport B1, B2, F1, I1, i64

cdef i64 BEST_FIT, CAPACITY, COUNT, FIRST_FIT, HEAD, MOST_TOLD_APART, NO_NODE, PACK, PART, SHAPE, SPREAD, WHOLE

@cython.final
cdef class Demand:
    cdef public i64 workers, devices_each, share, cpu_each, mem_each, servers, server_cpu, server_mem

cdef i64 _largest(I1 values) noexcept

@cython.final
cdef class Placer:
    cdef public i64 strategy
    cdef ClusterArrays cluster
    cdef I1 free_of_type, rooms, taken, hosting, per_rack
    cdef B1 open, chosen, usable, tried
    cdef IntList order, spare, closed, down
    cdef i64 opened, opened_after
    cdef bint by_devices_alone
    cdef F1 keys
    cdef public IntList placed, first, why, flat
    cdef public i64 failure
    cdef public Demand demand
    cdef B2 masks
    cpdef object set_masks(self, object masks)
    @cython.locals(masked=bint)
    cpdef void open_set(self, i64 node_set) noexcept
    @cython.locals(gpu_type=i64)
    cdef i64 most_workers(self, JobArrays jobs, i64 i, i64 node) noexcept
    @cython.locals(index=NodeIndex, node=i64)
    cpdef void count_up(self, FreeResources free, I1 whole, I1 milli) noexcept
    @cython.locals(mask=B1)
    cpdef object open_only(self, object workers_on)
    cpdef void begin(self) noexcept
    @cython.locals(i=i64, done=bint, need_milli=i64, node_set=i64)
    cpdef object place_list(
        self, JobArrays jobs, IntList which, i64 begin, i64 end, IntList wanted, bint strict, I1 workers, I1 servers,
        FreeResources free)
    cpdef void ask(self, JobArrays jobs, i64 i, i64 workers, i64 servers) noexcept
    @cython.locals(index=NodeIndex)
    cdef void _count_free(self, FreeResources free) noexcept
    @cython.locals(need=i64, whole_share=bint, gpu_type=i64, begin=i64)
    cdef bint _place_anywhere(self, JobArrays jobs, i64 i, i64 wanted, FreeResources free) except -1
    cdef void _recount(self, i64 gpu_type, i64 need, bint whole_share, FreeResources free) noexcept
    @cython.locals(best=i64)
    cdef i64 _preferred(self, JobArrays jobs, i64 i) noexcept
    @cython.locals(counting=bint, done=bint, total=i64, workers=i64, devices_each=i64, strategy=i64, node=i64)
    cpdef bint place_gang(self, i64 gpu_type, FreeResources free) except -1
    @cython.locals(index=NodeIndex, best=i64, need=i64, whole=i64, node=i64)
    cdef i64 _tightest(self, i64 gpu_type, FreeResources free) noexcept
    @cython.locals(cpu=i64, mem=i64)
    cdef bint _suits(self, i64 node, FreeResources free) noexcept
    @cython.locals(left=i64, room=i64)
    cdef bint _place_on_several(self, i64 gpu_type, FreeResources free) except -1
    @cython.locals(index=NodeIndex, each=i64, classes=i64, whole=i64, node=i64)
    cdef i64 _take_roomy(self, i64 gpu_type, i64 room, i64 left, FreeResources free) noexcept
    @cython.locals(node=i64)
    cdef void _write_parts(self, i64 gpu_type, FreeResources free) except *
    @cython.locals(need=i64)
    cdef void _write_on_one(self, i64 node, i64 gpu_type, FreeResources free) except *
    @cython.locals(room=i64, fitting=i64)
    cdef i64 _room(self, i64 node, i64 devices_each, FreeResources free) noexcept
    @cython.locals(best=i64)
    cdef bint _spread_out(self, i64 workers) noexcept
    @cython.locals(left=i64, node=i64)
    cdef bint _fill(self, i64 workers, FreeResources free) noexcept
    @cython.locals(left=i64, room=i64, spare=i64)
    cdef bint _host(self, FreeResources free) noexcept
    @cython.locals(best=i64, best_left=double, left=double, cpu=double, mem=double, strategy=i64)
    cdef void _order_nodes(self, i64 workers, FreeResources free) noexcept
    @cython.locals(best=i64, kept=i64, node=i64)
    cdef void _stay_in_one_rack(self, i64 workers) noexcept
    @cython.locals(begin=i64)
    cdef void _write_gang(self, i64 gpu_type, i64 devices_each, bint counting, FreeResources free) noexcept
    @cython.locals(best=i64, left=i64, whole=i64, whole_before=i64)
    cdef void _take_devices(self, i64 node, i64 n_devices, i64 share, FreeResources free) noexcept
    cpdef void take_back(self, JobArrays jobs, i64 i, i64 at, FreeResources free) noexcept
    @cython.locals(any_up=bint, most=i64, left=i64)
    cpdef i64 shortage(self, JobArrays jobs, i64 i, i64 need_milli, FreeResources free) noexcept
