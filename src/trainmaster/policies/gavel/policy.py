"""Gavel's policies in the engine (Narayanan et al., OSDI'20): time shares X by optimisation, turned into rounds.

Two mechanisms. `original` is the one of the paper's artefact, for comparison: within a round nothing changes
(workers of jobs that end stay idle until the round is over). `backfill`, the default, gives freed devices to
waiting jobs at once and skips rounds in which nothing could change. Both recompute shares when jobs came or
went, `backfill` also when speeds changed, at least 1920 s apart.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from trainmaster.core.int_list import IntList
from trainmaster.model.errors import InputError
from trainmaster.model.plan import Plan
from trainmaster.model.plan_builder import PlanBuilder
from trainmaster.model.policy import PolicyTraits
from trainmaster.model.reasons import Why
from trainmaster.model.snapshot import Snapshot
from trainmaster.policies.gavel import elastic, space_sharing
from trainmaster.policies.gavel.codes import BY_TYPE, ONLY_POSITIVE, SHUFFLED
from trainmaster.policies.gavel.objectives import NO_PAIRS, allocate
from trainmaster.policies.gavel.pair_state import PairState
from trainmaster.policies.gavel.problem import TEAM_POLICIES, AllocationProblem, AllocationResult
from trainmaster.policies.gavel.round_pass import RoundPass
from trainmaster.policies.gavel.round_state import RoundState, rows_of, teams_of
from trainmaster.policies.gavel.rounds import Rounds
from trainmaster.policies.gavel.shares import Shares, SolverTime
from trainmaster.policies.registry import register

RESET_MS = 1_920_000
"""The original's least time between two computations of the shares."""
MECHANISMS = ("backfill", "original")


