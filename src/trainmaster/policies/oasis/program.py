"""A linear or mixed-integer program that grows by rows and columns: HiGHS solves it, our code recomputes the bound."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import highspy
import numpy as np

from trainmaster.model.utility import FloatArray

Entries = Iterable[tuple[int, float]]


class Program:
    """Maximise over columns 0 <= x <= upper, with lower <= a x <= upper in every row."""

    def __init__(self) -> None:
        self.cost: list[float] = []
        self._upper: list[float] = []
        self._rows: list[tuple[float, float]] = []
        self._entries: list[tuple[int, int, float]] = []
        """(column, row, value)"""

    def row(self, lower: float, upper: float, entries: Entries = ()) -> int:
        """A row with these (column, value)."""
        self._rows.append((lower, upper))
        self._entries += [(column, len(self._rows) - 1, value) for column, value in entries]
        return len(self._rows) - 1

    def column(self, cost: float, upper: float = np.inf, entries: Entries = ()) -> int:
        """A column with these (row, value)."""
        self.cost.append(cost)
        self._upper.append(upper)
        self._entries += [(len(self.cost) - 1, row, value) for row, value in entries]
        return len(self.cost) - 1

    def solved(self, settings: Mapping[str, Any], *, whole: bool = False) -> highspy.Highs:
        """With these options of the solver; `whole`: all columns are integers."""
        entries = sorted(self._entries, key=lambda entry: entry[0])
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = len(self.cost), len(self._rows)
        lp.sense_ = highspy.ObjSense.kMaximize
        lp.col_cost_ = np.array(self.cost)
        lp.col_lower_, lp.col_upper_ = np.zeros(len(self.cost)), np.array(self._upper)
        lp.row_lower_, lp.row_upper_ = np.array(self._rows).T
        lp.integrality_ = [highspy.HighsVarType.kInteger] * len(self.cost) if whole else []
        lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
        lp.a_matrix_.start_ = np.searchsorted([entry[0] for entry in entries], np.arange(len(self.cost) + 1))
        lp.a_matrix_.index_ = np.array([entry[1] for entry in entries])
        lp.a_matrix_.value_ = np.array([entry[2] for entry in entries])
        solver = highspy.Highs()
        for name, setting in {"output_flag": False, "threads": 1, "random_seed": 0, **settings}.items():
            solver.setOptionValue(name, setting)
        solver.passModel(lp)
        solver.run()
        return solver

    def dual_bound(self, duals: FloatArray) -> float:
        """max c x <= y b + sum_j u_j max(0, c_j - (y A)_j) for any y, of the right sign where a side is open."""
        lower, upper = np.array(self._rows).T
        duals = np.where(np.isfinite(upper), duals, np.minimum(duals, 0.0))
        duals = np.where(np.isfinite(lower), duals, np.maximum(duals, 0.0))
        side = np.where(duals > 0, upper, np.where(duals < 0, lower, 0.0))
        column, row, value = np.array(self._entries).T
        used = np.bincount(column.astype(np.int64), value * duals[row.astype(np.int64)], minlength=len(self.cost))
        reduced = np.maximum(np.array(self.cost) - used, 0.0)
        return float((duals * side).sum() + (reduced * np.array(self._upper)).sum())
