cimport cython
from trainmaster.core.int_list cimport IntList
from trainmaster.core.types cimport I1, i64

cdef i64 HEAD, GPU_TYPE, N_PARTS, PART, SHARE

cpdef i64 gang_length(IntList packed, i64 at) noexcept
cpdef i64 gang_workers(IntList packed, i64 at) noexcept
cpdef i64 gang_servers(IntList packed, i64 at) noexcept
cpdef i64 gang_devices(IntList packed, i64 at) noexcept
@cython.locals(total=i64)
cdef i64 _total(IntList packed, i64 at, i64 field) noexcept
@cython.locals(total=i64)
cpdef i64 gang_hosts(IntList packed, i64 at) noexcept
cpdef bint is_on(IntList packed, i64 at, i64 node) noexcept
cpdef bint same_place(IntList a, i64 at, IntList b, i64 begin) noexcept
@cython.locals(device=i64, other=i64, node=i64, n_devices=i64, n_other=i64)
cpdef bint share_a_device(IntList a, i64 at, IntList b, i64 begin) noexcept
cdef i64 _count(IntList packed, i64 begin, i64 n, i64 device) noexcept
@cython.locals(i=i64, j=i64, parts=i64, n_old=i64, n_new=i64, a=i64, b=i64, workers=i64, servers=i64)
cpdef object union_gang(IntList old, i64 at, IntList new, i64 begin, IntList out)
cdef void _put_part(IntList out, i64 k, i64 node, i64 workers, i64 servers) noexcept
cdef i64 _part_on(IntList packed, i64 at, i64 node) noexcept
@cython.locals(device=i64)
cdef i64 _first_device(IntList packed, i64 at, i64 part) noexcept
@cython.locals(a=i64, b=i64, n_a=i64, n_b=i64, first_a=i64, first_b=i64, largest=i64, times=i64)
cdef void _put_devices(IntList old, i64 at, IntList new, i64 begin, IntList out, i64 k) noexcept