@dataclass(frozen=True)
class RoundPolicy:
    """Time shares by optimisation over accelerator types, realised in rounds. An allocation is all that a policy of
    this kind has to say."""

    aware: bool = field(default=True, metadata={"help": "false: blind to what each type is worth to each job"})
    space_sharing: bool = field(default=False, metadata={"help": "two jobs may share the same GPUs"})
    mechanism: str = field(default="backfill", metadata={"help": "backfill, or original for comparison"})
    patience_s: float = field(
        default=7200.0, metadata={"help": "a job that has waited so long goes first (0: never; not in `original`)"}
    )
    solver: str = field(default="auto", metadata={"help": "auto | prices | highs"})
    name: ClassVar[str] = ""
    time_dependent: ClassVar[bool] = False
    """Shares change while the jobs stay the same."""
    may_starve: ClassVar[bool] = False
    has_blind_form: ClassVar[bool] = True
    solver_time: ClassVar[SolverTime]

    def __post_init__(self) -> None:
        if self.mechanism not in MECHANISMS:
            raise InputError(f"option 'mechanism' is '{self.mechanism}'", expected=" or ".join(MECHANISMS))
        if self.space_sharing and self.name in NO_PAIRS:
            raise InputError(f"policy '{self.name}' cannot share GPUs", remedy="Leave out space_sharing.")
        if self.solver not in ("auto", "prices", "highs"):
            raise InputError(f"option 'solver' is '{self.solver}'", expected="auto, prices or highs")

        object.__setattr__(self, "solver_time", SolverTime())

    def allocation(self, problem: AllocationProblem) -> AllocationResult:
        """Time shares X of the jobs of a problem."""
        aware = self.aware or not self.has_blind_form
        options = {"solver": self.solver, "aware": aware, "space_sharing": problem.pairs is not None}
        return allocate(problem, self.name, options)

    @property
    def is_original(self) -> bool:
        return self.mechanism == "original"

    @property
    def shares(self) -> bool:
        """Whether it puts two jobs on the same GPUs where it knows how they fare."""
        return self.space_sharing

    @property
    def inside_teams(self) -> str | None:
        """How teams of which nobody has said it divide what they get; None: it knows no teams."""
        return None

    @property
    def traits(self) -> PolicyTraits:
        """The original mechanism can starve a gang that needs most of a type; patience prevents that. It knows no
        nodes: it only counts GPUs of each type."""
        return PolicyTraits(
            own_rounds=True,
            fair=not self.may_starve and not self.is_original and self.patience_s > 0,
            placement="count" if self.is_original else None,
            compiled_pass=self.compiled_pass,
            shares_devices=self.shares,
        )

    @property
    def queueing(self) -> int:
        """The original goes through one type after the other, in an order that changes unless the policy knows what
        types are worth."""
        if not self.is_original:
            return 0
        blind = not self.shares and (not self.aware or self.name == "isolated")
        return BY_TYPE | (SHUFFLED if blind else 0) | (ONLY_POSITIVE if self.name in ("gavel-fifo", "gavel-sjf") else 0)

    def compiled_pass(self) -> RoundPass | None:
        """What the run loop calls; None: jobs share devices. Teams have names, which only a view knows."""
        return None if self.shares else RoundPass(self.rounds(), None if self.inside_teams else self)

    def rounds(self) -> Rounds:
        patience_s = 0.0 if self.is_original else self.patience_s
        return Rounds(self.is_original, self.time_dependent, self.queueing, patience_s, RESET_MS)

    def decide(self, view: Snapshot) -> Plan:
        """One decision of the mechanism: a new round, or (unless `original`) a look at free devices inside one."""
        rounds, state, which, builder = self.rounds(), RoundState.recall(view, self.name), rows_of(view), view.draft()
        state.bind(view, rounds)
        columns, now_ms, placement = view.jobs.columns, view.now_ms, int(view.placement)
        rounds.survey(columns, which, now_ms)
        if rounds.without_gpus:
            _start_without_gpus(view, builder)
        inside = rounds.is_inside(now_ms)
        if rounds.halved:
            space_sharing.take_whole_devices(view, builder)
        if inside and self.is_original:
            return builder.plan(memo=view.memo, wake_at_ms=rounds.round_end_ms, default=Why.NEXT_ROUND)
        teams = teams_of(view) if self.inside_teams else None
        pairs_version = view.pairs_version if self.shares else 0
        due = not inside and (
            teams != state.values.get("teams")
            or pairs_version != state.values.get("pairs_version", 0)
            or rounds.shares_are_due(columns, which, now_ms, view.nodes, placement)
        )
        left_s = rounds.begin(now_ms, inside)
        if due:
            if teams != state.values.get("teams"):
                state.values["teams"] = teams
            if pairs_version:
                state.values["pairs_version"] = pairs_version
            shares = Shares(self, view.cluster, view.nodes, placement)
            shares.renew(rounds, columns, which, now_ms, state.isolated, builder.notes, view)
            state.pairs = shares.pairs or PairState.empty(len(view.cluster.types))
            state.bind_pairs(rounds)
        rounds.choose(columns, which, now_ms, inside, view.nodes, view.free_capacity, placement)
        _bring_about(self, view, rounds, state, builder)
        rounds.give_time(columns, which, now_ms, left_s)
        wake_at_ms = rounds.end(now_ms)
        if pairs_version and len(state.pairs):
            wake_at_ms = rounds.round_end_ms  # by then a pair may have shown that it does not pay
        memo = state.memo(view, rounds)
        return builder.plan(memo=memo, wake_at_ms=None if wake_at_ms < 0 else wake_at_ms, default=Why.SHARE)


def _bring_about(policy: RoundPolicy, view: Snapshot, rounds: Rounds, state: RoundState, builder: PlanBuilder) -> None:
    """Stop and start jobs as the round wants it; who finds no room is not chosen."""
    if rounds.halved or rounds.pairs:
        space_sharing.assign(view, builder, rounds, state.pairs)
        return
    stop, start, gpu_types = _values(rounds.stop), _values(rounds.start), _values(rounds.gpu_types)
    if rounds.elastic and not policy.is_original:
        elastic_rows = elastic.elastic_rows(view)
        gpu_type_of = np.asarray(rounds.gpu_type_of)[: len(view.jobs)]
        failed = elastic.turn_over(view, builder, elastic_rows, gpu_type_of, stop, start, gpu_types)
        gpu_type_of[failed] = -1
        elastic.fill(view, builder, elastic_rows, np.asarray(rounds.movable)[: len(view.jobs)].view(np.bool_))
    else:
        builder.release_rows(stop)
        np.asarray(rounds.gpu_type_of)[builder.place_on(start, gpu_types)] = -1


