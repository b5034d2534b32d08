"""A bound on a linear program that does not rest on the solver's word: recomputed from its dual values."""

from __future__ import annotations

import highspy
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def bounded_maximum(lp: highspy.HighsLp) -> float:
    """No point of max c x, l <= x <= u, L <= A x <= U (columns bounded, A by columns) is worth more than this.

    HiGHS proposes duals y; for any y of the right sign, c x <= sum_i max(y_i L_i, y_i U_i) + sum_j max over l_j, u_j of
    (c - y A)_j x_j. A wrong y makes the bound weaker, never wrong.
    """
    solver = highspy.Highs()
    for name, setting in (("output_flag", False), ("threads", 1), ("random_seed", 0)):
        solver.setOptionValue(name, setting)
    lp.sense_ = highspy.ObjSense.kMaximize
    solver.passModel(lp)
    solver.run()
    return upper_bound(lp, np.array(solver.getSolution().row_dual))


def upper_bound(lp: highspy.HighsLp, duals: Floats) -> float:
    lower, upper = np.array(lp.row_lower_), np.array(lp.row_upper_)
    duals = np.where(np.isfinite(upper), duals, np.minimum(duals, 0.0))
    duals = np.where(np.isfinite(lower), duals, np.maximum(duals, 0.0))
    side = np.where(duals > 0, upper, np.where(duals < 0, lower, 0.0))
    column = np.repeat(np.arange(lp.num_col_), np.diff(lp.a_matrix_.start_))
    used = np.bincount(
        column, np.array(lp.a_matrix_.value_) * duals[np.array(lp.a_matrix_.index_)], minlength=lp.num_col_
    )
    reduced = np.array(lp.col_cost_) - used
    best = np.maximum(reduced * np.array(lp.col_lower_), reduced * np.array(lp.col_upper_))
    return float((duals * side).sum() + best.sum())
