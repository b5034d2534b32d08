"""Solve a program without pairs through prices: the level or gain by the game, shares from its mix, then
the proof."""

from __future__ import annotations

import numpy as np

from trainmaster.policies.gavel.ascent import Ascent, Rise, ascend, rational_rise, targets_at, uniform_prices
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
    T, counts = working_arrays(program)
    rated = program.rate > 0.0
    fastest = T.max(axis=1, initial=0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        high = float(np.min(np.where(rated, fastest / program.rate, np.inf)))
    ascent, share, target = reach(T, program.gpus, counts, rational_rise(program.rate), high, warm)
    price = ascent.tangent / counts
    multiplier = np.zeros(len(program.gpus))
    if ascent.tangent.any():
        reply(T, program.gpus, T, False, target, price, np.empty(len(counts)), multiplier)
        # a slope of zero at a corner: the job holds nothing down at these prices
    else:  # one job is at full speed: its own time is the only scarce thing
        holding = int(np.argmin(np.where(rated, fastest / np.where(rated, program.rate, 1.0), np.inf)))
        multiplier[holding] = 1.0 / program.rate[holding]
    solution = certify(program, share, None, multiplier, price, ascent.passes, "prices")
    return solution, reusable_prices(ascent)


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
