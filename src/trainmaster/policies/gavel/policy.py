"""Gavel's policies in the engine: time shares by optimisation, turned into rounds.

Two mechanisms. `original` is the one of the paper's artefact, for comparison: within a round nothing changes
(workers of jobs that end stay idle until the round is over). `backfill`, the default, gives freed devices to
waiting jobs at once and skips rounds in which nothing could change. Both recompute shares when jobs came or
went, `backfill` also when speeds changed, at least 1920 s apart.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from trainmaster.model.errors import InputError
from trainmaster.model.job import P
from trainmaster.model.memo import Memo
from trainmaster.model.placement import Strategy
from trainmaster.model.plan import Plan
from trainmaster.model.reasons import Why
from trainmaster.model.snapshot import Draft, Snapshot
from trainmaster.model.units import GPU_MILLI, MS_PER_S
from trainmaster.policies.gavel import elastic, sharing
from trainmaster.policies.gavel.catalogue import NO_PAIRS, POLICIES, allocate
from trainmaster.policies.gavel.levels import isolated_share
from trainmaster.policies.gavel.pair_book import PairBook
from trainmaster.policies.gavel.pairing import possible_pairs
from trainmaster.policies.gavel.problem import AllocationProblem, Entity, Pairs, Status
from trainmaster.policies.gavel.published import (
    LINEAR,
    finish_time_share,
    linear_share,
    makespan_share,
    spread_over_types,
)
from trainmaster.policies.gavel.round_pass import (
    BY_TYPE,
    ONLY_POSITIVE,
    SHUFFLED,
    choose,
    competitors,
    give_time,
    survey,
    types_in_turn,
)
from trainmaster.policies.gavel.round_rule import RoundRule, shares_are_due, type_order
from trainmaster.policies.gavel.rounds import priorities
from trainmaster.policies.registry import register

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

DEFAULT_ROUND_MS = 360_000
RESET_MS = 1_920_000
"""The original's least time between two computations of the shares."""
CHANGED_SPEED = 0.05
"""A speed that is now believed to differ by this part makes the shares stale."""
MECHANISMS = ("backfill", "original")
_TIME_DEPENDENT = frozenset({"gavel-ftf", "gavel-makespan", "gavel-cost-slo", "gavel-fifo", "gavel-sjf"})
"""Policies whose shares change while the jobs stay the same."""
_ISOLATED = frozenset({"gavel-ftf"})
"""Policies that count what a job would have had in isolation."""
_REMEMBERED = (
    "share", "received_s", "deficit_s", "known", "speeds", "isolated_s", "isolated_rate", "remaining_before",
)  # fmt: skip
_QUEUES = frozenset({"gavel-fifo", "gavel-sjf"})


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
    def rule(self) -> RoundRule | None:
        """Between two computations of the shares the rounds follow a rule, unless jobs share devices."""
        if self.shares:
            return None
        original = self.mechanism == "original"
        return RoundRule(
            original, self.allocation in _TIME_DEPENDENT, self.queueing, 0.0 if original else self.patience_s, RESET_MS,
            DEFAULT_ROUND_MS,
        )  # fmt: skip

    @property
    def queueing(self) -> int:
        """The original goes through one type after the other, in an order that changes unless the policy knows what
        types are worth."""
        if self.mechanism != "original":
            return 0
        blind = not self.shares and (not self.aware or self.allocation == "isolated")
        return BY_TYPE | (SHUFFLED if blind else 0) | (ONLY_POSITIVE if self.allocation in _QUEUES else 0)

    def renew_shares(self, view: Snapshot) -> tuple[Memo, list[str]]:
        """What to remember when shares are due (see `rule`), and notes; `decide` does the same before its round."""
        state, notes = _State.recall(view, self.allocation), []
        state.own()
        new = state.known == 0.0
        state.received_s[new] = _round_ms(view) / MS_PER_S / 2.0
        worker_s = _begin_anew(self, view, state, notes)
        state.values.update(worker_s=worker_s.tolist())
        return state.memo(), notes

    def decide(self, view: Snapshot) -> Plan:
        return _rounds(self, view, _State.recall(view, self.allocation))


