"""The proof of a filling, checked from the problem, its stages and targets alone; the search is trusted with nothing.

In every stage the targets rise by what the tree gives each job at one level; at the stage's prices they cost all GPUs,
no more and no less, and more for a job that is stuck costs more than is left. Types leave a job's list only after they
got a price. At the end whoever is stuck nowhere has the full speed of the types left.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from trainmaster.policies.gavel.objectives.entity_tree import EntityTree
from trainmaster.policies.gavel.problem import AllocationProblem, BoolArray, FloatArray
from trainmaster.policies.gavel.solver.least_cost import least_costs
from trainmaster.policies.gavel.solver.program import proven_gap

AT_FULL_SPEED = 1e-10  # a target this close to what the types left can give is there
RISE = 1e-5  # of what a job lacks of its full speed: a stuck job must not be able to rise by this part


class Stage(NamedTuple):
    """Prices that hold the level down (zeros: none do), speeds open to each job, targets reached, jobs stuck there."""

    price: FloatArray
    speed: FloatArray
    targets: FloatArray
    stuck: BoolArray


def proof_gap(
    problem: AllocationProblem, throughput: FloatArray, tree: EntityTree, unit: FloatArray, stages: Sequence[Stage]
) -> float:
    """How far the proof is from exact; inf: it proves nothing."""
    reached, stuck = np.zeros(len(unit)), np.zeros(len(unit), dtype=bool)
    open_speed = np.where(problem.usable, throughput, 0.0)
    priced = np.zeros(len(problem.counts), dtype=bool)
    final = stages[-1].targets if stages else reached
    gaps = [0.0]
    for stage in stages:
        closed = stage.speed != open_speed
        if (stage.speed[closed] != 0.0).any() or closed[:, ~priced].any() or (stage.price < 0.0).any():
            return np.inf
        open_speed = stage.speed
        full = open_speed.max(axis=1, initial=0.0)
        rising = ~stuck & (reached < full * (1.0 - AT_FULL_SPEED))
        room = np.where(rising, full - reached, 0.0) / unit
        gaps.append(tree.unevenness((stage.targets - reached) / unit, room, stage.targets / unit))
        reached, stuck, priced = stage.targets, stuck | stage.stuck, stage.price > 0.0
        if priced.any():
            gaps += [_cost_gap(problem, stage, final, full), proven_gap(float(stage.price @ problem.counts), 1.0)]
        elif stage.stuck.any():
            return np.inf
    left = np.where(priced, 0.0, open_speed).max(axis=1, initial=0.0)
    lacking = ~stuck & (left > 0.0)
    gaps.append(np.max(1.0 - final[lacking] / left[lacking], initial=0.0))
    return float(np.max(gaps))


def _cost_gap(problem: AllocationProblem, stage: Stage, final: FloatArray, full: FloatArray) -> float:
    """Distance of the cost of the final targets from all GPUs; inf: a stuck job could rise."""
    costs = least_costs(stage.speed, problem.gpus, final, stage.price)
    total = float(costs.sum())
    room = np.maximum(full - final, 0.0)
    raised = least_costs(stage.speed, problem.gpus, final + RISE * room, stage.price)
    held = stage.stuck & (room > AT_FULL_SPEED * full)
    return proven_gap(total, 1.0) if (raised[held] > costs[held] + (1.0 - total)).all() else np.inf


def shares_gap(problem: AllocationProblem, share: FloatArray, got: FloatArray, stages: Sequence[Stage]) -> float:
    """The largest part by which shares exceed a job's time or a type's GPUs, or what they give falls short of the
    targets; inf where a job cannot run at all."""
    if (share < 0.0).any() or share[~problem.usable].any():
        return np.inf
    here = problem.counts > 0.0
    used = (problem.gpus @ share)[here] / problem.counts[here]
    final = stages[-1].targets if stages else np.zeros(0)
    short = 1.0 - got[final > 0.0] / final[final > 0.0] if stages else final
    return float(np.max(np.concatenate([used - 1.0, share.sum(axis=1) - 1.0, short]), initial=0.0))
