"""Capacity that others use: it is not given to jobs, does not disturb them, and survives a restart."""

from __future__ import annotations

from trainmaster.engine.engine import Engine
from trainmaster.engine.persistence import Recorder, restore
from trainmaster.engine.ports import StoredState
from trainmaster.engine.records import Settings
from trainmaster.estimate.declared import DeclaredSpeeds
from trainmaster.model import event as ev
from trainmaster.model.command import Launch
from trainmaster.policies.registry import create
from trainmaster.testing.builders import a_cluster, a_job


def an_engine() -> Engine:
    return Engine(a_cluster("v100=8x8"), create("fifo"), DeclaredSpeeds(), Settings())


def launched(commands: list) -> list[str]:
    return [command.job_id for command in commands if isinstance(command, Launch)]


def test_what_others_use_is_not_given_to_jobs() -> None:
    engine = an_engine()
    engine.step(0, ev.NodeUsed(0, gpus=5))
    assert launched(engine.step(1, ev.JobSubmitted(a_job("a", gpus=4)))) == []
    assert launched(engine.step(2, ev.NodeUsed(0, gpus=4))) == ["a"]


def test_what_runs_is_not_disturbed_and_withheld_when_it_ends() -> None:
    engine = an_engine()
    engine.step(0, ev.JobSubmitted(a_job("a", gpus=6)))
    engine.step(1, ev.Started(a_job("a").id, 1, 0.0, 1))
    assert engine.step(2, ev.NodeUsed(0, gpus=8)) == []
    assert engine.short == {0}
    engine.step(3, ev.JobSubmitted(a_job("b", gpus=1)))
    assert launched(engine.step(4, ev.Exited(a_job("a").id, 1, 0, 1.0))) == []
    assert engine.planned.whole[0] == engine.physical.whole[0] == 0
    assert launched(engine.step(5, ev.NodeUsed(0))) == ["b"]


def test_it_survives_a_restart() -> None:
    engine = an_engine()
    engine.step(0, ev.NodeUsed(0, gpus=5, cpu_milli=1000, mem_mib=10))
    commit = Recorder.of_new(engine).changes(engine.drain_ended())
    jobs = {key: record for key, record in commit.jobs.items() if record is not None}
    again = restore(StoredState(jobs, {}, commit.meta), engine.cluster, create("fifo"), DeclaredSpeeds(), Settings())
    assert again.planned.whole[0] == 3
    assert launched(again.step(1, ev.JobSubmitted(a_job("a", gpus=4)))) == []
