"""The process that looks ahead: real, asked, killed, asked again."""

from __future__ import annotations

import queue
from typing import Any

import pytest

from trainmaster.engine.core import Engine, Settings
from trainmaster.engine.image import Recorder
from trainmaster.engine.ports import Image
from trainmaster.estimate.declared import DeclaredSpeeds
from trainmaster.foresight.process import ForecastProcess
from trainmaster.foresight.situation import Situation
from trainmaster.model import event as ev
from trainmaster.model.cluster import parse_cluster
from trainmaster.model.job import JobId, JobSpec
from trainmaster.policies.registry import create


def situation() -> Situation:
    cluster = parse_cluster("v100=2x2")
    engine = Engine(cluster, create("fifo"), DeclaredSpeeds(), Settings())
    specs = [JobSpec(JobId(f"j{k}"), 0, workers_min=2, workers_max=2, workers_ref=2, work_total=60.0) for k in range(3)]
    engine.step(0, *[ev.JobSubmitted(spec) for spec in specs])
    commit = Recorder.of_new(engine).changes(())
    return Situation(0, "fifo", cluster, Image({k: r for k, r in commit.jobs.items() if r}, {}, commit.meta))


@pytest.mark.slow
def test_outlooks_come_back_also_after_the_process_was_killed() -> None:
    answers: queue.Queue[Any] = queue.Queue()
    process = ForecastProcess(lambda now_ms, outlooks: answers.put(outlooks), answers.put)
    try:
        assert process.ask(situation())
        assert not process.ask(situation()), "one question at a time"
        outlooks = answers.get(timeout=60)
        assert outlooks["j0"].finish.p50_s == pytest.approx(60, rel=0.3)
        assert outlooks["j2"].start.p50_s == pytest.approx(120, rel=0.3)
        while process.busy:
            pass
        assert process._process is not None
        process._process.kill()
        process._process.wait()
        assert process.ask(situation())
        assert set(answers.get(timeout=60)) == {"j0", "j1", "j2"}
    finally:
        process.close()
