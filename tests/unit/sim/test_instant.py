"""The world by columns: a job changes hands when its user interferes."""

from __future__ import annotations

from trainmaster.engine.core import Engine, Settings
from trainmaster.estimate.declared import DeclaredSpeeds
from trainmaster.model import event as ev
from trainmaster.model.cluster import parse_cluster
from trainmaster.model.job import JobId, Phase
from trainmaster.model.lease import LeaseRule
from trainmaster.policies.fifo import Fifo
from trainmaster.sim.passage_backend import PassageBackend
from trainmaster.sim.truth import Truth, TruthOptions
from trainmaster.testing.builders import a_job


def test_a_user_interferes() -> None:
    cluster = parse_cluster("v100=2")
    backend = PassageBackend(cluster, Truth(cluster, TruthOptions(), 0), LeaseRule())
    engine = Engine(cluster, Fifo(), DeclaredSpeeds(), Settings())
    engine.immediate = backend.answer_at_once()

    def step(now_ms: int, *events: ev.Event) -> int:
        """Let everything happen until then; returns how many commands went out."""
        sent, events = 0, (*backend.advance(now_ms), *events)
        while events or sent == 0:
            commands = engine.step(now_ms, *events)
            sent += len(commands)
            for command in commands:
                backend.perform(command)
            events = tuple(backend.advance(now_ms))
            if not events:
                break
        return sent

    jobs = [a_job("a", gpus=1, seconds=100.0), a_job("b", gpus=1, seconds=100.0), a_job("c", gpus=1, seconds=10.0)]
    assert step(0, *map(ev.JobSubmitted, jobs)) == 0  # two start at once, without a command
    assert engine.columns.ints["phase"][engine.columns.rows].tolist() == [Phase.RUNNING, Phase.RUNNING, Phase.PENDING]
    assert step(40_000, ev.JobPaused(JobId("a"))) == 2  # by commands, and so is the start of c in its place
    assert backend.saved[JobId("a")] == 40.0
    assert backend.next_ms == 50_000
    step(50_000, ev.JobResumed(JobId("a")))
    assert [end.spec.id for end in engine.drain_ended()] == ["c"]
    step(60_000, ev.JobCancelled(JobId("b")))
    assert [(end.spec.id, end.phase) for end in engine.drain_ended()] == [("b", Phase.CANCELLED)]
    step(110_000)  # a had 60 seconds left at 50 s
    assert [(end.spec.id, end.run_s) for end in engine.drain_ended()] == [("a", 100.0)]
    assert engine.physical.whole.tolist() == engine.planned.whole.tolist() == [2]
