cimport cython
from trainmaster.core.int_list cimport IntList, new_floats, new_ints
from trainmaster.core.state.job_arrays cimport JobArrays
from trainmaster.core.types cimport B1, F1, I1, I2, i64

cdef i64 MAX_CLASSES, MOST_TOLD_APART, N_ASPECTS

@cython.final
cdef class JobHeap:
    cdef i64 n
    cdef F1 key
    cdef I1 tie, rank, job, mark
    @cython.locals(at=i64, parent=i64)
    cdef void push(self, i64 rank, double key, i64 tie, i64 job, i64 mark) except *
    @cython.locals(n=i64, at=i64, child=i64, rank=i64, key=double, tie=i64)
    cdef void pop(self) noexcept
    cdef bint _after(self, i64 at, i64 rank, double key, i64 tie) noexcept
    cdef void _copy(self, i64 source, i64 to) noexcept
    cdef object _grow(self)

@cython.final
cdef class WaitingQueue:
    cdef public i64 n, n_homeless, n_classes
    cdef I1 asked, wanted, mark, need, kind, rank_of
    cdef F1 key_of
    cdef list heaps
    cdef I2 aspects
    cdef B1 done, is_in
    cdef IntList skipped
    cdef object fit(self, JobArrays jobs)
    @cython.locals(heap=JobHeap)
    cdef void clear(self) noexcept
    @cython.locals(heap=JobHeap, fastest=i64)
    cdef void push(self, JobArrays jobs, i64 i, i64 rank, double key) except *
    cdef void remove(self, i64 i) noexcept
    cdef bint holds(self, i64 i) noexcept
    @cython.locals(wanted=I1, aspects=I2, types=i64, c=i64, same=i64)
    cdef i64 _class_of(self, JobArrays jobs, i64 i) except *
    cdef void begin_walk(self) noexcept
    @cython.locals(heap=JobHeap, best=i64)
    cdef i64 first(self) noexcept
    @cython.locals(heap=JobHeap)
    cdef i64 _rank(self, i64 c) noexcept
    @cython.locals(heap=JobHeap)
    cdef double _key(self, i64 c) noexcept
    @cython.locals(heap=JobHeap)
    cdef i64 _tie(self, i64 c) noexcept
    @cython.locals(heap=JobHeap)
    cdef bint comes_first(self, i64 c, i64 rank, double key, i64 tie) noexcept
    @cython.locals(heap=JobHeap)
    cdef i64 head(self, i64 c) noexcept
    @cython.locals(heap=JobHeap)
    cdef void take(self, i64 c) noexcept
    @cython.locals(heap=JobHeap)
    cdef void fail(self, i64 c) except *
    @cython.locals(i=i64)
    cdef void end_walk(self, JobArrays jobs) except *
    @cython.locals(heap=JobHeap)
    cdef void take_all(self, IntList out) except *
