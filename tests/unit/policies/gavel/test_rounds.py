"""The compiled round against the same rules by columns (Gavel, OSDI'20, section 5), on rounds of simulated runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trainmaster.engine.engine import Settings
from trainmaster.model.cluster import parse_cluster
from trainmaster.model.job import PhaseCode
from trainmaster.model.placement import Strategy
from trainmaster.model.reasons import Why
from trainmaster.model.snapshot import Snapshot
from trainmaster.model.units import GPU_MILLI, MS_PER_S
from trainmaster.policies.gavel import codes
from trainmaster.policies.gavel import policy as gavel
from trainmaster.policies.gavel.round_state import RoundState
from trainmaster.policies.gavel.rounds import Rounds
from trainmaster.policies.registry import create
from trainmaster.sim.run import simulate
from trainmaster.testing.builders import a_job


def changeable(view: Snapshot) -> Any:
    """Rows whose allocation may be changed now."""
    jobs = view.jobs
    running = (jobs.phase == PhaseCode.RUNNING) & (jobs.preemptible > 0)
    waiting = (jobs.phase == PhaseCode.PENDING) & (jobs.not_before_ms <= view.now_ms)
    return (running | waiting | (jobs.phase == PhaseCode.RESERVED)) & (jobs.ask_gpu_milli > 0)


def speeds_of(view: Snapshot) -> Any:
    """On one node, or spread where the gang is larger than any node of the type."""
    jobs = view.jobs
    speeds = np.where(jobs.allowed, jobs.throughput, 0.0)
    if view.placement == Strategy.COUNT:
        return speeds
    largest = np.zeros(len(view.cluster.types))
    np.maximum.at(largest, view.cluster.type_of, view.cluster.gpus)
    apart = (jobs.ask_gpu_milli / GPU_MILLI)[:, None] > largest[None, :]
    return np.where(apart & jobs.allowed, jobs.throughput_spread, speeds)


def priorities(policy: Any, view: Snapshot, share: Any, received_s: Any, worker_s: Any, speeds: Any) -> Any:
    """share / received; a very large multiple of the share where nothing was received; the impatient first."""
    received = np.where(worker_s > 0, received_s / np.maximum(worker_s, 1e-12), 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = share / received
    priority = np.where(share <= 0.0, 0.0, np.where(received > 0.0, ratio, share * 1e9))
    jobs = view.jobs
    waited_s = np.where(jobs.waiting, view.now_ms - jobs.waiting_since_ms, 0) / MS_PER_S
    late = (waited_s >= policy.patience_s) & (policy.patience_s > 0) & (not policy.is_original)
    wanted = np.where(share > 0, share, 1e-6)
    return np.where(late[:, None], 1e15 * waited_s[:, None] + wanted, priority) * (speeds > 0)


def expected_gpu_types(
    policy: Any, view: Snapshot, rounds: Rounds, before: dict[str, Any], rows: Any, speeds: Any
) -> Any:
    """Greedy choice down the entries (job, type)."""
    jobs, (n, types) = view.jobs, speeds.shape
    share, deficit_s = np.asarray(rounds.share), np.asarray(rounds.deficit_s)
    priority = priorities(policy, view, share, before["received_s"], before["worker_s"], speeds)
    turns = np.asarray(rounds.find_turns(view.now_ms))
    flat = (np.arange(n)[None, :] * types + turns[:, None]).ravel()
    keys = (-share.ravel()[flat], -deficit_s.ravel()[flat], -priority.ravel()[flat])
    if policy.is_original:  # each type has a queue of its own
        keys = (*keys, np.repeat(np.arange(types), n))
    held = rows & jobs.holding & (jobs.held_type >= 0)
    held_gpus = jobs.held_gpu_milli[held] / GPU_MILLI
    free = view.free_gpus_by_type + np.bincount(jobs.held_type[held], weights=held_gpus, minlength=types)
    only_positive = policy.is_original and policy.name in ("gavel-fifo", "gavel-sjf")
    gpus, chosen = jobs.ask_gpu_milli / GPU_MILLI, np.full(n, -1, np.int64)
    for entry in flat[np.lexsort(keys)].tolist():
        m, j = divmod(entry, types)
        if chosen[m] >= 0 or not rows[m] or speeds[m, j] <= 0 or gpus[m] > free[j]:
            continue
        if only_positive and priority[m, j] <= 0.0:
            continue
        chosen[m] = j
        free[j] -= gpus[m]
    if policy.is_original:  # what the shares do not know takes room and does not run
        chosen[np.asarray(rounds.known) < 1.0] = -1
    return chosen


def slices_s(view: Snapshot, kinds: Any, speeds: Any, left_s: float) -> Any:
    """Whole steps that fit in the round, or until the job's end."""
    speed = np.where(kinds >= 0, speeds[np.arange(len(kinds)), np.maximum(kinds, 0)], 1.0)
    steps = np.floor(speed * left_s)
    steps = np.where(steps >= 1, steps, speed * left_s)
    return np.fmin(steps, view.jobs.remaining) / np.where(speed > 0, speed, 1.0)


