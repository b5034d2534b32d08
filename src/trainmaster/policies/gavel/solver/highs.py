"""Solve any program of the family with HiGHS: the fallback, and the way of programs with pairs.

Pairs are many (130,000 for 512 jobs) and few are used, so they enter by column generation: solve over the columns at
hand, price all pairs with the dual solution in one pass, add those worth more than their jobs' time, repeat. It ends
when no pair has a positive reduced cost.

What HiGHS says of its own solution proves nothing: with tolerances below 1e-7 its presolve can cut the optimum off.
`certify` computes a feasible point and a bound from the primal and dual values alone; where they do not meet, the next
of `ATTEMPTS` is made.
"""

from __future__ import annotations

import highspy
import numpy as np

from trainmaster.policies.gavel.problem import BoolArray, FloatArray, IntArray
from trainmaster.policies.gavel.solver.program import LinearProgram, Solution, certify, pair_reduced_cost

ROUNDS_MAX = 200
ATTEMPTS = ((1e-10, "choose"), (1e-10, "off"), (1e-7, "off"))
"""(feasibility tolerance, presolve), the most exact first."""


class _Columns:
    """The columns at hand, in HiGHS: rows are n throughput rows, n time rows, J capacity rows; column 0 is
    t."""

    def __init__(self, program: LinearProgram, t_scale: float, tolerance: float, presolve: str) -> None:
        self.program = program
        n, types = program.throughput.shape
        self.n, self.types = n, types
        self.row_scale = 1.0 / np.maximum(np.where(program.usable, program.throughput, 0.0).max(axis=1), 1e-300)
        self.gain_scale = 1.0
        if program.gain is not None:
            self.gain_scale = 1.0 / max(float(np.abs(program.gain).max(initial=0.0)), 1e-300)
        self.t_scale = t_scale
        self.highs = highspy.Highs()
        for name, value in (
            ("output_flag", False),
            ("threads", 1),
            ("random_seed", 1),
            ("primal_feasibility_tolerance", tolerance),
            ("dual_feasibility_tolerance", tolerance),
            ("presolve", presolve),
        ):
            self.highs.setOptionValue(name, value)
        inf = highspy.kHighsInf
        lower = np.concatenate([program.need * self.row_scale, np.full(n + types, -inf)])
        lower[:n][(program.rate <= 0.0) & (program.need <= 0.0)] = -inf
        upper = np.concatenate([np.full(n, inf), np.ones(n), program.counts])
        rows = 2 * n + types
        empty = np.zeros(0)
        self.highs.addRows(rows, lower, upper, 0, np.zeros(rows, dtype=np.int32), np.zeros(0, dtype=np.int32), empty)
        self.highs.changeObjectiveSense(highspy.ObjSense.kMaximize)
        self._add_level()
        self.jobs, self.job_types = np.nonzero(program.usable)
        self._add_singles()
        self.pair_rows: IntArray = np.zeros(0, dtype=np.int64)
        self.pair_types: IntArray = np.zeros(0, dtype=np.int64)

    def _add_level(self) -> None:
        rated = np.flatnonzero(self.program.rate > 0.0)
        value = -self.program.rate[rated] * self.row_scale[rated] * self.t_scale
        bound = highspy.kHighsInf if len(rated) else 0.0
        self.highs.addCols(
            1,
            np.array([1.0]),
            np.array([-bound]),
            np.array([bound]),
            len(rated),
            np.zeros(1, dtype=np.int32),
            rated.astype(np.int32),
            value,
        )

    def _add(self, cost: FloatArray, index: IntArray, value: FloatArray) -> None:
        count, width = index.shape
        self.highs.addCols(
            count,
            cost,
            np.zeros(count),
            np.full(count, highspy.kHighsInf),
            count * width,
            (np.arange(count) * width).astype(np.int32),
            index.ravel().astype(np.int32),
            np.ascontiguousarray(value.ravel()),
        )

    def _add_singles(self) -> None:
        program, m, j = self.program, self.jobs, self.job_types
        cost = np.zeros(len(m)) if program.gain is None else program.gain[m, j] * self.gain_scale
        index = np.stack([m, self.n + m, 2 * self.n + j], axis=1)
        value = np.stack([program.throughput[m, j] * self.row_scale[m], np.ones(len(m)), program.gpus[m]], axis=1)
        self._add(np.ascontiguousarray(cost), index, value)

    def add_pairs(self, pair: IntArray, gpu_type: IntArray) -> None:
        program = self.program
        assert program.pairs is not None
        a, b = program.pairs.jobs[pair, 0], program.pairs.jobs[pair, 1]
        cost = np.zeros(len(pair))
        if program.pair_gain is not None:
            cost = program.pair_gain[pair, gpu_type] * self.gain_scale
        index = np.stack([a, b, self.n + a, self.n + b, 2 * self.n + gpu_type], axis=1)
        value = np.stack(
            [
                program.pairs.throughput[pair, gpu_type, 0] * self.row_scale[a],
                program.pairs.throughput[pair, gpu_type, 1] * self.row_scale[b],
                np.ones(len(pair)),
                np.ones(len(pair)),
                program.gpus[a],
            ],
            axis=1,
        )
        self._add(np.ascontiguousarray(cost), index, value)
        self.pair_rows = np.concatenate([self.pair_rows, pair])
        self.pair_types = np.concatenate([self.pair_types, gpu_type])

    def run(self) -> bool:
        self.highs.run()
        return self.highs.getModelStatus() == highspy.HighsModelStatus.kOptimal

    def duals(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """(multiplier, time price, type price), all >= 0, in the program's own units."""
        dual = np.asarray(self.highs.getSolution().row_dual)
        n = self.n
        unit = self.t_scale if self.program.has_level else 1.0 / self.gain_scale
        return (
            np.maximum(-dual[:n], 0.0) * self.row_scale * unit,
            np.maximum(dual[n : 2 * n], 0.0) * unit,
            np.maximum(dual[2 * n :], 0.0) * unit,
        )

    def shares(self) -> tuple[FloatArray, FloatArray | None]:
        value = np.asarray(self.highs.getSolution().col_value)
        share = np.zeros((self.n, self.types))
        singles = len(self.jobs)
        share[self.jobs, self.job_types] = value[1 : 1 + singles]
        if self.program.pairs is None:
            return share, None
        pair_share = np.zeros((len(self.program.pairs), self.types))
        pair_share[self.pair_rows, self.pair_types] = value[1 + singles :]
        return share, pair_share

    def iterations(self) -> int:
        info = self.highs.getInfo()
        return int(max(info.simplex_iteration_count, 0) + max(info.ipm_iteration_count, 0))


def solve_by_highs(program: LinearProgram) -> Solution:
    """The first of `ATTEMPTS` whose solution is certified, else the one that is closest to it."""
    best: Solution | None = None
    for tolerance, presolve in ATTEMPTS:
        solution = _generate_columns(program, _Columns(program, _level_scale(program), tolerance, presolve))
        if solution.is_certified:
            return solution
        if best is None or _distance(solution) < _distance(best):
            best = solution
    assert best is not None
    return best


def _distance(solution: Solution) -> tuple[bool, float]:
    """How far from certified."""
    return not solution.feasible, max(solution.gap, solution.shortfall)


def _generate_columns(program: LinearProgram, columns: _Columns) -> Solution:
    n, types = program.throughput.shape
    iterations = 0
    if program.pairs is None:
        solved = columns.run()
        iterations = columns.iterations()
    else:
        taken = np.zeros((len(program.pairs), types), dtype=bool)
        solved = False
        for _ in range(ROUNDS_MAX):
            solved = columns.run()
            if not solved:
                break
            iterations += columns.iterations()
            pair, gpu_type = _worth_more(program, columns, taken)
            if len(pair) == 0:
                break
            columns.add_pairs(pair, gpu_type)
            taken[pair, gpu_type] = True
    if not solved:
        zero = None if program.pairs is None else np.zeros((len(program.pairs), types))
        nothing = np.zeros((n, types))
        return Solution(nothing, zero, 0.0, np.inf, np.zeros(n), np.zeros(types), np.inf, 0, "highs", feasible=False)
    multiplier, time_price, price = columns.duals()
    share, pair_share = columns.shares()
    return certify(program, share, pair_share, multiplier, price, iterations, "highs", time_price)


def _worth_more(program: LinearProgram, columns: _Columns, taken: BoolArray) -> tuple[IntArray, IntArray]:
    """Pairs and types, not yet `taken`, that are worth more than their jobs' time at the present prices."""
    assert program.pairs is not None
    multiplier, time_price, price = columns.duals()
    scale = max(float(time_price.max(initial=0.0)), float((program.gpus * price.max(initial=0.0)).max()), 1e-300)
    worth = pair_reduced_cost(program, multiplier, price)
    worth -= (time_price[program.pairs.jobs[:, 0]] + time_price[program.pairs.jobs[:, 1]])[:, None]
    worth[taken] = -np.inf
    return _most_valuable(program, worth, 1e-10 * scale)


def _most_valuable(program: LinearProgram, worth: FloatArray, threshold: float) -> tuple[IntArray, IntArray]:
    """For every job its best few pairs and types of positive reduced cost: enough to move, few enough to
    stay small."""
    assert program.pairs is not None
    pair, gpu_type = np.nonzero(worth > threshold)
    if len(pair) <= 4 * len(program.gpus):
        return pair, gpu_type
    value = worth[pair, gpu_type]
    order = np.lexsort((gpu_type, pair, -value))
    chosen = np.zeros(len(pair), dtype=bool)
    for side in (0, 1):
        job = program.pairs.jobs[pair[order], side]
        by_job = np.argsort(job, kind="stable")  # within a job the order by value is kept
        sorted_job = job[by_job]
        start = np.searchsorted(sorted_job, sorted_job, side="left")
        rank = np.arange(len(sorted_job)) - start
        chosen[order[by_job[rank < 2]]] = True
    return pair[chosen], gpu_type[chosen]


def _level_scale(program: LinearProgram) -> float:
    """A unit for t that makes the level of order one: what proportional shares would reach."""
    if not program.has_level:
        return 1.0
    rated = program.rate > 0.0
    best = np.where(program.usable, program.throughput, 0.0).max(axis=1)
    reach = best[rated] * min(1.0, float(program.counts.sum() / program.gpus.sum())) / program.rate[rated]
    return max(float(np.min(reach)), 1e-300)