@dataclass
class _State:
    """What the mechanism remembers, aligned with the rows of the present snapshot."""

    share: Floats
    received_s: Floats
    deficit_s: Floats
    known: Floats
    speeds: Floats
    """Steps per second by type for which the shares were computed."""
    isolated_s: Floats
    isolated_rate: Floats
    remaining_before: Floats
    values: dict[str, Any]
    pairs: PairBook

    @classmethod
    def recall(cls, view: Snapshot, allocation: str) -> _State:
        """As it was remembered. What the view holds is not to be written: `own` copies it first."""
        n, types = len(view.jobs), len(view.cluster.types)
        columns, values = view.memo.columns, dict(view.memo.values)

        def matrix(name: str) -> Floats:
            found = columns.get(name)
            return np.zeros((n, types)) if found is None or found.shape != (n, types) else found

        def vector(name: str, used: bool = True) -> Floats:
            found = columns.get(name) if used else None
            return np.zeros(n if used else 0) if found is None or found.ndim != 1 else found

        share, received_s, isolated = matrix("share"), matrix("received_s"), allocation in _ISOLATED
        if values.get("pairs"):
            share, received_s = share.copy(), received_s.copy()
        return cls(
            share, received_s, matrix("deficit_s"), vector("known"), matrix("speeds"),
            vector("isolated_s", isolated), vector("isolated_rate", isolated), vector("remaining_before", isolated),
            values, PairBook.recall(view, values, share, received_s),
        )  # fmt: skip

    def own(self) -> None:
        """Make everything this state's own, to be written."""
        for name in _REMEMBERED:
            setattr(self, name, getattr(self, name).copy())

    def memo(self) -> Memo:
        return Memo(self.values, {name: getattr(self, name) for name in _REMEMBERED if len(getattr(self, name))})


def _round_ms(view: Snapshot) -> int:
    """At least twice the restart cost: in shorter rounds jobs that take turns would never get anywhere."""
    return max(view.round_ms or DEFAULT_ROUND_MS, 2 * view.restart_cost_ms)


def _speeds(view: Snapshot) -> Floats:
    """What a job makes of each type: on one node, or spread where the gang is larger than any node of the type."""
    jobs = view.jobs
    speeds = np.where(jobs.allowed, jobs.throughput, 0.0)
    if view.placement == Strategy.COUNT:
        return speeds
    largest = np.zeros(len(view.cluster.types))
    np.maximum.at(largest, view.cluster.type_of, view.cluster.gpus)
    apart = _asked_gpus(view)[:, None] > largest[None, :]
    return np.where(apart & jobs.allowed, jobs.throughput_spread, speeds) if apart.any() else speeds


def _asked_gpus(view: Snapshot) -> Floats:
    return view.jobs.ask_gpu_milli / GPU_MILLI


