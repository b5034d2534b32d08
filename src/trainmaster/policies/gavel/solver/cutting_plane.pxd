cimport cython
from trainmaster.core.int_list cimport new_floats
from trainmaster.core.types cimport F1, F2, I1
from trainmaster.policies.gavel.solver.game cimport Game
from trainmaster.policies.gavel.solver.targets cimport RisingTargets

cdef Py_ssize_t COLUMNS_MAX, PASSES_MAX, STALLED_PASSES, ROOT_STEPS_MAX
cdef double INF, FITS, NEARLY_FITS, ROOT, OFFSET, GAP

@cython.final
cdef class Replies:
    cdef readonly Py_ssize_t n, types
    cdef readonly F2 speeds
    cdef readonly F1 gpus, load, slope
    cdef readonly double gained
    cdef F2 _gain
    cdef F1 _own
    cdef bint _has_gain
    cdef Py_ssize_t _slow, _fast
    cdef double _slow_part, _fast_part, _edge
    cpdef double answer(self, F1 target, F1 price) noexcept
    cdef void _add_shares(self, F1 target, F1 price, double weight, F2 share) noexcept
    @cython.locals(speed=double, part=double, fast=Py_ssize_t)
    cdef void _mix(self, Py_ssize_t m, double target, F1 price) noexcept
    @cython.locals(best=Py_ssize_t, here=double)
    cdef Py_ssize_t _cheapest(self, Py_ssize_t m) noexcept
    @cython.locals(best=Py_ssize_t, best_slope=double, gain=double, slope=double)
    cdef Py_ssize_t _next_corner(self, Py_ssize_t m, double x_from, double y_from) noexcept

@cython.final
cdef class LevelSearch:
    cdef Replies _replies
    cdef RisingTargets _targets
    cdef Game _game
    cdef F1 _counts, _level_of, _target, _rate, _price, _query, _inner, _tangent
    cdef F2 _weights_of
    cdef Py_ssize_t _types, _passes, _progress
    cdef double _level, _value, _best, _least
    cdef bint _reset
    @cython.locals(asked=Py_ssize_t, cost=double)
    cdef bint _search(self, double low, double high, bint stabilise) noexcept
    cdef void _descend(self, double low) noexcept
    @cython.locals(level=double, cost=double, growth=double, trial=double)
    cdef double _root(self, double low, double high) noexcept
    cdef double _evaluate(self, F1 weights) noexcept
    cdef void _add_column(self) noexcept
    cdef void _refresh(self, Py_ssize_t k) noexcept
    @cython.locals(k=Py_ssize_t, stalled=bint, settled=bint)
    cdef bint _fits(self) noexcept
    @cython.locals(proven_too_high=bint)
    cdef void _next_query(self, bint halfway) noexcept
    @cython.locals(kept=Py_ssize_t)
    cdef void _keep_basis(self) noexcept
    cdef void _copy(self, F1 source, F1 target) noexcept

@cython.final
cdef class GainSearch:
    cdef Replies _replies
    cdef readonly Game game
    cdef readonly F2 weights_of
    cdef readonly F1 inner
    cdef F1 _counts, _need, _column, _price
    cdef double _price_sum
    cdef Py_ssize_t _rows
    cdef double _ask(self, F1 query) noexcept
    cdef void _set_inner(self, F1 query) noexcept
    cdef void _next_query(self, F1 query, bint halfway) noexcept