def is_idle(view: Snapshot, kinds: Any, rows: Any, speeds: Any, share: Any) -> bool:
    """No job waits, and none that runs has a claim to a faster type."""
    if (rows & (kinds < 0)).any() or (view.jobs.waiting & ~rows).any():
        return False
    now = np.where(rows, kinds, np.where(view.jobs.holding, view.jobs.held_type, -1))
    at = np.flatnonzero(now >= 0)
    mine = speeds[at, now[at]]
    return not ((speeds[at] > mine[:, None] * 1.001) & (share[at] > 1e-6)).any()


@pytest.mark.parametrize(
    ("name", "placement"),
    [
        ("gavel-max-min", Strategy.PACK),
        ("gavel-max-min:patience_s=900", Strategy.SPREAD),
        ("gavel-max-min:mechanism=original", Strategy.COUNT),
        ("gavel-max-min:aware=false,mechanism=original", Strategy.COUNT),
        ("gavel-fifo:mechanism=original", Strategy.PACK),
        ("gavel-ftf", Strategy.FIRST_FIT),
    ],
)
def test_rounds_follow_the_rules(name: str, placement: Strategy, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.Generator(np.random.PCG64(7))
    jobs = [
        a_job(
            f"{k:02d}", gpus=int(rng.choice([1, 1, 2, 4, 6])), seconds=float(rng.uniform(500, 9000)),
            submit_s=float(k * rng.integers(0, 400)),
            speeds={"k80": 1.0, "p100": float(rng.uniform(1, 3)), "v100": float(rng.uniform(1, 6))},
            preemptible=bool(k % 6),
        )
        for k in range(24)
    ]  # fmt: skip
    jobs.sort(key=lambda job: job.submit_ms)
    seen: list[dict[str, Any]] = []
    bring_about, memo = gavel._bring_about, RoundState.memo

    def chosen(policy: Any, view: Snapshot, rounds: Rounds, state: Any, builder: Any) -> None:
        inside = rounds.holding and view.now_ms < state.values.get("round_end_ms", 0)
        before = {"received_s": state.received_s.copy(), "worker_s": np.array(rounds.worker_s)}
        rows, speeds = changeable(view) & ~(view.jobs.holding & inside), speeds_of(view)
        expected = expected_gpu_types(policy, view, rounds, before, rows, speeds)
        n = len(view.jobs)
        assert np.asarray(rounds.movable)[:n].tolist() == rows.tolist()
        assert np.asarray(rounds.gpu_type_of)[:n].tolist() == expected.tolist()
        bring_about(policy, view, rounds, state, builder)
        placed = [-1 if a is None else a.accelerator for a in map(builder.allocation, range(n))]
        assert np.asarray(rounds.gpu_type_of)[:n].tolist() == np.where(rows, placed, -1).tolist()
        seen.append({**before, "rows": rows, "speeds": speeds, "kinds": np.array(rounds.gpu_type_of)[:n]})

    def remembered(state: RoundState, view: Snapshot, rounds: Rounds) -> Any:
        was = seen[-1]
        kinds, received_s, worker_s = was["kinds"], was["received_s"], was["worker_s"]
        round_s = (view.round_ms or 0) / MS_PER_S
        inside = rounds.holding and view.now_ms < state.values.get("round_end_ms", 0)
        left_s = (state.values["round_end_ms"] - view.now_ms) / MS_PER_S if inside else round_s
        slice_s, at = slices_s(view, kinds, was["speeds"], left_s), np.flatnonzero(kinds >= 0)
        received_s[at, kinds[at]] += slice_s[at]
        worker_s += np.bincount(kinds[at], weights=slice_s[at], minlength=len(worker_s))
        assert state.received_s.tolist() == received_s.tolist()
        assert np.asarray(rounds.worker_s).tolist() == worker_s.tolist()
        assert rounds.longest_s == (slice_s[at].max() if len(at) else -1.0)
        assert rounds.idle == is_idle(view, kinds, was["rows"], was["speeds"], state.share)
        return memo(state, view, rounds)

    monkeypatch.setattr(gavel, "_bring_about", chosen)
    monkeypatch.setattr(RoundState, "memo", remembered)
    monkeypatch.setattr(gavel.RoundPolicy, "compiled_pass", lambda _: None)
    setting = Settings(placement=placement, round_ms=300_000)
    simulate(jobs, parse_cluster("k80=4x4,p100=4x2,v100=6x6"), create(name), setting)
    assert len(seen) > 20


def test_reasons_have_the_numbers_of_the_model() -> None:
    assert (codes.NEXT_ROUND, codes.SHARE_DUE) == (Why.NEXT_ROUND, Why.SHARE)


def test_every_policy_describes_itself() -> None:
    classes = [c for c in gavel.RoundPolicy.__subclasses__() if c.__module__ == gavel.__name__]
    assert len({c.__doc__ for c in classes}) == len(classes) == 13
