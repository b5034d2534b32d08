"""What looking ahead costs: CPU time to roll 1,000 jobs on 512 GPUs forward once, and what it does to scheduling.

    python bench/bench_live_forecast.py [--policies fifo,srtf,gavel-max-min] [--jobs 1000] [--batches 300] [--check]

The second part times steps of the control plane (a submission each: checked, decided, committed) with as many jobs in
the store, first without a forecaster, then while the process that looks ahead is busy all the time.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from bench_forecast import CLUSTER, specs
from trainmaster.engine.engine import Engine
from trainmaster.engine.persistence import Recorder
from trainmaster.engine.ports import StoredState
from trainmaster.engine.records import Settings
from trainmaster.estimate.declared import DeclaredSpeeds
from trainmaster.estimate.speeds.learned import LearningEstimator
from trainmaster.forecast.process import ForecastProcess
from trainmaster.forecast.rollout import roll
from trainmaster.forecast.situation import Belief, Situation
from trainmaster.jobspec.model import JobRequest
from trainmaster.model import event as ev
from trainmaster.model.cluster import parse_cluster
from trainmaster.model.command import Command
from trainmaster.policies.registry import create
from trainmaster.service.control.clock import SystemClock
from trainmaster.service.control.control_plane import ControlPlane
from trainmaster.service.control.forecasts import LiveForecasts
from trainmaster.service.control.requests import Submit
from trainmaster.service.local.tokens import OPERATOR, Principal
from trainmaster.stores.sqlite import SqliteStore

TARGET_S = 2.0
WHO = Principal("bench", OPERATOR)


def roll_once(policy: str, count: int) -> float:
    """CPU seconds of one future of a queue that has just been submitted."""
    cluster = parse_cluster(CLUSTER)
    engine = Engine(cluster, create(policy), DeclaredSpeeds(), Settings(round_ms=360_000))
    engine.step(0, *(ev.JobSubmitted(spec) for spec in specs(count, gap_ms=0, all_known=True)))
    commit = Recorder.of_new(engine).changes(())
    image = StoredState({key: record for key, record in commit.jobs.items() if record is not None}, {}, commit.meta)
    beliefs = {key: Belief() for key in image.jobs}
    situation = Situation(0, policy, cluster, image, engine.settings, beliefs)
    roll(situation)
    begun = time.process_time()
    future = roll(situation, 1)
    took_s = time.process_time() - begun
    if len(future.ended) != count:
        raise SystemExit(f"{policy}: {count - len(future.ended)} jobs did not end")
    return took_s


class Deaf:
    """A backend that starts nothing: only the control plane is timed."""

    def perform(self, command: Command) -> None: ...

    def observe(self) -> None: ...


def steps(policy: str, count: int, batches: int, ahead: bool) -> tuple[list[float], int]:
    """(wall seconds of each step, forecasts made meanwhile)."""
    with tempfile.TemporaryDirectory(prefix="trainmaster-bench-") as folder:
        database = Path(folder) / "trainmaster.db"
        store = SqliteStore(database)
        live_forecasts = LiveForecasts(LearningEstimator(DeclaredSpeeds()), database)
        cluster = parse_cluster(CLUSTER)
        plane = ControlPlane(cluster, store, Deaf(), SystemClock(), live_forecasts.estimator, Settings(), policy,
                             live_forecasts=live_forecasts)  # fmt: skip
        plane.open()
        speeds = {"v100": 1.0, "k80": 0.4}
        request = JobRequest(command=["train"], steps=5000, steps_per_s=speeds, array=count)
        plane.batch([Submit(request, WHO)])
        made = 0

        def answered(*_: object) -> None:
            nonlocal made
            made += 1

        process = ForecastProcess(answered, lambda why: sys.exit(why))
        took: list[float] = []
        try:
            if ahead:
                process.ask(live_forecasts.question(plane, plane.now_ms))
                time.sleep(5.0)  # it has started
            for _ in range(batches):
                if ahead:
                    process.ask(live_forecasts.question(plane, plane.now_ms))
                begun = time.perf_counter()
                plane.batch([Submit(JobRequest(command=["train"], steps=5000, steps_per_s=speeds), WHO)])
                took.append(time.perf_counter() - begun)
                time.sleep(0.01)
        finally:
            process.close()
            store.close()
        return took, made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", default="fifo,srtf,gavel-max-min")
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--batches", type=int, default=300)
    parser.add_argument("--check", action="store_true")
    chosen = parser.parse_args()
    slow = []
    for policy in chosen.policies.split(","):
        took_s = roll_once(policy, chosen.jobs)
        print(f"{policy}: {chosen.jobs} jobs on 512 GPUs rolled forward once in {took_s:.2f} s of CPU time", flush=True)
        slow += [policy] * (took_s >= TARGET_S)
    steps("fifo", 50, 20, ahead=False)
    for ahead in (False, True):
        took, made = steps("fifo", chosen.jobs, chosen.batches, ahead)
        p50, p99 = np.quantile(took, [0.5, 0.99]) * 1000
        print(f"a step {'while looking ahead' if ahead else 'without looking ahead'}: "
              f"p50 {p50:.1f} ms, p99 {p99:.1f} ms ({made} forecasts)", flush=True)  # fmt: skip
    return 1 if slow and chosen.check else 0


if __name__ == "__main__":
    sys.exit(main())
