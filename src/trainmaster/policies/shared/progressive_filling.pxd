cimport cython
from trainmaster.core.types cimport B1, F1, F2, I1, RB1, RF1, RI1, i64
from trainmaster.policies.shared.node_capacity cimport JobSizes, Room

@cython.final
cdef class DominantShares:
    cdef Room room
    cdef JobSizes sizes
    cdef RF1 total, team_weight, weight
    cdef F1 job_share
    cdef RI1 team, arrival
    cdef I1 head
    cdef F2 team_use
    cdef B1 open, closed
    cpdef void fill(self, RB1 may_start, RB1 may_grow, RI1 first) noexcept
    @cython.locals(best=Py_ssize_t, workers=i64, servers=i64)
    cdef void _serve_first(self, Py_ssize_t row) noexcept
    cdef void _used_more(self, Py_ssize_t row, i64 workers, i64 servers) noexcept
    @cython.locals(used=double)
    cdef void _update_share(self, Py_ssize_t row) noexcept
    @cython.locals(best=Py_ssize_t, chosen=Py_ssize_t, chosen_share=double, share=double)
    cdef Py_ssize_t _next(self) noexcept
    @cython.locals(gpu_type=Py_ssize_t, workers=i64, servers=i64)
    cdef void _grant(self, Py_ssize_t row) noexcept
