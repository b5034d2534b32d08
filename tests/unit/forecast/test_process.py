"""The process that looks ahead: real, asked about a real store, killed, asked again."""

from __future__ import annotations

import queue
from pathlib import Path
from typing import Any

import pytest

from trainmaster.engine.engine import Engine, Settings
from trainmaster.engine.persistence import Recorder
from trainmaster.engine.ports import StoredState
from trainmaster.estimate.declared import DeclaredSpeeds
from trainmaster.estimate.profiles import JobProfiles
from trainmaster.estimate.speeds.knowledge import Knowledge
from trainmaster.forecast.process import ForecastProcess
from trainmaster.forecast.situation import Belief, Situation
from trainmaster.forecast.worker_request import question, situation_of
from trainmaster.model import event as ev
from trainmaster.model.cluster import parse_cluster
from trainmaster.model.job import JobId, JobSpec
from trainmaster.policies.registry import create
from trainmaster.stores.sqlite import SqliteStore


@pytest.fixture
def asked(tmp_path: Path) -> dict[str, Any]:
    cluster = parse_cluster("v100=2x2")
    engine = Engine(cluster, create("fifo"), DeclaredSpeeds(), Settings())
    specs = [JobSpec(JobId(f"j{k}"), 0, workers_min=2, workers_max=2, workers_ref=2, work_total=60.0) for k in range(3)]
    engine.step(0, *[ev.JobSubmitted(spec) for spec in specs])
    store = SqliteStore(tmp_path / "trainmaster.db")
    store.commit(Recorder.of_new(engine).changes(()))
    store.close()
    profiles = JobProfiles()
    profiles.add_cost("launch", 2.0)
    known = Situation(0, "fifo", cluster, StoredState(), Settings(), {"j0": Belief(0.03)})
    return question(known, tmp_path / "trainmaster.db", profiles, Knowledge())


def test_the_store_fills_in_what_was_not_said(asked: dict[str, Any]) -> None:
    situation = situation_of(asked)
    assert set(situation.stored_state.jobs) == {"j0", "j1", "j2"}
    assert situation.belief("j0").sigma == 0.03 < situation.belief("j1").sigma
    assert situation.costs.launch_ms == situation.costs.restart_ms == 2000


@pytest.mark.slow
def test_outlooks_come_back_also_after_the_process_was_killed(asked: dict[str, Any]) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    process = ForecastProcess(lambda now_ms, cpu_s, outlooks, widening: answers.put(outlooks), answers.put)
    try:
        assert process.ask(asked)
        assert not process.ask(asked), "one question at a time"
        outlooks = answers.get(timeout=60)
        assert outlooks["j0"].finish.p50_s == pytest.approx(62, rel=0.3)
        assert outlooks["j2"].start.p50_s == pytest.approx(126, rel=0.5)
        while process.busy:
            pass
        assert process._process is not None
        process._process.kill()
        process._process.wait()
        assert process.ask(asked)
        assert set(answers.get(timeout=60)) == {"j0", "j1", "j2"}
        while process.busy:
            pass
        assert process.ask({**asked, "database": "nowhere/at/all.db"})
        assert "StoreError" in answers.get(timeout=60)
    finally:
        process.close()
