cimport cython
cimport libc.math as math
from trainmaster.core.int_list cimport IntList, new_floats
from trainmaster.core.sorting cimport sort_by
from trainmaster.core.types cimport B1, F1, F2, I1, I2, i64

cdef Py_ssize_t CLASS, COUNT, DUE, FINISH, FIRST, GPU_TYPE, MAX_SEGMENTS, WIDTH
cdef double FOREVER, PAD_MS, PIECES, SLIP_MS

@cython.final
cdef class JobArrays:
    cdef public object work, base, sizes, speeds, levels, each, held, held_kind, ran, pending_ms, whole
    cdef public double restart_ms, resize_ms
    cdef F1 _work, _pending_ms
    cdef F2 _base, _sizes, _speeds
    cdef I1 _levels, _each, _held, _held_kind
    cdef B1 _ran, _whole

@cython.final
cdef class Profile:
    cdef public object times, free, n, capacity
    cdef public double gpu_ms
    cdef F2 _times
    cdef I2 _free
    cdef I1 _n, _capacity
    cdef F1 _until, _trial, _best
    @cython.locals(order=IntList, spare=IntList, k=Py_ssize_t, j=Py_ssize_t, i=Py_ssize_t, s=Py_ssize_t, row=Py_ssize_t, m=Py_ssize_t, last=Py_ssize_t, a=double, b=double, amount=i64)
    cdef object _enter(self, double now, F2 certs, I1 each, I1 rows, F1 at, I1 delta)
    @cython.locals(low=Py_ssize_t, high=Py_ssize_t, middle=Py_ssize_t, index=Py_ssize_t, i=Py_ssize_t)
    cdef Py_ssize_t _break_at(self, Py_ssize_t k, double at) noexcept
    @cython.locals(k=Py_ssize_t, s=Py_ssize_t, i=Py_ssize_t, first=Py_ssize_t, last=Py_ssize_t, a=double, b=double, amount=i64)
    cpdef bint occupy(self, F1 cert, i64 each, i64 sign) noexcept
    cdef double _lasts(self, Py_ssize_t k, Py_ssize_t i, double need) noexcept
    @cython.locals(low=i64, i=Py_ssize_t)
    cpdef i64 lowest_free(self, Py_ssize_t k, double until) noexcept
    @cython.locals(area=double, end=double, i=Py_ssize_t)
    cpdef double free_area(self, Py_ssize_t k, double until) noexcept
    @cython.locals(
        rate_ref=double, each=i64, work=double, here=bint, size=i64, at=Py_ssize_t, c=Py_ssize_t, ran=bint, pending=double,
        least_ms=double, until=F1, done=double, pieces=Py_ssize_t, gpu_ms=double, least=double, i=Py_ssize_t, a=double,
        b=double, avail=i64, was=i64, need=double, span=double, worth=bint, cost=double, rate=double, begin=double,
        left_ms=double, finish=double)
    cpdef double fill(self, JobArrays jobs, Py_ssize_t row, Py_ssize_t k, Py_ssize_t level, double due, F1 cert) noexcept
    @cython.locals(now=double, trial=F1, best=Py_ssize_t, best_share=double, best_finish=double, k=Py_ssize_t, level=Py_ssize_t, finish=double, share=double)
    cpdef bint reserve(self, JobArrays jobs, Py_ssize_t row, double due, i64 cls, F1 cert) noexcept
    @cython.locals(trial=F1, best=double, k=Py_ssize_t, level=Py_ssize_t, finish=double)
    cpdef double soonest(self, JobArrays jobs, Py_ssize_t row, F1 cert) noexcept
    @cython.locals(i=Py_ssize_t, row=Py_ssize_t)
    cpdef Py_ssize_t reserve_in_order(self, JobArrays jobs, I1 rows, F1 due, i64 cls, F2 certs) noexcept
    @cython.locals(
        now=double, trial=F1, best=F1, cost=double, changed=i64, j=Py_ssize_t, row=Py_ssize_t, cert=F1, k=Py_ssize_t,
        starts_now=bint, size=i64, top=Py_ssize_t, old=double, best_finish=double, lowest=Py_ssize_t, planned=double,
        s=Py_ssize_t, level=Py_ssize_t, finish=double)
    cpdef i64 pull_forward(self, JobArrays jobs, I1 rows, F2 certs, double least_gain, bint only_waiting) noexcept

@cython.locals(j=Py_ssize_t)
cdef void _clear(F1 cert) noexcept
@cython.locals(j=Py_ssize_t)
cdef void _copy(F1 source, F1 target) noexcept
@cython.locals(
    row=Py_ssize_t, k=Py_ssize_t, count=Py_ssize_t, drop=Py_ssize_t, s=Py_ssize_t, j=Py_ssize_t, c=Py_ssize_t, here=bint,
    current=i64, ran=bint, pending=double, left=double, end=double, a=double, b=double, size=i64, restart=double,
    speed=double, rate=double, need_ms=double)
cpdef void follow(double now, JobArrays jobs, F2 certs, F1 finish) noexcept
@cython.locals(row=Py_ssize_t, s=Py_ssize_t)
cpdef void present(double now, F2 certs, I1 gpu_type, I1 size) noexcept
@cython.locals(row=Py_ssize_t, s=Py_ssize_t, j=Py_ssize_t, first=double, at=double)
cpdef double next_break(double now, F2 certs) noexcept
