"""Water filling and hierarchical fairness (section 4.3): exact lexicographic max-min, any depth, any size.

The level rises; every job's target r_m(level) follows from the tree of entities. A stage finds the largest level whose
targets fit, and prices q that prove it:  sum_m cost_m(r_m, q) = 1. In every allocation that keeps these targets the
priced types are used to the last, and only by jobs that cannot do without. Hence

- a job whose unpriced types give it no more than its target is stuck: more would cost something, and all is spent;
- every other job is served by unpriced types alone, now and in all that follows, so the priced types leave its list,
  and its full speed is that of the fastest type left. Reaching it needs no stage: the tree lets it stop there.

So every stage uses up at least one more type and there are at most J stages, however many jobs there are. The prices of
all stages together prove the result: whoever raises a job that got stuck in a stage must lower one that got stuck there
or earlier. `gap` is how far that proof (`filling_proof`) and the final allocation are from exact.
"""

from __future__ import annotations

import numpy as np

from trainmaster.policies.gavel.objectives.entity_tree import EntityTree
from trainmaster.policies.gavel.objectives.filling_proof import AT_FULL_SPEED, Stage, proof_gap, shares_gap
from trainmaster.policies.gavel.objectives.water_filling_pairs import fill_with_programs
from trainmaster.policies.gavel.problem import (
    AllocationProblem,
    AllocationResult,
    BoolArray,
    FloatArray,
    Pairs,
    effective_throughput,
    judged,
)
from trainmaster.policies.gavel.solver.cutting_plane import Ascent, LevelSearch, Replies
from trainmaster.policies.gavel.solver.program import CERTIFIED_GAP


def water_filling(problem: AllocationProblem, aware: bool, pairs: Pairs | None, solver: str) -> AllocationResult:
    """Lexicographic max-min of normalised throughput."""
    return _fill(problem, aware, pairs, solver, EntityTree(problem.weight, (), None))


def hierarchical(problem: AllocationProblem, aware: bool, pairs: Pairs | None, solver: str) -> AllocationResult:
    """The same, where levels rise through the tree of entities."""
    return _fill(problem, aware, pairs, solver, EntityTree(problem.weight, problem.entities, problem.entity_of))


def _fill(
    problem: AllocationProblem, aware: bool, pairs: Pairs | None, solver: str, tree: EntityTree
) -> AllocationResult:
    throughput, prop = problem.normalised(aware)
    prop = np.where(prop > 0.0, prop, 1.0)
    unit = prop / problem.gpus
    if pairs is not None or solver == "highs":
        return fill_with_programs(problem, throughput, pairs, solver, tree, prop, unit)
    filling = Filling(problem, throughput, tree, unit)
    filling.run()
    share = filling.share()
    got = effective_throughput(throughput, None, share, None)
    proof = proof_gap(problem, throughput, tree, unit, filling.stages)
    gap = float(np.max([proof, shares_gap(problem, share, got, filling.stages)]))  # NaN stays
    unproven = "the levels found are not proven; the best shares found are returned"
    return judged(
        problem,
        share,
        gap <= CERTIFIED_GAP,
        unproven,
        normalized=got / prop,
        iterations=filling.passes,
        objective=float((got / prop).min()) if problem.job_count else 0.0,
        solves=len(filling.stages),
        gap=gap,
        solver="prices",
    )


class Filling:
    """The state of the filling: targets (steps/s), speeds still open to each job, and the prices of
    past stages."""

    def __init__(self, problem: AllocationProblem, throughput: FloatArray, tree: EntityTree, unit: FloatArray) -> None:
        self.gpus, self.tree, self.unit = problem.gpus, tree, unit
        self.counts: FloatArray = np.where(problem.counts > 0.0, problem.counts, 1.0)
        # speeds on the types that are not used up (for a stuck job: that were not, when it got stuck)
        self.open_speed: FloatArray = np.where(problem.usable, throughput, 0.0)
        self.full_speed: FloatArray = self.open_speed.max(axis=1, initial=0.0)
        self.targets: FloatArray = np.zeros(len(unit))
        self.stages: list[Stage] = []
        self.last: tuple[Ascent, FloatArray] | None = None
        self.passes = 0

    def run(self) -> None:
        for _ in range(len(self.counts) + 1):  # each stage uses up a type
            rising = self.targets < self.full_speed * (1.0 - AT_FULL_SPEED)
            if not rising.any():
                return
            if not self._stage(rising):
                return

    def _stage(self, rising: BoolArray) -> bool:
        """Raise the level as far as it goes and close what is used up there. False: nothing holds
        any job back."""
        targets = self.tree.targets(np.where(rising, (self.full_speed - self.targets) / self.unit, 0.0))
        targets.rises_from(self.targets, self.unit)
        search = LevelSearch(Replies(self.open_speed, self.gpus), self.counts, targets)
        ascent = search.climb(0.0, targets.saturation_level(), stabilise=False)
        self.passes += ascent.passes
        self.targets = np.minimum(search.targets_at(ascent.level), self.full_speed)  # the last bit of a sum
        self.last = (ascent, self.open_speed)
        price = ascent.tangent / self.counts
        if not ascent.tangent.any():
            self.stages.append(Stage(price, self.open_speed, self.targets, np.zeros_like(rising)))
            return False
        unpriced = np.where(ascent.tangent > 0.0, 0.0, self.open_speed)
        most = unpriced.max(axis=1, initial=0.0)
        free = rising & (most > self.targets * (1.0 + AT_FULL_SPEED))
        self.stages.append(Stage(price, self.open_speed, self.targets, rising & ~free))
        self.open_speed = np.where(free[:, None], unpriced, self.open_speed)
        self.full_speed = np.where(free, most, self.targets)
        return True

    def share(self) -> FloatArray:
        """Shares that give every job its target."""
        if self.last is None:
            return np.zeros_like(self.open_speed)
        ascent, speed = self.last
        replies, prices = Replies(speed, self.gpus), ascent.basis_price / self.counts
        return replies.shares(self.targets, prices, ascent.basis_weight) / max(1.0, ascent.value)
