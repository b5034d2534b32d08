"""An engine restored from its store goes on exactly like the one that was never interrupted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from hypothesis import given, settings
from hypothesis import strategies as st

from trainmaster.dst.engine.world import World
from trainmaster.engine.engine import Engine, Settings
from trainmaster.engine.persistence import Recorder, ended_from_record, ended_record, job_record, meta_record, restore
from trainmaster.engine.ports import StoredState
from trainmaster.estimate.declared import DeclaredSpeeds
from trainmaster.model import event as ev
from trainmaster.model.cluster import parse_cluster
from trainmaster.model.command import Command
from trainmaster.model.job import JobId, JobSpec
from trainmaster.policies.fifo import Fifo
from trainmaster.stores.memory import MemoryStore

CHECK_EVERY = 3
"""Steps between restorations, to keep the test short."""


class Twinned(World):
    """Before a step an equal engine is built from the store; both take the same events."""

    compared = 0

    def _step(self, engine: Engine, events: list[ev.Event]) -> None:
        twin, expected, ended = None, [], []
        if self.outcome.steps % CHECK_EVERY == 0:
            scenario = self.scenario
            twin = restore(self.store.load(), scenario.cluster, self.policy, self.estimator, scenario.settings)
            assert twin.pending_commands() == engine.pending_commands()
            changes = sum(isinstance(event, ev.PolicyChanged) for event in events)
            if changes:
                twin.policy = self._policies_to_come[changes - 1][1]
            expected = twin.step(self.now_ms, *events)
            ended = [ended_record(end) for end in twin.drain_ended()]
        with sent_by(engine) as commands:
            super()._step(engine, events)
        if twin is not None:
            self.compared += 1
            assert expected == commands
            assert records(twin) == records(engine)
            assert (
                all(ended_from_record(record).spec.id in self.store.load().ended for record in ended) or not self.engine
            )


@contextmanager
def sent_by(engine: Engine) -> Iterator[list[Command]]:
    """What the engine's next step says."""
    commands: list[Command] = []
    step = engine.step

    def listening(now_ms: int, *events: ev.Event) -> list[Command]:
        commands.extend(step(now_ms, *events))
        return list(commands)

    engine.step = listening  # type: ignore[method-assign]
    yield commands
    del engine.step


def records(engine: Engine) -> str:
    """All of it as text (in which NaN equals NaN)."""
    job_indices = engine.columns.job_index_of
    jobs = {job_id: job_record(engine, job_indices[job_id]) for job_id in sorted(job_indices)}
    return json.dumps([jobs, meta_record(engine)], sort_keys=True, indent=0)


@settings(max_examples=8, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6))
def test_a_restored_engine_is_the_same_engine(seed: int) -> None:
    world = Twinned(seed)
    outcome = world.run()
    assert not outcome.violation, f"seed {seed}: {outcome.violation}"
    assert world.compared > 20


def test_an_id_that_has_ended_stays_taken() -> None:
    cluster, store = parse_cluster("v100=2"), MemoryStore()
    engine = Engine(cluster, Fifo(), DeclaredSpeeds(), Settings())
    recorder = Recorder.of_new(engine)
    spec = JobSpec(JobId("a"), work_total=10.0)
    engine.step(0, ev.JobSubmitted(spec))
    engine.step(1, ev.Exited(spec.id, 1, 0, 10.0))
    ended = engine.drain_ended()
    store.commit(recorder.changes(ended))
    assert [ended_from_record(record) for record in store.load().ended.values()] == ended
    again = restore(store.load(), cluster, Fifo(), DeclaredSpeeds(), Settings())
    assert again.step(2, ev.JobSubmitted(spec)) == []
    assert not again.columns.job_index_of


def test_measured_losses_survive() -> None:
    cluster, store = parse_cluster("v100=2"), MemoryStore()
    engine = Engine(cluster, Fifo(), DeclaredSpeeds(), Settings())
    recorder = Recorder.of_new(engine)
    engine.step(0, ev.JobSubmitted(JobSpec(JobId("a"), work_total=10.0)))
    engine.step(1, ev.Started(JobId("a"), 1, 0.0, 1))
    recorder.changes([])
    engine.step(2, ev.Progressed(JobId("a"), 1, 1.0, 2, loss=0.5), ev.Progressed(JobId("a"), 1, 2.0, 2, loss=0.25))
    store.commit(recorder.changes([]))
    again = restore(store.load(), cluster, Fifo(), DeclaredSpeeds(), Settings())
    assert again.snapshot().jobs.losses(0) == ((1.0, 0.5), (2.0, 0.25))


def test_a_new_store_gives_a_new_engine() -> None:
    engine = restore(StoredState(), parse_cluster("v100=2"), Fifo(), DeclaredSpeeds(), Settings())
    assert engine.seq == 0
    assert not engine.columns.job_index_of


def test_only_what_changed_is_committed() -> None:
    engine = Engine(parse_cluster("v100=4"), Fifo(), DeclaredSpeeds(), Settings())
    recorder = Recorder.of_new(engine)
    specs = [JobSpec(JobId(name), work_total=10.0) for name in "ab"]
    engine.step(0, *(ev.JobSubmitted(spec) for spec in specs))
    assert set(recorder.changes([]).jobs) == {"a", "b"}
    assert recorder.changes([]).jobs == {}
    engine.step(1, ev.Started(JobId("b"), 1, 0.0, 1))
    assert set(recorder.changes([]).jobs) == {"b"}
    engine.step(2, ev.Exited(JobId("b"), 1, 0, 10.0))
    last = recorder.changes(engine.drain_ended())
    assert last.jobs == {"b": None}
    assert set(last.ended) == {"b"}