def _values(items: IntList) -> npt.NDArray[np.int64]:
    return np.asarray(items.values)[: items.n]


def _start_without_gpus(view: Snapshot, builder: PlanBuilder) -> None:
    """Jobs that need no GPU have no share of any: they take part in no round, start as soon as there is room and run
    to their end."""
    ready = view.waiting_rows()
    builder.place_rows(ready[view.jobs.ask_gpu_milli[ready] == 0])


@register("gavel-max-min", fair=True)
class MaxMinFairness(RoundPolicy):
    """Max-min fairness (LAS): raises the lowest effective throughput, relative to an equal share of every type."""

    name = "gavel-max-min"


@register("gavel-ftf", fair=True)
class FinishTimeFairness(RoundPolicy):
    """Finish-time fairness (Themis): lowers the largest ratio of finish time to that with 1/n of the cluster."""

    name, time_dependent = "gavel-ftf", True


@register("gavel-makespan", fair=True)
class Makespan(RoundPolicy):
    """Makespan: finishes the last of the present jobs as early as possible."""

    name, time_dependent = "gavel-makespan", True


@register("gavel-throughput")
class TotalThroughput(RoundPolicy):
    """Total throughput: the most steps per second of all jobs together; slow jobs may starve."""

    name, may_starve = "gavel-throughput", True


@register("gavel-cost")
class Cost(RoundPolicy):
    """Cost: the most throughput per dollar, by the hourly prices of the types."""

    name, may_starve = "gavel-cost", True


@register("gavel-cost-slo")
class CostWithSlo(RoundPolicy):
    """Cost with SLOs: the most throughput per dollar such that every job meets its deadline, where that is possible."""

    name, time_dependent, may_starve = "gavel-cost-slo", True, True


@register("gavel-water-filling", fair=True)
class WaterFilling(RoundPolicy):
    """Water filling: max-min fairness that goes on for the others when a job cannot be raised any further."""

    name = "gavel-water-filling"


@register("gavel-hierarchical", fair=True)
@dataclass(frozen=True)
class Hierarchical(RoundPolicy):
    """Hierarchical fairness: weighted water filling among teams, and among the jobs of each (or they take turns)."""

    inside: str = field(default="fairness", metadata={"help": "fairness | fifo: of teams of which it is not said"})
    name: ClassVar[str] = "gavel-hierarchical"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.inside not in TEAM_POLICIES:
            raise InputError(f"option 'inside' is '{self.inside}'", expected=" or ".join(TEAM_POLICIES))

    @property
    def inside_teams(self) -> str:
        return self.inside


@register("gavel-fifo", fair=True)
class Fifo(RoundPolicy):
    """First come, first served: each job in turn gets the fastest type that still has room for it."""

    name, time_dependent = "gavel-fifo", True


@register("gavel-sjf")
class ShortestJobFirst(RoundPolicy):
    """Shortest job first: jobs in order of remaining time, each on the fastest type that still has room for it."""

    name, time_dependent, may_starve = "gavel-sjf", True, True


@register("allox")
class Allox(RoundPolicy):
    """AlloX (Le et al., EuroSys'20): the least total completion time of single-GPU jobs, by min-cost matching."""

    name, may_starve, has_blind_form = "allox", True, False


@register("gandiva", fair=True)
class Gandiva(RoundPolicy):
    """Gandiva (Xiao et al., OSDI'18): equal time slices, and pairs of jobs when the cluster is oversubscribed."""

    name, has_blind_form = "gandiva", False

    @property
    def shares(self) -> bool:
        return True


@register("isolated", fair=True)
class Isolated(RoundPolicy):
    """Isolated shares: every job has 1/n of every type; the baseline of sharing incentives."""

    name, has_blind_form = "isolated", False
