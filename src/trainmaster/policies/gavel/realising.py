"""One round from its shares: who runs on what, where, and what time each will have had."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from trainmaster.model.draft import Draft
from trainmaster.model.job import P
from trainmaster.model.placement import Strategy
from trainmaster.model.snapshot import Snapshot
from trainmaster.model.units import GPU_MILLI, MS_PER_S
from trainmaster.policies.gavel import elastic, sharing
from trainmaster.policies.gavel.round_pass import choose, give_time, types_in_turn
from trainmaster.policies.gavel.round_rule import type_order
from trainmaster.policies.gavel.round_state import RoundState, asked_gpus, speeds_of
from trainmaster.policies.gavel.rounds import priorities

if TYPE_CHECKING:
    from trainmaster.policies.gavel.policy import GavelPolicy

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def each_alone(
    policy: GavelPolicy, view: Snapshot, state: RoundState, draft: Draft, worker_s: Floats, inside: bool, left_s: float
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


def with_companions(
    policy: GavelPolicy, view: Snapshot, state: RoundState, draft: Draft, worker_s: Floats, inside: bool, left_s: float
) -> tuple[float, bool]:
    """The same where jobs share devices, or may."""
    jobs, book = view.jobs, state.pairs
    original = policy.mechanism == "original"
    rows = _changeable(view)
    if inside:
        rows &= ~jobs.holding
    speeds = speeds_of(view)
    fraction = np.where(worker_s > 0, state.received_s / np.maximum(worker_s, 1e-12), 0.0)
    priority = np.where(speeds > 0, priorities(state.share, fraction), 0.0)
    if not original and policy.patience_s > 0:
        priority = _with_patience(policy, view, priority, state.share)
    due = priorities(book.share, np.where(worker_s > 0, book.received_s / np.maximum(worker_s, 1e-12), 0.0))
    by_arrival = np.argsort(jobs.arrival, kind="stable")
    chosen, pair_of = sharing.choose(
        book, priority, due, state.deficit_s, state.share, asked_gpus(view), _free_after(view, rows), rows,
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


def _with_patience(policy: GavelPolicy, view: Snapshot, priority: Floats, share: Floats) -> Floats:
    """Shares alone starve large gangs when small jobs keep coming: who has waited too long goes first."""
    jobs = view.jobs
    waited_s = np.where(jobs.waiting, view.now_ms - jobs.waiting_since_ms, 0) / MS_PER_S
    late = waited_s >= policy.patience_s
    if not late.any():
        return priority
    speeds = speeds_of(view)
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
