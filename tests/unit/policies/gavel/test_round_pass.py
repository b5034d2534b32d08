"""The compiled round against the same rules by columns (Gavel, OSDI'20, section 5), on rounds of simulated runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trainmaster.engine.core import Settings
from trainmaster.model.cluster import parse_cluster
from trainmaster.model.placement import Strategy
from trainmaster.policies.gavel import policy as gavel
from trainmaster.policies.gavel import realising
from trainmaster.policies.gavel.round_pass import types_in_turn
from trainmaster.policies.gavel.round_rule import type_order
from trainmaster.policies.gavel.round_state import asked_gpus, speeds_of
from trainmaster.policies.gavel.rounds import priorities
from trainmaster.policies.gavel.shares import QUEUES
from trainmaster.policies.registry import create
from trainmaster.sim.run import simulate
from trainmaster.testing.builders import a_job


def _select(order: Any, priority: Any, usable: Any, gpus: Any, free: Any, only_positive: bool, eligible: Any) -> Any:
    """Greedy choice down the entries (job, type) as flat indices."""
    n, types = priority.shape
    chosen = np.full(n, -1, np.int64)
    for entry in order.tolist():
        m, j = divmod(entry, types)
        if chosen[m] >= 0 or not eligible[m] or not usable[m, j] or gpus[m] > free[j]:
            continue
        if only_positive and priority[m, j] <= 0.0:
            continue
        chosen[m] = j
        free[j] -= gpus[m]
    return chosen


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
def test_the_passes_follow_the_rules(name: str, placement: Strategy, monkeypatch: pytest.MonkeyPatch) -> None:
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
    rounds = 0
    alone = gavel.each_alone
    pass_ = realising.choose

    def checked(policy: Any, view: Any, state: Any, draft: Any, worker_s: Any, inside: bool, left_s: float) -> Any:
        nonlocal rounds
        rounds += 1
        jobs, original = view.jobs, policy.mechanism == "original"
        rows = realising._changeable(view) & ~(jobs.holding & inside)
        speeds = speeds_of(view)
        fraction = np.where(worker_s > 0, state.received_s / np.maximum(worker_s, 1e-12), 0.0)
        priority = np.where(speeds > 0, priorities(state.share, fraction), 0.0)
        if not original and policy.patience_s > 0:
            priority = realising._with_patience(policy, view, priority, state.share)
        types = speeds.shape[1]
        turns = types_in_turn(speeds.sum(axis=0), policy.queueing, type_order(view.cluster.types), view.now_ms)
        flat = (np.arange(len(jobs))[None, :] * types + turns[:, None]).ravel()
        keys = (-state.share.ravel()[flat], -state.deficit_s.ravel()[flat], -priority.ravel()[flat])
        if original:  # each type has a queue of its own
            keys = (*keys, np.repeat(np.arange(types), len(jobs)))
        only_positive = policy.allocation in QUEUES and original
        free = realising._free_after(view, rows)
        order = flat[np.lexsort(keys)]
        expected = _select(order, priority, speeds > 0, asked_gpus(view), free, only_positive, rows)
        if original:  # what the shares do not know takes room and does not run
            expected[state.known < 1.0] = -1
        received, worked = state.received_s.copy(), worker_s.copy()
        got: list[Any] = []
        monkeypatch.setattr(realising, "choose", lambda *a: got.append(pass_(*a)) or got[-1])
        wanted = None

        def kept(*arguments: Any) -> Any:
            nonlocal wanted
            wanted = arguments[1].copy()  # after placement
            return time(*arguments)

        time = realising.give_time
        monkeypatch.setattr(realising, "give_time", kept)
        longest_s, idle = alone(policy, view, state, draft, worker_s, inside, left_s)
        monkeypatch.setattr(realising, "give_time", time)
        placed = np.array([-1 if a is None else a.accelerator for a in map(draft.allocation, range(len(jobs)))])
        placed = np.where(rows, placed, -1)
        assert got[0][1].tolist() == rows.tolist()
        assert ((expected == placed) | (placed == -1)).all()
        assert wanted is not None
        assert wanted.tolist() == placed.tolist()
        slice_s = realising._slices(view, placed, speeds, left_s)
        at = np.flatnonzero(placed >= 0)
        received[at, placed[at]] += slice_s[at]
        worked += np.bincount(placed[at], weights=slice_s[at], minlength=types)
        assert state.received_s.tolist() == received.tolist()
        assert worker_s.tolist() == worked.tolist()
        assert longest_s == (slice_s[at].max() if len(at) else -1.0)
        waiting = bool((rows & (placed < 0)).any()) or bool((jobs.waiting & ~rows).any())
        assert idle == (not waiting and not realising._could_move(view, placed, rows, speeds, state.share))
        return longest_s, idle

    monkeypatch.setattr(gavel, "each_alone", checked)
    setting = Settings(placement=placement, round_ms=300_000)
    simulate(jobs, parse_cluster("k80=4x4,p100=4x2,v100=6x6"), create(name), setting, passage_decisions=0)
    assert rounds > 20
