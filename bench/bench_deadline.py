"""Time of the deadline policy: one decision with many active jobs, and a whole trace.

    python bench/bench_deadline.py [--jobs 1000] [--gpus 512] [--trace FILE --cluster gpu=2048]

Prints CPU times (process time). The decision is that at an arrival, in a cluster with as many active jobs.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from trainmaster.engine.engine import Engine, Settings
from trainmaster.estimate.declared import DeclaredSpeeds
from trainmaster.model import event as ev
from trainmaster.model.cluster import parse_cluster
from trainmaster.model.job import DeadlineKind, JobId, JobSpec
from trainmaster.model.policy import PolicyTraits
from trainmaster.model.scaling import amdahl
from trainmaster.model.units import NEVER_MS
from trainmaster.policies.registry import create


def spec(number: int, now_ms: int, rng: np.random.Generator, slack: tuple[float, float]) -> JobSpec:
    work_s = float(rng.lognormal(8.5, 1.0))
    workers = int(rng.choice([1, 2, 4]))
    hard = rng.random() < 0.9
    return JobSpec(
        id=JobId(f"j{number:06d}"),
        submit_ms=now_ms,
        workers_min=1,
        workers_max=4 * workers,
        workers_ref=workers,
        work_total=work_s,
        scaling=amdahl(0.02),
        deadline_ms=now_ms + int(1000 * work_s * rng.uniform(*slack)) if hard else NEVER_MS,
        deadline_kind=DeadlineKind.HARD if hard else DeadlineKind.NONE,
    )


def answers(commands: list[Any], engine: Engine, now_ms: int) -> list[Any]:
    """Every command succeeds at once."""
    out: list[Any] = []
    for command in commands:
        done = float(engine.columns.floats["work_done"][engine.columns.job_index_of[command.job_id]])
        match type(command).__name__:
            case "Launch":
                out.append(ev.Started(command.job_id, command.generation, done, now_ms))
            case "Resize":
                out.append(ev.Resized(command.job_id, command.generation, command.seq, done, now_ms))
            case _:
                out.append(ev.Stopped(command.job_id, command.generation, done))
    return out


class Timed:
    """The policy with a clock around it."""

    traits = PolicyTraits(own_rounds=True)

    def __init__(self, name: str) -> None:
        self.policy = create(name)
        self.times_s: list[float] = []

    def decide(self, view: Any) -> Any:
        begun = time.process_time()
        plan = self.policy.decide(view)
        self.times_s.append(time.process_time() - begun)
        return plan


def decision_times(jobs: int, gpus: int, arrivals: int, seed: int = 0) -> tuple[list[float], int]:
    """CPU seconds of decisions at arrivals once `jobs` are active."""
    rng = np.random.Generator(np.random.PCG64(seed))
    timed = Timed("deadline:selective=0")
    engine = Engine(parse_cluster(f"gpu={gpus}"), timed, DeclaredSpeeds(), Settings())
    now_ms = number = 0
    while len(engine.columns.rows) < jobs and number < 20 * jobs:
        batch = [spec(number + i, now_ms, rng, (3.0, 30.0)) for i in range(50)]
        number += 50
        events: list[Any] = [ev.JobSubmitted(one) for one in batch]
        while events:
            events = answers(engine.step(now_ms, *events), engine, now_ms)
        now_ms += 1000
    timed.times_s.clear()
    first: list[float] = []
    for _ in range(arrivals):
        now_ms += 1000
        events = [ev.JobSubmitted(spec(number, now_ms, rng, (3.0, 30.0)))]
        number += 1
        before = len(timed.times_s)
        while events:
            events = answers(engine.step(now_ms, *events), engine, now_ms)
        first.append(timed.times_s[before])
    return first, len(engine.columns.rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--gpus", type=int, default=512)
    parser.add_argument("--arrivals", type=int, default=60)
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--cluster", default="gpu=2048")
    arguments = parser.parse_args()
    times, active = decision_times(arguments.jobs, arguments.gpus, arguments.arrivals)
    out: dict[str, Any] = {
        "active_jobs": active,
        "gpus": arguments.gpus,
        "decision_cpu_ms": {q: round(1000 * float(np.percentile(times, p)), 2) for q, p in
                            (("median", 50), ("p90", 90), ("max", 100))},
    }  # fmt: skip
    if arguments.trace:
        from trainmaster.sim.experiment import Experiment, prepare, run

        wanted = Experiment(trace=str(arguments.trace), policy="deadline", cluster=arguments.cluster, unfit="reject")
        summary = run(replace(prepare(wanted))).summary
        keys = ("jobs_submitted", "deadline_met_fraction", "decisions", "decide_cpu_s", "cpu_s")
        out["trace"] = {"cluster": arguments.cluster, **{key: summary[key] for key in keys}}
    print(json.dumps(out, indent=1))


if __name__ == "__main__":
    main()
