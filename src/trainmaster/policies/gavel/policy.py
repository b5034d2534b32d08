"""Gavel's policies in the engine: time shares by optimisation, turned into rounds.

Two mechanisms. `original` is the one of the paper's artefact, for comparison: within a round nothing changes
(workers of jobs that end stay idle until the round is over). `backfill`, the default, gives freed devices to
waiting jobs at once and skips rounds in which nothing could change. Both recompute shares when jobs came or
went, `backfill` also when speeds changed, at least 1920 s apart.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from trainmaster.model.draft import Draft
from trainmaster.model.errors import InputError
from trainmaster.model.memo import Memo
from trainmaster.model.plan import Plan
from trainmaster.model.reasons import Why
from trainmaster.model.snapshot import Snapshot
from trainmaster.model.units import MS_PER_S
from trainmaster.policies.gavel import sharing
from trainmaster.policies.gavel.objectives import NO_PAIRS, POLICIES
from trainmaster.policies.gavel.realising import each_alone, with_companions
from trainmaster.policies.gavel.round_pass import BY_TYPE, ONLY_POSITIVE, SHUFFLED, survey
from trainmaster.policies.gavel.round_rule import shares_are_due
from trainmaster.policies.gavel.round_state import RoundState, round_ms, speeds_of
from trainmaster.policies.gavel.shares import QUEUES, compute_shares
from trainmaster.policies.registry import register

Floats = npt.NDArray[np.float64]

RESET_MS = 1_920_000
"""The original's least time between two computations of the shares."""
CHANGED_SPEED = 0.05
"""A speed that is now believed to differ by this part makes the shares stale."""
MECHANISMS = ("backfill", "original")
_TIME_DEPENDENT = frozenset({"gavel-ftf", "gavel-makespan", "gavel-cost-slo", "gavel-fifo", "gavel-sjf"})
"""Policies whose shares change while the jobs stay the same."""
_MAY_STARVE = frozenset({"gavel-throughput", "gavel-cost", "gavel-cost-slo", "gavel-sjf", "allox"})


def _registered(cls: type) -> type:
    for name in POLICIES:
        register(name, fair=name not in _MAY_STARVE, allocation=name)(cls)
    return cls


@_registered
@dataclass(frozen=True)
class GavelPolicy:
    """Time shares by optimisation over accelerator types, realised in rounds (Narayanan et al., OSDI'20)."""

    allocation: str = "gavel-max-min"
    aware: bool = field(default=True, metadata={"help": "false: blind to what each type is worth to each job"})
    space_sharing: bool = field(default=False, metadata={"help": "two jobs may share the same GPUs"})
    mechanism: str = field(default="backfill", metadata={"help": "backfill, or original for comparison"})
    patience_s: float = field(
        default=7200.0, metadata={"help": "a job that has waited so long goes first (0: never; not in `original`)"}
    )
    solver: str = field(default="auto", metadata={"help": "auto | prices | highs"})
    own_rounds = True

    def __post_init__(self) -> None:
        if self.mechanism not in MECHANISMS:
            raise InputError(f"option 'mechanism' is '{self.mechanism}'", expected=" or ".join(MECHANISMS))
        if self.space_sharing and self.allocation in NO_PAIRS:
            raise InputError(f"policy '{self.allocation}' cannot share GPUs", remedy="Leave out space_sharing.")
        if self.solver not in ("auto", "prices", "highs"):
            raise InputError(f"option 'solver' is '{self.solver}'", expected="auto, prices or highs")

    @property
    def shares(self) -> bool:
        """Whether it puts two jobs on the same GPUs where it knows how they fare; Gandiva always does."""
        return self.space_sharing or self.allocation == "gandiva"

    @property
    def fair(self) -> bool:
        """The original mechanism can starve a gang that needs most of a type; patience prevents that."""
        return self.allocation not in _MAY_STARVE and self.mechanism != "original" and self.patience_s > 0

    @property
    def preferred_placement(self) -> str | None:
        """The original knows no nodes: it only counts GPUs of each type."""
        return "count" if self.mechanism == "original" else None

    @property
    def queueing(self) -> int:
        """The original goes through one type after the other, in an order that changes unless the policy knows what
        types are worth."""
        if self.mechanism != "original":
            return 0
        blind = not self.shares and (not self.aware or self.allocation == "isolated")
        return BY_TYPE | (SHUFFLED if blind else 0) | (ONLY_POSITIVE if self.allocation in QUEUES else 0)

    def renew_shares(self, view: Snapshot) -> tuple[Memo, list[str]]:
        """What to remember when shares are due (see `rule`), and notes; `decide` does the same before its round."""
        state, notes = RoundState.recall(view, self.allocation), []
        state.own()
        new = state.known == 0.0
        state.received_s[new] = round_ms(view) / MS_PER_S / 2.0
        worker_s = _begin_anew(self, view, state, notes)
        state.values.update(worker_s=worker_s.tolist())
        return state.memo(), notes

    def decide(self, view: Snapshot) -> Plan:
        return _rounds(self, view, RoundState.recall(view, self.allocation))


