"""A live engine that decides by a compiled pass says what it says when the policy's `decide` is asked."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from trainmaster.engine.engine import Engine, Settings
from trainmaster.engine.persistence import Recorder, restore, stored_state_of
from trainmaster.engine.ports import StoredState
from trainmaster.estimate.declared import DeclaredSpeeds
from trainmaster.model import event as ev
from trainmaster.model.cluster import parse_cluster
from trainmaster.model.command import Command, Launch, Stop
from trainmaster.model.job import JobId, JobSpec
from trainmaster.model.plan import Plan
from trainmaster.model.policy import Policy
from trainmaster.model.snapshot import Snapshot
from trainmaster.policies.registry import create

CLUSTER = parse_cluster("v100=8x4,k80=4x2")
POLICIES = ["fifo", "fifo:backfill=true", "sjf", "srtf", "las", "tiresias", "edf"]


@dataclass
class WithoutTraits:
    """Decides as another policy, and says no more of itself than policies of other packages must."""

    policy: Policy

    def decide(self, view: Snapshot) -> Plan:
        return self.policy.decide(view)


def spec(k: int, rng: np.random.Generator) -> JobSpec:
    size = int(rng.choice([1, 1, 2, 4, 6]))
    return JobSpec(JobId(f"j{k:03}"), k, workers_min=size, workers_max=size, workers_ref=size,
                   work_total=float(rng.lognormal(4, 1)), steps_per_s={"v100": 1.0, "k80": 0.4},
                   deadline_ms=int(rng.integers(10_000, 900_000)))  # fmt: skip


def answers(commands: list[Command], rng: np.random.Generator, now_ms: int) -> list[ev.Event]:
    """Jobs start, fail to, end and stop."""
    events: list[ev.Event] = []
    for command in commands:
        if isinstance(command, Stop):
            events.append(ev.Stopped(command.job_id, command.generation, 1.0))
        elif isinstance(command, Launch):
            events.append(ev.Started(command.job_id, command.generation, 0.0, now_ms))
            if rng.random() < 0.4:
                code = int(rng.choice([0, 1, 1]))
                events.append(ev.Exited(command.job_id, command.generation, code, 5.0))
    return events


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(3))
def test_a_pass_and_decide_leave_the_same_engine(policy: str, seed: int) -> None:
    settings = Settings(backoff_ms=30_000)
    live = Engine(CLUSTER, create(policy), DeclaredSpeeds(), settings)
    asked = Engine(CLUSTER, WithoutTraits(create(policy)), DeclaredSpeeds(), settings)
    rng = np.random.Generator(np.random.PCG64(seed))
    events: list[ev.Event] = []
    reasons: set[int] = set()
    for k in range(80):
        now_ms = 1_000 * (k // 2)
        events += [ev.JobSubmitted(spec(k, rng))] if k < 50 else [ev.JobCancelled(JobId(f"j{k - 45:03}"))]
        if k % 5 == 4:  # who waits asks for something else, or has other terms
            events.append(ev.JobRangeChanged(JobId(f"j{rng.integers(k):03}"), 1, int(rng.choice([1, 3]))))
            events.append(ev.JobTermsChanged(JobId(f"j{rng.integers(k):03}"), deadline_ms=int(rng.integers(900_000))))
        commands = live.step(now_ms, *events)
        assert commands == asked.step(now_ms, *events)
        assert repr(stored_state_of(live)) == repr(stored_state_of(asked))
        reasons.update(live.reasons()[0][live.columns.rows].tolist())
        assert [repr(end) for end in live.drain_ended()] == [repr(end) for end in asked.drain_ended()]
        events = answers(commands, rng, now_ms)
    assert live.queue_reasons is not None
    assert asked.queue_reasons is None
    assert len(reasons) >= 3, "several kinds of reasons were compared"


def test_a_change_at_the_head_of_the_queue_is_one_record() -> None:
    engine = Engine(CLUSTER, create("fifo"), DeclaredSpeeds(), Settings())
    jobs = [JobSpec(JobId(f"j{k:03}"), 0, workers_min=8, workers_max=8, workers_ref=8) for k in range(100)]
    (launch,) = engine.step(0, *(ev.JobSubmitted(job) for job in jobs))
    engine.step(1, ev.Started(launch.job_id, launch.generation, 0.0, 1))
    recorder = Recorder(engine)
    (launch,) = engine.step(2, ev.Exited(launch.job_id, launch.generation, 0, 1.0))
    commit = recorder.changes(engine.drain_ended())
    assert sorted(commit.jobs) == ["j000", "j001", "j002"], "who ended, who starts, and who is first now"
    assert commit.meta is not None
    assert commit.meta["behind"] == "j002"


def test_who_holds_a_job_up_survives_a_restart() -> None:
    engine = Engine(CLUSTER, create("fifo"), DeclaredSpeeds(), Settings())
    engine.step(0, *(ev.JobSubmitted(JobSpec(JobId(f"j{k}"), 0, workers_min=6, workers_max=6)) for k in range(5)))
    commit = Recorder.of_new(engine).changes(())
    stored_state = StoredState(
        {key: record for key, record in commit.jobs.items() if record is not None}, {}, commit.meta
    )
    again = restore(stored_state, CLUSTER, create("fifo"), DeclaredSpeeds(), Settings())
    assert [values[:5].tolist() for values in again.reasons()] == [values[:5].tolist() for values in engine.reasons()]
    assert engine.reasons()[1][:5].tolist() == [-1, -1, 1, 1, 1]
    assert repr(stored_state_of(again)) == repr(stored_state_of(engine))
