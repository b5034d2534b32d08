cimport cython
cimport libc.math as math
from trainmaster.core.types cimport B2, F1, F2, I1, S2, i64
from trainmaster.learn.sizing.world cimport SlotWorld
from trainmaster.policies.dl2.incremental cimport IncrementalNetwork

cdef double LARGEST, BAD_RATIO
cdef Py_ssize_t MAX_SLOTS

@cython.final
cdef class Episode:
    cdef SlotWorld world
    cdef IncrementalNetwork network
    cdef object scorer
    cdef Py_ssize_t b, first, n_s, n_srow, n_d, n_drow, row, action
    cdef bint greedy
    cdef double kept, exploration
    cdef I1 rows, workers, servers, n_rows
    cdef F1 trained
    cdef S2 features, scores, seen, s_rows, s_globals, d_rows, d_globals
    cdef F2 s_numbers, d_numbers
    cdef B2 d_allowed
    @cython.locals(world=SlotWorld, b=Py_ssize_t, alive=bint, n=Py_ssize_t, first_decision=Py_ssize_t, j=Py_ssize_t)
    cpdef object play(self, object rng)
    cdef object _begin(self, Py_ssize_t n)
    @cython.locals(row=Py_ssize_t)
    cdef void _end(self, Py_ssize_t first_decision) noexcept
    @cython.locals(void=float, best=float, top=float, total=double, a=Py_ssize_t, i=Py_ssize_t)
    cdef object _decide(self, Py_ssize_t n, object rng)
    cdef float _score(self, Py_ssize_t n) except? -1
    @cython.locals(seen=double, chance=double, a=Py_ssize_t, i=Py_ssize_t)
    cdef void _sample(self, Py_ssize_t n, float void, float top, double target) noexcept
    @cython.locals(w=i64, p=i64, j=Py_ssize_t, i=Py_ssize_t)
    cdef void _explore(self, Py_ssize_t n) noexcept
    @cython.locals(d=Py_ssize_t, at=Py_ssize_t, chosen=float, a=Py_ssize_t, i=Py_ssize_t)
    cdef object _record(self, Py_ssize_t n, float void, float top, double total)