def _rounds(policy: GavelPolicy, view: Snapshot, state: RoundState) -> Plan:
    """One decision of the mechanism: a new round, or (unless `original`) a look at free devices inside one."""
    draft = view.draft()
    values, jobs = state.values, view.jobs
    ints = jobs.columns.ints
    original = policy.mechanism == "original"
    round_s = round_ms(view) / MS_PER_S
    round_end_ms = int(values.get("round_end_ms", 0))
    holding, beside, n_new, n_computed, to_run = survey(
        jobs.slots, state.share, state.known, view.now_ms, ints["phase"], ints["workers"], ints["held_gpu_milli"],
        ints["worker_gpu_milli"], ints["ask_gpu_milli"], ints["preemptible"], ints["not_before_ms"],
    )  # fmt: skip
    if (jobs.ask_gpu_milli == 0).any():
        holding = _start_without_gpus(view, draft)
    inside = holding and view.now_ms < round_end_ms
    if beside:
        sharing.take_whole_devices(view, draft)
    if inside and original:
        return draft.plan(memo=view.memo, wake_at_ms=round_end_ms, default=Why.NEXT_ROUND)
    worker_s = np.array(values.get("worker_s", [0.0] * len(view.cluster.types)))
    last_reset_ms = int(values.get("last_reset_ms", 0))
    due = not inside and _recompute_due(policy, view, state, last_reset_ms, n_computed, to_run)
    if n_new or due:
        state.own()
    else:
        state.received_s = state.received_s.copy()
    if n_new:
        new = state.known == 0.0
        state.received_s[new] = round_s / 2.0
        worker_s += n_new * round_s / 2.0
        state.known[new] = 0.5
    if due:
        worker_s = _begin_anew(policy, view, state, draft.notes)
    if not inside:
        round_end_ms = view.now_ms + round_ms(view)
    left_s = (round_end_ms - view.now_ms) / MS_PER_S
    together = beside or len(state.pairs) > 0
    realise = with_companions if together else each_alone
    longest_s, idle = realise(policy, view, state, draft, worker_s, inside, left_s)
    if original and longest_s >= 0.0:  # the round is over when its longest slice is; jobs that end with it are gone
        round_end_ms = view.now_ms + int(np.ceil(longest_s * MS_PER_S)) + 1
    state.pairs.write(view, values)
    values.update(round_end_ms=round_end_ms, worker_s=worker_s.tolist())
    values.setdefault("last_reset_ms", last_reset_ms)
    return draft.plan(memo=state.memo(), wake_at_ms=None if idle and not original else round_end_ms, default=Why.SHARE)


def _start_without_gpus(view: Snapshot, draft: Draft) -> bool:
    """Jobs that need no GPU have no share of any: they take part in no round, start as soon as there is room and run
    to their end. Returns whether a job of the rounds holds devices."""
    jobs = view.jobs
    ready = view.waiting_rows()
    draft.place_rows(ready[jobs.ask_gpu_milli[ready] == 0])
    return bool((jobs.holding & (jobs.ask_gpu_milli > 0)).any())


def _begin_anew(policy: GavelPolicy, view: Snapshot, state: RoundState, notes: list[str]) -> Floats:
    """Compute the shares of the jobs now present, and count from here what each receives. What a job had less than
    was due to it is remembered. Returns the time given on each type, which begins with half a round for each job."""
    values, half_s = state.values, round_ms(view) / MS_PER_S / 2.0
    elapsed_s = (view.now_ms - int(values.get("last_reset_ms", 0))) / MS_PER_S
    state.deficit_s += state.share * elapsed_s - (state.received_s - half_s)
    state.received_s[:] = half_s
    compute_shares(policy, view, state, notes)
    values.update(
        computed_jobs=len(view.jobs), nodes_up=int(np.count_nonzero(view.up)), last_reset_ms=view.now_ms
    )  # fmt: skip
    return np.full(len(view.cluster.types), (len(view.jobs) + len(state.pairs)) * half_s)


def _recompute_due(
    policy: GavelPolicy, view: Snapshot, state: RoundState, last_reset_ms: int, n_computed: int, to_run: bool
) -> bool:
    """Shares are computed anew when jobs or nodes came or went or (unless `original`) speeds changed, at least 1920 s
    apart; sooner when the present shares leave nothing to run, and (unless `original`) for policies whose shares
    change with time."""
    values = state.values
    stale = (
        n_computed < len(view.jobs)
        or n_computed != values.get("computed_jobs", 0)
        or int(np.count_nonzero(view.up)) != values.get("nodes_up", 0)
    )
    original, time_dependent = policy.mechanism == "original", policy.allocation in _TIME_DEPENDENT
    stale = stale or (not original and _speeds_changed(view, state))
    to_run = to_run or len(state.pairs) > 0
    return shares_are_due(original, time_dependent, stale, to_run, view.now_ms, last_reset_ms, RESET_MS)


def _speeds_changed(view: Snapshot, state: RoundState) -> bool:
    """Whether something was measured that the shares do not know."""
    now = speeds_of(view)
    return bool((np.abs(now - state.speeds) > CHANGED_SPEED * np.maximum(now, state.speeds)).any())
