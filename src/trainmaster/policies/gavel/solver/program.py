"""The linear program behind every policy, its solution, and the proof that the solution is optimal.

    maximise  sum c_mj x_mj + sum c_kj x_kj  +  [level] t
    s.t.      throughput_m(x) >= a_m t + b_m,   time_m(x) <= 1,   sum of GPUs on type j <= N_j,   x >= 0

where x_mj is job m alone on type j and x_kj pair k on type j. Max-min fairness, makespan, one step of
finish-time
fairness, one stage of water filling have a level; total throughput, cost and SLOs have weights c and no
level.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from trainmaster.policies.gavel.problem import BoolArray, FloatArray, Pairs, effective_throughput

CERTIFIED_GAP = 1e-8  # a solve whose proven relative gap is larger goes to the general solver
SHORTFALL_MAX = 1e-9


@dataclass(frozen=True)
class LinearProgram:
    """One linear program of the family. `rate` is a (zeros: no level), `need` is b, `gain` c (None:
    zeros)."""

    throughput: FloatArray  # n x J
    usable: BoolArray  # n x J
    gpus: FloatArray  # n
    counts: FloatArray  # J
    rate: FloatArray  # n, >= 0
    need: FloatArray  # n
    gain: FloatArray | None = None
    pairs: Pairs | None = None
    pair_gain: FloatArray | None = None

    @cached_property
    def has_level(self) -> bool:
        return bool(np.any(self.rate > 0.0))


@dataclass(frozen=True)
class Solution:
    """Shares that satisfy every time and capacity row, the value they reach and the value nothing can exceed.

    `multiplier` (per job) and `price` (per type) are the dual solution; `bound` follows from them by weak
    duality.
    """

    share: FloatArray
    pair_share: FloatArray | None
    value: float  # the level t, or the weighted sum
    bound: float
    multiplier: FloatArray
    price: FloatArray
    shortfall: float  # largest relative violation of need_m where the job has no rate
    iterations: int
    solver: str
    feasible: bool = True
    time_price: FloatArray | None = None  # per job; covers every reduced cost

    @property
    def gap(self) -> float:
        return proven_gap(self.value, self.bound)

    @property
    def is_certified(self) -> bool:
        """Whether the repaired shares meet every need and the bound computed from the duals proves them optimal."""
        return self.feasible and self.gap <= CERTIFIED_GAP and self.shortfall <= SHORTFALL_MAX


def proven_gap(value: float, bound: float) -> float:
    """Relative distance of a feasible value from its bound. A value beyond the bound disproves one of the two: it is
    as far off; values that are no numbers prove nothing."""
    gap = abs(bound - value) / max(abs(value), abs(bound), 1e-300)
    return gap if np.isfinite(gap) else np.inf


def repair(
    program: LinearProgram, share: FloatArray, pair_share: FloatArray | None
) -> tuple[FloatArray, FloatArray | None]:
    """Scale shares down until no time row and no capacity row is exceeded at all."""
    share = np.where(program.usable, np.maximum(share, 0.0), 0.0)
    if program.pairs is None or pair_share is None:
        share = share / np.maximum(share.sum(axis=1), 1.0)[:, None]
        used = dot_in_order(program.gpus, share)
        return share * np.minimum(1.0, program.counts / np.maximum(used, 1e-300))[None, :], None
    packed: FloatArray = np.where(pair_usable(program), np.maximum(pair_share, 0.0), 0.0)
    first, second = program.pairs.jobs[:, 0], program.pairs.jobs[:, 1]
    pair_time = packed.sum(axis=1)
    n = len(program.gpus)
    time = share.sum(axis=1) + np.bincount(first, pair_time, n) + np.bincount(second, pair_time, n)
    shrink = 1.0 / np.maximum(time, 1.0)
    share = share * shrink[:, None]
    packed = packed * np.minimum(shrink[first], shrink[second])[:, None]
    used = dot_in_order(program.gpus, share) + dot_in_order(program.gpus[first], packed)
    fit = np.minimum(1.0, program.counts / np.maximum(used, 1e-300))
    return share * fit[None, :], packed * fit[None, :]


def dot_in_order(a: FloatArray, b: FloatArray) -> FloatArray:
    """a @ b, summed row after row: the same bits on every machine, whatever its linear algebra library does."""
    return np.cumsum((a * b.T).T, axis=0)[-1] if len(a) else np.zeros(b.shape[1:])


def certify(
    program: LinearProgram,
    share: FloatArray,
    pair_share: FloatArray | None,
    multiplier: FloatArray,
    price: FloatArray,
    iterations: int,
    solver: str,
    time_price: FloatArray | None = None,
) -> Solution:
    """Repair the primal, rescale the dual, and compute both values from scratch.

    Weak duality: for y, p >= 0 with sum a_m y_m = 1 (level) the optimum is at most
    sum_j N_j p_j + sum_m pi_m - sum_m b_m y_m, where pi covers every reduced cost.
    """
    share, pair_share = repair(program, share, pair_share)
    got = effective_throughput(program.throughput, program.pairs, share, pair_share)
    rated = program.rate > 0.0
    multiplier = np.maximum(multiplier, 0.0)
    price = np.maximum(price, 0.0)
    mass = float(dot_in_order(program.rate, multiplier)) if program.has_level else 1.0
    if program.has_level:
        if mass > 0.0:
            multiplier, price = multiplier / mass, price / mass
            time_price = None if time_price is None else time_price / mass
        value = float(np.min((got[rated] - program.need[rated]) / program.rate[rated]))
    else:
        assert program.gain is not None
        value = float((program.gain * share).sum())
        if pair_share is not None and program.pair_gain is not None:
            value += float((program.pair_gain * pair_share).sum())
    reduced = multiplier[:, None] * program.throughput - program.gpus[:, None] * price[None, :]
    if program.gain is not None:
        reduced = reduced + program.gain
    covering = np.where(program.usable, reduced, 0.0).max(axis=1, initial=0.0)
    cover: FloatArray = covering if time_price is None else np.maximum(covering, time_price)
    if program.pairs is not None:
        cover = _cover_pairs(program, multiplier, price, cover)
    bound = float(program.counts @ price + cover.sum() - program.need @ multiplier) if mass > 0.0 else np.inf
    fixed = ~rated & (program.need > 0.0)
    shortfall = float(np.max(1.0 - got[fixed] / program.need[fixed], initial=0.0))
    return Solution(share, pair_share, value, bound, multiplier, price, shortfall, iterations, solver, True, cover)


def pair_reduced_cost(program: LinearProgram, multiplier: FloatArray, price: FloatArray) -> FloatArray:
    """y_a T_ab^a + y_b T_ab^b + c - s p_j for every pair and type: what a unit of its time is worth."""
    assert program.pairs is not None
    first, second = program.pairs.jobs[:, 0], program.pairs.jobs[:, 1]
    worth = (
        multiplier[first][:, None] * program.pairs.throughput[:, :, 0]
        + multiplier[second][:, None] * program.pairs.throughput[:, :, 1]
        - program.gpus[first][:, None] * price[None, :]
    )
    if program.pair_gain is not None:
        worth = worth + program.pair_gain
    usable = pair_usable(program)
    return np.where(usable, worth, -np.inf)


def pair_usable(program: LinearProgram) -> BoolArray:
    """Both jobs may run on the type and the pair fits there (a pair that gets nothing done does not)."""
    assert program.pairs is not None
    first, second = program.pairs.jobs[:, 0], program.pairs.jobs[:, 1]
    works = (program.pairs.throughput > 0.0).any(axis=2)
    return works & program.usable[first] & program.usable[second]


def _cover_pairs(
    program: LinearProgram, multiplier: FloatArray, price: FloatArray, time_price: FloatArray
) -> FloatArray:
    """Raise the jobs' time prices until no pair is worth more than its two jobs' time (valid, not
    minimal)."""
    assert program.pairs is not None
    worth = pair_reduced_cost(program, multiplier, price).max(axis=1)
    first, second = program.pairs.jobs[:, 0], program.pairs.jobs[:, 1]
    excess = worth - time_price[first] - time_price[second]
    out = time_price.copy()
    for k in np.flatnonzero(excess > 0.0):
        lack = worth[k] - out[first[k]] - out[second[k]]
        if lack > 0.0:
            out[first[k]] += 0.5 * lack
            out[second[k]] += 0.5 * lack
    return out
