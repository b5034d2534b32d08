cimport cython
cimport libc.math as math
from trainmaster.core.types cimport B1, F1, I1, RB2, RF1, RF2, RI1, i64

cdef i64 GPU_MILLI

@cython.final
cdef class Room:
    cdef public F1 whole, milli, cpu, mem, anywhere
    cdef RF1 need_gpu, need_cpu, need_mem, server_cpu, server_mem
    cdef RI1 need_share
    @cython.locals(gpu=double, cpu=double, mem=double)
    cpdef bint fits(self, Py_ssize_t row, Py_ssize_t gpu_type, i64 workers, i64 servers) noexcept
    @cython.locals(gpu=double, unbroken=double)
    cpdef void take(self, Py_ssize_t row, Py_ssize_t gpu_type, i64 workers, i64 servers) noexcept
    cdef double use(self, Py_ssize_t row, i64 workers, i64 servers, Py_ssize_t resource) noexcept

@cython.final
cdef class JobSizes:
    cdef I1 workers, servers, gpu_type
    cdef RI1 workers_min, workers_max, servers_min, servers_max
    cdef RB2 allowed
    cdef RF2 throughput
    @cython.locals(gpu_type=Py_ssize_t, best=Py_ssize_t)
    cdef Py_ssize_t fastest_with_room(self, Room room, Py_ssize_t row, i64 workers, i64 servers, B1 closed) noexcept
    cpdef void start_small(self, Room room, RI1 waiting, B1 closed) noexcept
