"""Under every policy: whoever would lose much work by a preemption was told so first, and was spared for the notice."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmaster.engine import queries
from trainmaster.engine.engine import Engine, Settings
from trainmaster.estimate.declared import DeclaredSpeeds
from trainmaster.model import event as ev
from trainmaster.model.command import Launch, Resize, Stop
from trainmaster.model.job import JobId, Phase
from trainmaster.policies import registry
from trainmaster.testing.builders import a_cluster, a_job

NOTICE_MS, LOSS_MS, STEP_MS = 45_000, 60_000, 20_000
NAMES = [entry.name for entry in registry.entries()]


class World:
    """Launches succeed at once. Knows since when each job has unsaved work, and when it was told what."""

    def __init__(self, policy: str) -> None:
        options = Settings(
            elastic_fill=True, round_ms=30_000, min_run_ms=30_000, notice_ms=NOTICE_MS, loss_max_ms=LOSS_MS
        )
        self.engine = Engine(a_cluster("v100:2x4,k80:1x4"), registry.create(policy), DeclaredSpeeds(), options)
        self.unsaved_since: dict[JobId, int] = {}
        self.told: dict[JobId, int] = {}
        self.now_ms, self.stops, self.notices = 0, 0, 0

    def step(self, *events: ev.Event) -> None:
        commands = self.engine.step(self.now_ms, *events)
        for _ in range(60):
            if not commands:
                break
            for notice in self.engine.drain_notices():
                self.notices += 1
                self.told.setdefault(notice.job_id, self.now_ms)
            commands = self.engine.step(self.now_ms, *[self.answer(command) for command in commands])
        for notice in self.engine.drain_notices():
            self.notices += 1
            self.told.setdefault(notice.job_id, self.now_ms)

    def answer(self, command: Launch | Resize | Stop) -> ev.Event:
        job, generation = command.job_id, command.generation
        if isinstance(command, Launch):
            self.unsaved_since[job] = self.now_ms
            return ev.Started(job, generation, queries.work_saved(self.engine, job), self.now_ms)
        if isinstance(command, Resize):
            return ev.Resized(job, generation, command.seq, float("nan"), self.now_ms)
        self.stops += 1
        loss_ms = self.now_ms - self.unsaved_since.pop(job)
        told_ms = self.told.pop(job, None)
        spared = told_ms is not None and self.now_ms - told_ms >= NOTICE_MS
        assert loss_ms <= LOSS_MS + 1 or spared, f"{job} loses {loss_ms} ms at {self.now_ms}, told at {told_ms}"
        return ev.Stopped(job, generation, float("nan"))

    def save(self, job: JobId) -> None:
        if queries.phase_of(self.engine, job) == Phase.RUNNING:
            generation = queries.generation_of(self.engine, job)
            state = queries.job_states(self.engine, [job], self.now_ms)[0]
            assert generation is not None
            self.unsaved_since[job] = self.now_ms
            self.told.pop(job, None)
            self.step(ev.Progressed(job, generation, state.work_done, self.now_ms, saved=state.work_done))


@settings(max_examples=12, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("policy", NAMES)
def test_nobody_loses_much_without_a_notice(policy: str, data: st.DataObject) -> None:
    draw, world = data.draw, World(policy)
    for k in range(draw(st.integers(3, 8))):
        low = draw(st.integers(1, 4))
        spec = a_job(
            f"j{k}", elastic=(low, low + draw(st.sampled_from([0, 0, 2]))), priority=draw(st.sampled_from([0, 0, 1])),
            seconds=draw(st.sampled_from([100.0, 400.0, 3_000.0])), preemptible=draw(st.integers(0, 3)) > 0,
        )  # fmt: skip
        world.step(ev.JobSubmitted(replace(spec, submit_ms=world.now_ms)))
        for _ in range(draw(st.integers(1, 6))):
            world.now_ms += STEP_MS
            world.step(ev.Woken())
            if draw(st.integers(0, 3)) == 0:
                world.save(JobId(f"j{draw(st.integers(0, k))}"))


def test_it_is_not_true_of_nothing() -> None:
    world = World("srtf")
    for k in range(8):
        world.step(ev.JobSubmitted(a_job(f"j{k}", gpus=4, seconds=4_000.0 - 500 * k, submit_s=world.now_ms / 1000)))
        for _ in range(5):
            world.now_ms += STEP_MS
            world.step(ev.Woken())
    assert world.stops >= 3 and world.notices >= 3
