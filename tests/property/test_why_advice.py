"""What `why` advises is true: each remedy is taken in another engine, restored from the stored state, and the future is
rolled in the simulator: the job starts at once, or when the next round begins."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import event as note
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmaster.engine import queries
from trainmaster.engine.engine import Engine, Settings
from trainmaster.engine.persistence import restore, stored_state_of
from trainmaster.estimate.declared import DeclaredSpeeds
from trainmaster.forecast.remedies import Remedy, remedies
from trainmaster.forecast.rollout import roll
from trainmaster.forecast.situation import Situation
from trainmaster.model import event as ev
from trainmaster.model.command import Launch, Resize
from trainmaster.model.job import JobId, JobSpec, Phase
from trainmaster.policies.registry import create
from trainmaster.testing.builders import a_cluster, a_job

POLICIES = (
    "fifo", "fifo:backfill=true", "sjf", "srtf", "las", "tiresias", "drf", "tetris", "edf", "deadline",
    "gavel-max-min", "gavel-fifo", "elasticflow", "optimus",
)  # fmt: skip
NOW_MS = 40_000


@st.composite
def queues(draw: st.DrawFn) -> list[JobSpec]:
    found: list[JobSpec] = []
    for k in range(draw(st.integers(3, 9))):
        types = draw(st.sampled_from([(), ("v100",), ("k80",)]))
        job_id, team, priority = f"j{k}", draw(st.sampled_from(["", "red", "blue"])), draw(st.integers(0, 2))
        after = (found[0].id,) if found and draw(st.integers(0, 9)) == 0 else ()
        low = draw(st.integers(1, 4))
        high = low + draw(st.sampled_from([0, 0, 1, 4]))
        each = draw(st.sampled_from([1, 1, 2]))
        seconds = draw(st.sampled_from([300.0, 1_000.0, 5_000.0, None]))
        found.append(
            a_job(job_id, gpus_each=each, elastic=(low, high), types=types, seconds=seconds, entity=team,
                  priority=priority, after=after, preemptible=draw(st.booleans()))
        )  # fmt: skip
    return found


def waiting_queue(
    policy: str,
    jobs: list[JobSpec],
    quotas: dict[str, int],
    fill: bool,
    round_ms: int,
    down: bool,
    pause: bool,
    notice_ms: int = 0,
) -> Engine:
    """Half of the jobs come at the beginning, half later; whatever is launched runs."""
    options = Settings(round_ms=round_ms, elastic_fill=fill, notice_ms=notice_ms, loss_max_ms=10_000)
    engine = Engine(a_cluster("v100:2x4,k80:1x4"), create(policy), DeclaredSpeeds(), options)
    told = [ev.EntityChanged(team, quota_milli=quota * 1_000) for team, quota in quotas.items()]
    answered(engine, 0, *told, *(ev.JobSubmitted(job) for job in jobs[: len(jobs) // 2]))
    later = [ev.JobSubmitted(replace(job, submit_ms=20_000)) for job in jobs[len(jobs) // 2 :]]
    answered(engine, 20_000, *later)
    if down:
        answered(engine, 21_000, ev.NodeLost(2, 21_000, confirmed=True))
    if pause:
        answered(engine, 22_000, ev.JobPaused(jobs[-1].id))
    answered(engine, NOW_MS, ev.Woken())
    engine.drain_ended()
    return engine


def answered(engine: Engine, now_ms: int, *events: ev.Event) -> None:
    commands = engine.step(now_ms, *events)
    for _ in range(40):
        if not commands:
            break
        answers: list[ev.Event] = []
        for command in commands:
            if isinstance(command, Launch):
                answers.append(ev.Started(command.job_id, command.generation, 0.0, now_ms))
            elif isinstance(command, Resize):
                answers.append(ev.Resized(command.job_id, command.generation, command.seq, 0.0, now_ms))
            else:
                answers.append(ev.Stopped(command.job_id, command.generation, 0.0))
        commands = engine.step(now_ms, *answers)


def start_after(engine: Engine, policy: str, remedy: Remedy) -> int | None:
    """When the job starts in the simulator, if the remedy is taken now; None: it does not."""
    policy = remedy.policy or policy
    other = restore(stored_state_of(engine), engine.cluster, create(policy), DeclaredSpeeds(), engine.settings)
    ends: list[ev.Event] = []
    for job_id in remedy.ends:
        generation = queries.generation_of(other, job_id)
        assert generation is not None, "one cannot wait for a job that is over"
        live = queries.is_live(other, job_id)
        ends.append(ev.Exited(job_id, generation, 0, 0.0) if live else ev.JobCancelled(job_id))
    answered(other, NOW_MS, *ends, *remedy.events)
    if queries.phase_of(other, remedy.starts) in (Phase.LAUNCHING, Phase.RUNNING, Phase.RESIZING):
        return NOW_MS
    situation = Situation(NOW_MS, policy, other.cluster, stored_state_of(other), other.settings)
    return roll(situation, 0, (ev.Woken(),), decisions_max=20).started_ms.get(remedy.starts)


@settings(max_examples=10, deadline=None)
@given(
    jobs=queues(),
    quotas=st.dictionaries(st.sampled_from(["red", "blue"]), st.integers(1, 6), max_size=2),
    fill=st.booleans(),
    rounds=st.booleans(),
    down=st.booleans(),
    pause=st.booleans(),
    notice_ms=st.sampled_from([0, 0, 300_000]),
)
@pytest.mark.parametrize("policy", POLICIES)
def test_each_advice_starts_the_job(
    policy: str,
    jobs: list[JobSpec],
    quotas: dict[str, int],
    fill: bool,
    rounds: bool,
    down: bool,
    pause: bool,
    notice_ms: int,
) -> None:
    round_ms = 60_000 if rounds or policy.startswith("gavel") else 0
    engine = waiting_queue(policy, jobs, quotas, fill, round_ms, down, pause, notice_ms)
    before = repr(stored_state_of(engine))
    for spec in queries.active_specs(engine):
        phase = queries.phase_of(engine, spec.id)
        if phase not in (Phase.PENDING, Phase.PAUSED) or spec.id in queries.first_starts_ms(engine):
            continue
        for remedy in remedies(engine, spec.id, NOW_MS):
            note(remedy.text.partition(" ")[0])
            start_ms = start_after(engine, policy, remedy)
            assert start_ms is not None, f"{spec.id}: '{remedy.text}' does not start it"
            assert start_ms <= NOW_MS + round_ms, f"{spec.id}: '{remedy.text}' starts it {start_ms - NOW_MS} ms later"
    assert repr(stored_state_of(engine)) == before, "trying changes nothing"


def test_some_advice_is_given_for_most_jobs_that_wait() -> None:
    """So that the property is not true of nothing."""
    jobs = [a_job(f"j{k}", gpus=3, types=("v100",)) for k in range(6)]
    engine = waiting_queue("fifo", jobs, {}, True, 0, False, False)
    waiting = [spec.id for spec in queries.active_specs(engine, (Phase.PENDING,))]
    assert len(waiting) == 4
    assert all(remedies(engine, job_id, NOW_MS) for job_id in waiting)
    assert {JobId("j0")} == set(remedies(engine, "j2", NOW_MS)[1].ends)
