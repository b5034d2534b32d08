"""Solve a program without pairs through prices: the level or gain by the game, shares from its mix, then
the proof."""

from __future__ import annotations

import numpy as np
from numba import njit

from trainmaster.policies.gavel.ascent import (
    PASSES_MAX,
    Ascent,
    Rise,
    ascend,
    climb,
    rational_rise,
    targets_at,
    uniform_prices,
)
from trainmaster.policies.gavel.problem import FloatArray
from trainmaster.policies.gavel.program import Program, Solution, certify
from trainmaster.policies.gavel.reply import add_shares, reply
from trainmaster.policies.gavel.welfare import best_gain


def working_arrays(program: Program) -> tuple[FloatArray, FloatArray]:
    """(speeds, 0 where unusable; GPU counts, 1 for types that do not exist and so are never used)."""
    speeds = np.where(program.usable, program.throughput, 0.0)
    return speeds, np.where(program.counts > 0.0, program.counts, 1.0)


def mixed_shares(
    T: FloatArray, gpus: FloatArray, target: FloatArray, prices: FloatArray, weights: FloatArray
) -> FloatArray:
    """The weighted sum of the cheapest replies to `prices` (k x J)."""
    share = np.zeros_like(T)
    for price, weight in zip(prices, weights, strict=True):
        if weight > 0.0:
            add_shares(T, gpus, T, False, target, price, weight, share)
    return share


def reach(
    T: FloatArray, gpus: FloatArray, counts: FloatArray, rise: Rise, high: float, warm: FloatArray | None
) -> tuple[Ascent, FloatArray, FloatArray]:
    """(ascent from 0 to at most `high`, shares that reach its level, targets there)."""
    first = uniform_prices(len(counts)) if warm is None else warm
    ascent = ascend(T, gpus, counts, rise, 0.0, high, first, True)
    target, rate = np.empty(len(gpus)), np.empty(len(gpus))
    targets_at(rise, ascent.level, target, rate)
    share = mixed_shares(T, gpus, target, ascent.basis_price / counts, ascent.basis_weight)
    return ascent, share / max(1.0, ascent.value), target


def reusable_prices(ascent: Ascent) -> FloatArray:
    """Row weights worth asking first when a similar problem comes: those of the proof and of the
    allocation."""
    used = ascent.basis_price[ascent.basis_weight > 0.0]
    return used if not ascent.tangent.any() else np.vstack([ascent.tangent[None, :], used])


def solve_priced(program: Program, warm: FloatArray | None = None) -> tuple[Solution, FloatArray]:
    """Solve `program` (no pairs; with a level: no needs). Returns the certified solution and prices to
    reuse."""
    assert program.pairs is None
    if program.has_level:
        return _solve_level(program, warm)
    return _solve_gain(program, warm)


def _solve_level(program: Program, warm: FloatArray | None) -> tuple[Solution, FloatArray]:
    first = uniform_prices(len(program.counts)) if warm is None else warm
    share, value, bound, multiplier, price, *found = _level_with_proof(
        program.throughput, program.usable, program.gpus, program.counts, program.rate, rational_rise(program.rate),
        first,
    )  # fmt: skip
    ascent = Ascent(*found)  # type: ignore[arg-type]  # compiled: its types are not known here
    solution = Solution(share, None, value, bound, multiplier, price, 0.0, ascent.passes, "prices")
    return solution, reusable_prices(ascent)


@njit(cache=True)
def _level_with_proof(throughput, usable, gpus, counts, rate, rise, first):
    """The highest level at which every job has `rate` times the level: shares, their value and its bound (repaired and
    computed from scratch, as `certify` does), multipliers, prices, and the ascent. In one pass, because the problems
    that rounds solve by the hundred are small."""
    n, types = throughput.shape
    T, fastest, there = np.zeros((n, types)), np.zeros(n), np.empty(types)
    for j in range(types):
        there[j] = counts[j] if counts[j] > 0.0 else 1.0
    high, holding = np.inf, -1
    for m in range(n):
        for j in range(types):
            if usable[m, j]:
                T[m, j] = throughput[m, j]
                fastest[m] = max(fastest[m], T[m, j])
        if rate[m] > 0.0 and fastest[m] / rate[m] < high:
            high, holding = fastest[m] / rate[m], m
    ascent = climb(T, gpus, there, rise, 0.0, high, first, True, PASSES_MAX)
    level, load_max, tangent, basis_price, basis_weight = ascent[0], ascent[1], ascent[2], ascent[3], ascent[4]
    target, growth = np.empty(n), np.empty(n)
    targets_at(rise, level, target, growth)
    share = np.zeros((n, types))
    for k in range(len(basis_weight)):
        if basis_weight[k] > 0.0:
            add_shares(T, gpus, T, False, target, basis_price[k] / there, basis_weight[k], share)
    share /= max(1.0, load_max)
    price, multiplier = tangent / there, np.zeros(n)
    if tangent.any():
        reply(T, gpus, T, False, target, price, np.empty(types), multiplier)
        # a slope of zero at a corner: the job holds nothing down at these prices
    else:  # one job is at full speed: its own time is the only scarce thing
        multiplier[holding] = 1.0 / rate[holding]
    # No time row and no capacity row is exceeded at all.
    used = np.zeros(types)
    for m in range(n):
        time = 0.0
        for j in range(types):
            share[m, j] = max(share[m, j], 0.0) if usable[m, j] else 0.0
            time += share[m, j]
        for j in range(types):
            share[m, j] /= max(time, 1.0)
            used[j] += gpus[m] * share[m, j]
    value, mass = np.inf, 0.0
    for m in range(n):
        got = 0.0
        for j in range(types):
            share[m, j] *= min(1.0, counts[j] / max(used[j], 1e-300))
            got += throughput[m, j] * share[m, j]
        multiplier[m] = max(multiplier[m], 0.0)
        mass += rate[m] * multiplier[m]
        if rate[m] > 0.0:
            value = min(value, got / rate[m])
    # Weak duality: see `certify`.
    bound = 0.0
    for j in range(types):
        price[j] = max(price[j], 0.0) / (mass if mass > 0.0 else 1.0)
        bound += counts[j] * price[j]
    for m in range(n):
        multiplier[m] /= mass if mass > 0.0 else 1.0
        cover = 0.0
        for j in range(types):
            if usable[m, j]:
                cover = max(cover, multiplier[m] * throughput[m, j] - gpus[m] * price[j])
        bound += cover
    return share, value, bound, multiplier, price, *ascent


def _solve_gain(program: Program, warm: FloatArray | None) -> tuple[Solution, FloatArray]:
    assert program.gain is not None
    T, counts = working_arrays(program)
    gain = np.where(program.usable, program.gain, 0.0)
    first = None if warm is None else warm[0]
    price, prices, weights, passes, _ = best_gain(T, program.gpus, counts, gain, program.need, first)
    multiplier = np.zeros(len(program.gpus))
    reply(T, program.gpus, gain, True, program.need, price, np.empty(len(counts)), multiplier)
    share = np.zeros_like(T)
    for row, weight in zip(prices, weights, strict=True):
        if weight > 0.0:
            add_shares(T, program.gpus, gain, True, program.need, row, weight, share)
    solution = certify(program, share, None, multiplier, price, passes, "prices")
    return solution, price[None, :]
