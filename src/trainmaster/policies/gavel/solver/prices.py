"""Solve a program without pairs by cutting planes: the level or the gain, shares from its mix, then the proof."""

from __future__ import annotations

import numpy as np

from trainmaster.policies.gavel.problem import FloatArray
from trainmaster.policies.gavel.solver.cutting_plane import Ascent, LevelSearch, Replies, best_gain
from trainmaster.policies.gavel.solver.program import LinearProgram, Solution, certify
from trainmaster.policies.gavel.solver.targets import RationalTargets, RisingTargets


def climb_to(
    speeds: FloatArray, gpus: FloatArray, counts: FloatArray, targets: RisingTargets, high: float
) -> tuple[Ascent, FloatArray, FloatArray]:
    """(ascent from 0 to at most `high`, shares that reach its level, what one more step/s costs each job there)."""
    replies, there = Replies(speeds, gpus), np.where(counts > 0.0, counts, 1.0)
    search = LevelSearch(replies, there, targets)
    ascent = search.climb(0.0, high, True)
    target = search.targets_at(ascent.level)
    share = replies.shares(target, ascent.basis_price / there, ascent.basis_weight) / max(1.0, ascent.value)
    replies.answer(target, ascent.tangent / there)
    return ascent, share, np.array(replies.slope)


def solve_by_prices(program: LinearProgram) -> Solution:
    """Solve `program` (no pairs; with a level: no needs)."""
    assert program.pairs is None
    return _highest_level(program) if program.has_level else _largest_gain(program)


def _highest_level(program: LinearProgram) -> Solution:
    speeds = np.where(program.usable, program.throughput, 0.0)
    rated = program.rate > 0.0
    reach = np.where(rated, speeds.max(axis=1) / np.where(rated, program.rate, 1.0), np.inf)
    holding = int(np.argmin(reach))
    targets = RationalTargets(program.rate)
    ascent, share, slope = climb_to(speeds, program.gpus, program.counts, targets, float(reach[holding]))
    if ascent.tangent.any():
        multiplier = slope  # a slope of zero at a corner: the job holds nothing down at these prices
    else:  # one job is at full speed: its own time is the only scarce thing
        multiplier = np.zeros(len(program.gpus))
        multiplier[holding] = 1.0 / program.rate[holding]
    price = ascent.tangent / np.where(program.counts > 0.0, program.counts, 1.0)
    return certify(program, share, None, multiplier, price, ascent.passes, "prices")


def _largest_gain(program: LinearProgram) -> Solution:
    assert program.gain is not None
    speeds = np.where(program.usable, program.throughput, 0.0)
    gain = np.where(program.usable, program.gain, 0.0)
    replies, counts = Replies(speeds, program.gpus, gain), np.where(program.counts > 0.0, program.counts, 1.0)
    found = best_gain(replies, counts, gain, program.need)
    replies.answer(np.ascontiguousarray(program.need), found.price)
    multiplier = np.array(replies.slope)
    share = replies.shares(program.need, found.basis_price, found.basis_weight)
    return certify(program, share, None, multiplier, found.price, found.passes, "prices")