def _compute(policy: GavelPolicy, view: Snapshot, state: _State, notes: list[str]) -> None:
    """Solve for the shares of the jobs now present and store them."""
    jobs, cluster = view.jobs, view.cluster
    ints, floats = jobs.columns.ints, jobs.columns.floats
    rows, speeds, gpus, left, elapsed_s, slo_s, remaining = competitors(
        jobs.slots, view.now_ms, view.placement == Strategy.COUNT, ints["arrival"], ints["phase"],
        ints["ask_gpu_milli"], ints["submit_ms"], ints["deadline_ms"], ints["as_of_ms"], ints["productive_ms"],
        floats["work_done"], floats["work_total"], floats["rate"], jobs.columns.allowed, jobs.columns.throughput,
        jobs.columns.throughput_spread, cluster.type_of, cluster.gpus,
    )  # fmt: skip
    slots = jobs.slots[rows]
    state.share[:] = 0.0
    state.known[:] = 1.0
    state.speeds[:] = _speeds(view)
    state.pairs = PairBook.empty(len(view.cluster.types))
    if len(rows) == 0 or not view.up_gpus_by_type.any():
        return
    if policy.allocation == "gavel-ftf":
        done = np.where(state.isolated_rate > 0, state.remaining_before - remaining, 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            state.isolated_s += np.where(state.isolated_rate > 0, done / state.isolated_rate, 0.0)
    entities, entity_of = _entities(view, rows) if policy.allocation == "gavel-hierarchical" else ((), None)
    problem = AllocationProblem(
        throughput=speeds,
        gpus=gpus,
        counts=view.up_gpus_by_type,
        weight=floats["weight"][slots],
        steps_remaining=left,
        elapsed_s=elapsed_s,
        slo_s=slo_s,
        cost_per_hour=np.nan_to_num(cluster.prices, nan=1.0),
        allowed=jobs.columns.allowed[slots],
        isolated_so_far_s=state.isolated_s[rows] if len(state.isolated_s) else np.zeros(len(rows)),
        type_names=cluster.types,
        entities=entities,
        entity_of=entity_of,
        pairs=_pairs(policy, view, rows, notes),
    )
    if (problem.slo_s <= 0).any():  # an SLO that has passed constrains nothing any more
        problem = _without_past_slos(problem)
    options: dict[str, Any] = {"solver": policy.solver}
    if policy.allocation not in ("allox", "gandiva", "isolated"):  # those know no blind form
        options["aware"] = policy.aware
    if policy.allocation not in NO_PAIRS:
        options["space_sharing"] = problem.pairs is not None
    published = policy.mechanism == "original" and problem.pairs is None
    share = (
        linear_share(problem, policy.allocation, policy.aware) if published and policy.allocation in LINEAR else None
    )
    if share is None:
        # Not from the prices of the last time: that is quicker, but ends at corners that make jobs move more often.
        result = allocate(problem, policy.allocation, options)
        if result.status != Status.OPTIMAL:
            notes.append(f"{policy.allocation}: {result.status.value}: {result.fallback}")
        share = result.share
        state.pairs = PairBook.of_result(view, rows, problem.pairs, result, _round_ms(view) / MS_PER_S / 2.0)
        if published and policy.allocation == "gavel-makespan":
            share = makespan_share(problem, policy.aware, result)
        elif published and policy.allocation == "gavel-ftf":
            share = finish_time_share(problem, policy.aware, result)
        elif not (published or policy.aware or policy.allocation in _QUEUES) and problem.pairs is None:
            share = spread_over_types(problem, result)
    state.share[rows] = share
    if policy.allocation == "gavel-ftf":
        state.isolated_rate[:] = 0.0
        state.isolated_rate[rows] = (isolated_share(problem) * np.where(problem.usable, problem.throughput, 0.0)).sum(
            axis=1
        )
        state.remaining_before[:] = np.nan_to_num(remaining)


def _pairs(policy: GavelPolicy, view: Snapshot, rows: Ints, notes: list[str]) -> Pairs | None:
    if not policy.shares:
        return None
    pairs, known = possible_pairs(view, rows, _speeds(view))
    if known is False and policy.space_sharing:
        notes.append(f"{policy.allocation}: no speeds of jobs that share GPUs are known; each runs alone")
    return pairs


def _without_past_slos(problem: AllocationProblem) -> AllocationProblem:
    return replace(problem, slo_s=np.where(problem.slo_s > 0, problem.slo_s, np.nan))


def _entities(view: Snapshot, rows: Ints) -> tuple[tuple[Entity, ...], Ints]:
    """Teams from the jobs' entity names; `a/b/c` nests. Weights come from the view (default 1)."""
    names: list[str] = []
    index: dict[str, int] = {}
    made: list[Entity] = []

    def intern(name: str) -> int:
        if name not in index:
            parent = name.rpartition("/")[0]
            above = intern(parent) if parent else None
            index[name] = len(made)
            names.append(name)
            made.append(Entity(name, view.entity_weights.get(name, 1.0), "fairness", above))
        return index[name]

    known = view.jobs.entities
    of = [intern(known[e] or "default") for e in view.jobs.entity[rows].tolist()]
    return tuple(made), np.array(of, np.int64)


def _changeable(view: Snapshot) -> npt.NDArray[np.bool_]:
    """Rows whose allocation may be changed now."""
    jobs = view.jobs
    phase = jobs.phase
    running = (phase == P.RUNNING) & (jobs.preemptible > 0)
    waiting = (phase == P.PENDING) & (jobs.not_before_ms <= view.now_ms)
    return (running | waiting | (phase == P.RESERVED)) & (jobs.ask_gpu_milli > 0)


def _free_after(view: Snapshot, rows: npt.NDArray[np.bool_]) -> Floats:
    """GPUs of each type when the given rows hold nothing."""
    jobs = view.jobs
    held = rows & jobs.holding & (jobs.held_type >= 0)
    gpus = jobs.held_gpu_milli[held] / GPU_MILLI
    return view.free_gpus_by_type + np.bincount(jobs.held_type[held], weights=gpus, minlength=len(view.cluster.types))


def _rounds(policy: GavelPolicy, view: Snapshot, state: _State) -> Plan:
    """One decision of the mechanism: a new round, or (unless `original`) a look at free devices inside one."""
    draft = view.draft()
    values, jobs = state.values, view.jobs
    ints = jobs.columns.ints
    original = policy.mechanism == "original"
    round_s = _round_ms(view) / MS_PER_S
    round_end_ms = int(values.get("round_end_ms", 0))
    holding, beside, n_new, n_computed, to_run = survey(
        jobs.slots, state.share, state.known, view.now_ms, ints["phase"], ints["workers"], ints["held_gpu_milli"],
        ints["worker_gpu_milli"], ints["ask_gpu_milli"], ints["preemptible"], ints["not_before_ms"],
    )  # fmt: skip
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
        round_end_ms = view.now_ms + _round_ms(view)
    left_s = (round_end_ms - view.now_ms) / MS_PER_S
    together = beside or len(state.pairs) > 0
    realise = _with_companions if together else _each_alone
    longest_s, idle = realise(policy, view, state, draft, worker_s, inside, left_s)
    if original and longest_s >= 0.0:  # the round is over when its longest slice is; jobs that end with it are gone
        round_end_ms = view.now_ms + int(np.ceil(longest_s * MS_PER_S)) + 1
    state.pairs.write(view, values)
    values.update(round_end_ms=round_end_ms, worker_s=worker_s.tolist())
    values.setdefault("last_reset_ms", last_reset_ms)
    return draft.plan(memo=state.memo(), wake_at_ms=None if idle and not original else round_end_ms, default=Why.SHARE)


def _begin_anew(policy: GavelPolicy, view: Snapshot, state: _State, notes: list[str]) -> Floats:
    """Compute the shares of the jobs now present, and count from here what each receives. What a job had less than
    was due to it is remembered. Returns the time given on each type, which begins with half a round for each job."""
    values, half_s = state.values, _round_ms(view) / MS_PER_S / 2.0
    elapsed_s = (view.now_ms - int(values.get("last_reset_ms", 0))) / MS_PER_S
    state.deficit_s += state.share * elapsed_s - (state.received_s - half_s)
    state.received_s[:] = half_s
    _compute(policy, view, state, notes)
    values.update(
        computed_jobs=len(view.jobs), nodes_up=int(np.count_nonzero(view.up)), last_reset_ms=view.now_ms
    )  # fmt: skip
    return np.full(len(view.cluster.types), (len(view.jobs) + len(state.pairs)) * half_s)


def _each_alone(
    policy: GavelPolicy, view: Snapshot, state: _State, draft: Draft, worker_s: Floats, inside: bool, left_s: float
) -> tuple[float, bool]:
    """Choose and place the jobs of this round, each with its devices to itself, and count the time that they will
    have had. Returns (the longest slice of time or -1, whether no later round could change anything)."""
    jobs, cluster = view.jobs, view.cluster
    columns, ints, floats = jobs.columns, jobs.columns.ints, jobs.columns.floats
    original = policy.mechanism == "original"
    chosen, rows, stop, start, kinds, speeds, by_arrival = choose(
        jobs.slots, state.share, state.received_s, state.deficit_s, state.known, worker_s, view.now_ms, inside,
        policy.queueing, type_order(cluster.types), 0.0 if original else policy.patience_s,
        view.placement == Strategy.COUNT, ints["arrival"], ints["phase"], ints["preemptible"], ints["not_before_ms"],
        ints["ask_gpu_milli"], ints["workers"], ints["held_type"], ints["held_gpu_milli"], ints["waiting_since_ms"],
        columns.allowed, columns.throughput, columns.throughput_spread, cluster.type_of, view.up, cluster.gpus,
        view.ledger.device_milli,
    )  # fmt: skip
    stretchy = elastic.elastic_rows(view)
    if original or not stretchy.any():
        draft.release_rows(stop)
        chosen[draft.place_on(start, kinds)] = -1
    else:
        chosen[elastic.turn_over(view, draft, stretchy, chosen, stop, start, kinds)] = -1
        elastic.fill(view, draft, stretchy, rows)
    longest_s, waiting, could_move = give_time(
        jobs.slots, chosen, rows, speeds, by_arrival, state.share, state.received_s, worker_s, left_s, view.now_ms,
        ints["phase"], ints["workers"], ints["held_type"], ints["as_of_ms"], ints["productive_ms"],
        floats["work_done"], floats["work_total"], floats["rate"],
    )  # fmt: skip
    return longest_s, not (waiting or could_move)


def _with_companions(
    policy: GavelPolicy, view: Snapshot, state: _State, draft: Draft, worker_s: Floats, inside: bool, left_s: float
) -> tuple[float, bool]:
    """The same where jobs share devices, or may."""
    jobs, book = view.jobs, state.pairs
    original = policy.mechanism == "original"
    rows = _changeable(view)
    if inside:
        rows &= ~jobs.holding
    speeds = _speeds(view)
    fraction = np.where(worker_s > 0, state.received_s / np.maximum(worker_s, 1e-12), 0.0)
    priority = np.where(speeds > 0, priorities(state.share, fraction), 0.0)
    if not original and policy.patience_s > 0:
        priority = _with_patience(policy, view, priority, state.share)
    due = priorities(book.share, np.where(worker_s > 0, book.received_s / np.maximum(worker_s, 1e-12), 0.0))
    by_arrival = np.argsort(jobs.arrival, kind="stable")
    chosen, pair_of = sharing.choose(
        book, priority, due, state.deficit_s, state.share, _asked_gpus(view), _free_after(view, rows), rows,
        speeds > 0, types_in_turn(speeds.sum(axis=0), policy.queueing, type_order(view.cluster.types), view.now_ms),
        by_arrival, policy.queueing, split=not original,
    )  # fmt: skip
    if original:  # jobs that the shares do not know yet take room and do not run
        chosen[state.known < 1.0] = -1
    sharing.assign(view, draft, chosen, pair_of, book, rows, by_arrival)
    at = view.in_arrival_order(np.flatnonzero(chosen >= 0))
    slice_s = _slices(view, chosen, sharing.speeds_beside(speeds, book, chosen, pair_of), left_s)
    alone = at[pair_of[at] < 0]
    state.received_s[alone, chosen[alone]] += slice_s[alone]
    worker_s += np.bincount(chosen[alone], weights=slice_s[alone], minlength=len(worker_s))
    for pair in np.unique(pair_of[pair_of >= 0]).tolist():  # a pair has its time once, as long as either runs
        longest_s, kind = float(slice_s[book.rows[pair]].max()), int(chosen[book.rows[pair, 0]])
        book.received_s[pair, kind] += longest_s
        worker_s[kind] += longest_s
    waiting = bool((rows & (chosen < 0)).any()) or bool((jobs.waiting & ~rows).any())
    shared = bool((pair_of >= 0).any())
    idle = not waiting and not shared and not _could_move(view, chosen, rows, speeds, state.share)
    return float(slice_s[at].max()) if len(at) else -1.0, idle


def _recompute_due(
    policy: GavelPolicy, view: Snapshot, state: _State, last_reset_ms: int, n_computed: int, to_run: bool
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


def _speeds_changed(view: Snapshot, state: _State) -> bool:
    """Whether something was measured that the shares do not know."""
    now = _speeds(view)
    return bool((np.abs(now - state.speeds) > CHANGED_SPEED * np.maximum(now, state.speeds)).any())


def _with_patience(policy: GavelPolicy, view: Snapshot, priority: Floats, share: Floats) -> Floats:
    """Shares alone starve large gangs when small jobs keep coming: who has waited too long goes first."""
    jobs = view.jobs
    waited_s = np.where(jobs.waiting, view.now_ms - jobs.waiting_since_ms, 0) / MS_PER_S
    late = waited_s >= policy.patience_s
    if not late.any():
        return priority
    speeds = _speeds(view)
    wanted = np.where(share > 0, share, 1e-6 * (speeds > 0))
    return np.where(late[:, None], 1e15 * waited_s[:, None] + wanted, priority) * (speeds > 0)


def _slices(view: Snapshot, chosen: Ints, speeds: Floats, round_s: float) -> Floats:
    """How long each chosen job runs in this round: whole steps that fit in it, or until its end."""
    speed = np.where(chosen >= 0, speeds[np.arange(len(chosen)), np.maximum(chosen, 0)], 1.0)
    steps = np.floor(speed * round_s)
    steps = np.where(steps >= 1, steps, speed * round_s)
    return np.fmin(steps, view.jobs.remaining) / np.where(speed > 0, speed, 1.0)


def _could_move(view: Snapshot, chosen: Ints, rows: npt.NDArray[np.bool_], speeds: Floats, share: Floats) -> bool:
    """Whether a job that runs has a claim to a faster type than the one it is on."""
    now = np.where(rows, chosen, np.where(view.jobs.holding, view.jobs.held_type, -1))
    at = np.flatnonzero(now >= 0)
    if len(at) == 0:
        return False
    mine = speeds[at, now[at]]
    return bool(((speeds[at] > mine[:, None] * 1.001) & (share[at] > 1e-6)).any())
