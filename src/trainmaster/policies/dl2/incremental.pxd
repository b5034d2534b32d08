cimport cython
from trainmaster.core.types cimport I1, S1, S2

@cython.final
cdef class IncrementalNetwork:
    cdef S2 U, V, W_job, W_context, A, S, h, hw, xs
    cdef S1 u, v, w, a, B, b, sum_h, context, shared
    cpdef void clear(self) noexcept
    @cython.locals(hidden=Py_ssize_t, n_features=Py_ssize_t, value=float, k=Py_ssize_t, f=Py_ssize_t)
    cpdef void changed(self, Py_ssize_t i, S2 features, Py_ssize_t row, bint first) noexcept
    @cython.locals(hidden=Py_ssize_t, width=Py_ssize_t, value=float, void=float, k=Py_ssize_t, f=Py_ssize_t)
    cpdef float score(self, Py_ssize_t n, S1 seen, I1 jobs, S2 scores) noexcept
    @cython.locals(s0=float, s1=float, s2=float, z=float)
    cdef void _score_job(self, Py_ssize_t i, Py_ssize_t job, S2 scores) noexcept
