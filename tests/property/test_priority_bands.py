"""Priority bands under every policy: plans are sound, higher bands are served first, and nobody is preempted without
having run."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmaster.engine.deciding import priority_bands
from trainmaster.engine.engine import Settings
from trainmaster.engine.verify import verify
from trainmaster.model.cluster import parse_cluster
from trainmaster.model.job import JobSpec, Phase, PhaseCode
from trainmaster.policies import registry
from trainmaster.sim.run import RunResult, simulate
from trainmaster.sim.truth import TruthOptions
from trainmaster.testing.builders import a_job
from trainmaster.testing.recount import recount
from trainmaster.testing.scenes import random_scene

NAMES = [entry.name for entry in registry.entries() if entry.name != "deadline"]
NEVER_PREEMPT = ("fifo", "sjf", "drf", "tetris")
"""Within a band. What they stop, a higher band has preempted."""
MIN_RUN_MS = 60_000


@given(st.integers(0, 10**9), st.sampled_from(NAMES), st.sampled_from([0, 30_000, 10**9]))
@settings(max_examples=120, deadline=None)
def test_a_plan_in_bands_is_sound_and_takes_only_from_those_who_may_yield(
    seed: int, name: str, min_run_ms: int
) -> None:
    view = random_scene(seed).view()
    jobs, policy = view.jobs, registry.create(name)
    if len(jobs) == 0:
        return
    plan = priority_bands.decide(policy.decide, view, min_run_ms)
    verify(view, plan)
    assert not recount(view, plan)
    if name not in NEVER_PREEMPT:
        return
    served = [row for row, allocation in plan.changes.items() if allocation is not None]
    for row, allocation in plan.changes.items():
        if allocation is None:
            assert any(jobs.priority[other] > jobs.priority[row] for other in served), "for whom?"
            if jobs.phase[row] == PhaseCode.RUNNING:
                assert jobs.preemptible[row]
                assert view.now_ms - jobs.productive_ms[row] >= min_run_ms


def some_jobs(seed: int, n: int = 16) -> list[JobSpec]:
    rng = np.random.default_rng(seed)
    at_s = np.cumsum(rng.exponential(60.0, n))
    return [
        a_job(
            f"j{k}", gpus=int(rng.choice([1, 1, 2, 4])), seconds=float(rng.integers(30, 900)), submit_s=float(at_s[k]),
            priority=int(rng.integers(0, 3)), preemptible=bool(rng.random() < 0.8),
        )
        for k in range(n)
    ]  # fmt: skip


def run(jobs: list[JobSpec], policy: str, **truth: int) -> RunResult:
    result = simulate(
        jobs, parse_cluster("v100:2x4"), registry.create(policy), Settings(min_run_ms=MIN_RUN_MS),
        truth=TruthOptions(**truth), record_history=True,
    )  # fmt: skip
    assert result.plans_refused == 0, result.notes
    assert not [note for note in result.notes if "rest" in note]
    return result


@given(st.integers(0, 10**9), st.sampled_from(NEVER_PREEMPT), st.sampled_from([0, 20_000]))
@settings(max_examples=15, deadline=None)
def test_no_two_jobs_preempt_each_other_without_progress(seed: int, policy: str, restart_cost_ms: int) -> None:
    """Whoever is preempted has run for the minimum time since it started, and a job of a higher band has its place."""
    jobs = some_jobs(seed)
    result = run(jobs, policy, restart_cost_ms=restart_cost_ms)
    assert result.history is not None
    priority, preemptible = {s.id: s.priority for s in jobs}, {s.id: s.preemptible for s in jobs}
    first_s = {end.spec.id: end.first_start_ms / 1000 for end in result.ended}
    ended_s = {end.spec.id: end.ended_ms / 1000 for end in result.ended}
    held = result.history.table(result.end_ms).rows(named=True)
    places = {(row["job_id"], row["end_s"]): set[tuple[int, int]]() for row in held}
    for row in held:
        places[row["job_id"], row["end_s"]] |= {(row["node"], device) for device in row["devices"]}
    for row in held:
        if row["end_s"] == ended_s[row["job_id"]]:
            continue
        assert preemptible[row["job_id"]]
        restarted = row["start_s"] > first_s[row["job_id"]]
        assert round(1000 * (row["end_s"] - row["start_s"])) >= MIN_RUN_MS + restart_cost_ms * restarted
        place = places[row["job_id"], row["end_s"]]
        took = {
            other["job_id"]
            for other in held
            if other["start_s"] == row["end_s"] and {(other["node"], device) for device in other["devices"]} & place
        }
        assert any(priority[other] > priority[row["job_id"]] for other in took), (row, took)


@pytest.mark.parametrize("policy", ["fifo", "srtf", "las", "tiresias", "gavel-max-min", "oasis", "das", "optimus"])
def test_of_two_priorities_the_higher_one_is_served_first(policy: str) -> None:
    """As if the lower band were not there, but for the minimum run time of those in the way."""
    rng = np.random.default_rng(7)
    jobs = [
        a_job(
            f"j{k}", gpus=int(rng.choice([1, 1, 2, 4])), seconds=float(rng.integers(100, 900)), submit_s=60.0 * k,
            priority=5 * (k % 4 == 0),
        )
        for k in range(24)
    ]  # fmt: skip
    result = run(jobs, policy)
    finished = {
        end.spec.id: (end.ended_ms - end.spec.submit_ms) / 1000 for end in result.ended if end.phase == Phase.FINISHED
    }
    high = [spec for spec in jobs if spec.priority]
    late = [finished[spec.id] - (spec.work_total or 0.0) for spec in high]
    others = [
        finished[spec.id] - (spec.work_total or 0.0) for spec in jobs if not spec.priority and spec.id in finished
    ]
    slots_s = 1200.0 if policy == "oasis" else 0.0
    assert max(late) <= 400.0 + slots_s, "it waits for others of its band, and for the minimum run time"
    assert np.mean(late) < 0.3 * np.mean(others) or slots_s


def test_dorm_divides_again_when_a_higher_band_has_left() -> None:
    """Its jobs are the same as before, what it may divide is not."""
    high = a_job("high", gpus=8, seconds=100, priority=1)
    low = a_job("low", gpus=8, seconds=100, submit_s=10)
    result = run([high, low], "dorm")
    assert {end.spec.id: end.ended_ms for end in result.ended} == {"high": 100_000, "low": 200_000}
