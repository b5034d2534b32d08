"""Time shares of the jobs that are present: the snapshot as an allocation problem, solved and written down."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from trainmaster.core.int_list import IntList
from trainmaster.core.job_arrays import work_done_column
from trainmaster.model.job import P
from trainmaster.model.snapshot import Snapshot
from trainmaster.model.units import GPU_MILLI, MS_PER_S, NEVER_MS
from trainmaster.policies.gavel.artifact.tie_breaks import (
    LINEAR,
    finish_time_share,
    linear_share,
    makespan_share,
    spread_over_types,
)
from trainmaster.policies.gavel.pair_book import PairBook
from trainmaster.policies.gavel.pairing import possible_pairs
from trainmaster.policies.gavel.problem import AllocationProblem, Entity, Pairs, Status
from trainmaster.policies.gavel.round_state import RoundState, round_ms
from trainmaster.policies.gavel.rounds import Rounds, count_up

if TYPE_CHECKING:
    from trainmaster.policies.gavel.policy import RoundPolicy

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
_QUEUES = frozenset({"gavel-fifo", "gavel-sjf"})


def renew(
    policy: RoundPolicy, view: Snapshot, state: RoundState, rounds: Rounds, which: IntList, notes: list[str]
) -> None:
    """Compute the shares of the jobs now present, and count from here what each receives. What a job had less than was
    due to it is remembered. The time given on each type begins with half a round for each job."""
    values, half_s = state.values, round_ms(view) / MS_PER_S / 2.0
    elapsed_s = (view.now_ms - rounds.last_reset_ms) / MS_PER_S
    state.deficit_s += state.share * elapsed_s - (state.received_s - half_s)
    state.received_s[:] = half_s
    speeds = rounds.find_speeds(view.jobs.columns, which, view.nodes, int(view.placement))
    compute_shares(policy, view, state, speeds, notes)
    state.bind_pairs(rounds)
    values.update(computed_jobs=len(view.jobs), nodes_up=count_up(view.nodes), last_reset_ms=view.now_ms)
    rounds.worker_s = np.full(len(view.cluster.types), (len(view.jobs) + len(state.pairs)) * half_s)


def compute_shares(policy: RoundPolicy, view: Snapshot, state: RoundState, speeds: Floats, notes: list[str]) -> None:
    """Solve for the shares of the jobs now present and store them."""
    columns, slots = view.jobs.columns, view.jobs.slots
    remaining = columns.floats["work_total"][slots] - work_done_column(columns, slots, view.now_ms)
    rows = _competitors(view)
    state.share[:] = 0.0
    state.known[:] = 1.0
    state.speeds[:] = speeds
    state.pairs = PairBook.empty(len(view.cluster.types))
    if len(rows) == 0 or not view.up_gpus_by_type.any():
        return
    if policy.name == "gavel-ftf":
        done = np.where(state.isolated_rate > 0, state.remaining_before - remaining, 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            state.isolated_s += np.where(state.isolated_rate > 0, done / state.isolated_rate, 0.0)
    problem = _problem(policy, view, state, rows, speeds, remaining[rows], notes)
    state.share[rows] = _solve(policy, view, state, rows, problem, notes)
    if policy.name == "gavel-ftf":
        state.isolated_rate[:] = 0.0
        isolated = problem.isolated_share * np.where(problem.usable, problem.throughput, 0.0)
        state.isolated_rate[rows] = isolated.sum(axis=1)
        state.remaining_before[:] = np.nan_to_num(remaining)


def _competitors(view: Snapshot) -> Ints:
    """Rows of the jobs that want GPUs (not paused, not lost with their node), in order of arrival."""
    jobs = view.jobs
    phase = jobs.phase
    return view.in_arrival_order(np.flatnonzero((phase != P.PAUSED) & (phase != P.LOST) & (jobs.ask_gpu_milli > 0)))


def _problem(
    policy: RoundPolicy, view: Snapshot, state: RoundState, rows: Ints, speeds: Floats, remaining: Floats,
    notes: list[str],
) -> AllocationProblem:  # fmt: skip
    """Work that is unknown counts as that of the longest job; an SLO that has passed constrains nothing any more."""
    columns, slots = view.jobs.columns, view.jobs.slots[rows]
    ints, known = columns.ints, np.isfinite(remaining)
    longest = float(remaining[known].max()) if known.any() else 1.0
    deadline_ms = ints["deadline_ms"][slots]
    slo_s = np.where(deadline_ms < NEVER_MS, (deadline_ms - view.now_ms) / MS_PER_S, np.nan)
    entities, entity_of = _entities(view, rows) if policy.name == "gavel-hierarchical" else ((), None)
    return AllocationProblem(
        throughput=speeds[rows],
        gpus=ints["ask_gpu_milli"][slots] / GPU_MILLI,
        counts=view.up_gpus_by_type,
        weight=columns.floats["weight"][slots],
        steps_remaining=np.maximum(np.where(known, remaining, longest), 1e-9),
        elapsed_s=(view.now_ms - ints["submit_ms"][slots]) / MS_PER_S,
        slo_s=np.where(slo_s > 0, slo_s, np.nan),
        cost_per_hour=np.nan_to_num(view.cluster.prices, nan=1.0),
        allowed=columns.allowed[slots],
        isolated_so_far_s=state.isolated_s[rows] if len(state.isolated_s) else np.zeros(len(rows)),
        type_names=view.cluster.types,
        entities=entities,
        entity_of=entity_of,
        pairs=_pairs(policy, view, rows, speeds, notes),
    )


def _solve(
    policy: RoundPolicy, view: Snapshot, state: RoundState, rows: Ints, problem: AllocationProblem, notes: list[str]
) -> Floats:
    """X; the original's, and that of a policy that is blind to types, among the optimal ones."""
    published = policy.is_original and problem.pairs is None
    if published and policy.name in LINEAR:
        share = linear_share(problem, policy.name, policy.aware)
        if share is not None:
            return share
    result = policy.allocation(problem)
    if result.status != Status.OPTIMAL:
        notes.append(f"{policy.name}: {result.status.value}: {result.fallback}")
    state.pairs = PairBook.of_result(view, rows, problem.pairs, result, round_ms(view) / MS_PER_S / 2.0)
    if published and policy.name == "gavel-makespan":
        return makespan_share(problem, policy.aware, result)
    if published and policy.name == "gavel-ftf":
        return finish_time_share(problem, policy.aware, result)
    if not (published or policy.aware or policy.name in _QUEUES) and problem.pairs is None:
        return spread_over_types(problem, result)
    return result.share


def _pairs(policy: RoundPolicy, view: Snapshot, rows: Ints, speeds: Floats, notes: list[str]) -> Pairs | None:
    if not policy.shares:
        return None
    pairs, known = possible_pairs(view, rows, speeds)
    if known is False and policy.space_sharing:
        notes.append(f"{policy.name}: no speeds of jobs that share GPUs are known; each runs alone")
    return pairs


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
