"""CPU time of one live step with 10,000 waiting jobs: an end, a submission, the decision, and what a commit must hold.

    python bench/bench_live_step.py [--policies fifo,srtf,...] [--jobs 10000] [--steps 100]

The cluster is full (512 GPUs) and one job more waits than ends at each step. The digest covers all commands and the
reasons of some waiting jobs: trees that print the same one decide the same. It runs on older trees too.
"""

from __future__ import annotations

import argparse
import hashlib
import time

import numpy as np

from trainmaster.engine.engine import Engine
from trainmaster.engine.persistence import Recorder
from trainmaster.engine.records import Settings
from trainmaster.estimate.declared import DeclaredSpeeds
from trainmaster.model import event as ev
from trainmaster.model.cluster import parse_cluster
from trainmaster.model.command import Launch, Stop
from trainmaster.model.job import JobId, JobSpec
from trainmaster.policies.registry import create

CLUSTER = "v100=256x8,k80=256x8"


def spec(k: int, rng: np.random.Generator) -> JobSpec:
    size, work = int(rng.choice([1, 1, 1, 2, 4, 8])), float(rng.lognormal(8, 1))
    return JobSpec(JobId(f"j{k:05}"), k, workers_min=size, workers_max=size, workers_ref=size, work_total=work,
                   steps_per_s={"v100": 1.0, "k80": float(rng.uniform(0.2, 0.6))})  # fmt: skip


def run(policy: str, n_jobs: int, n_steps: int) -> tuple[float, float, str]:
    """Milliseconds of a step and of a commit (medians), and the digest."""
    rng = np.random.Generator(np.random.PCG64(1))
    engine = Engine(parse_cluster(CLUSTER), create(policy), DeclaredSpeeds(), Settings())
    running: list[Launch] = []
    told: list[str] = []

    def answer(now_ms: int, *events: ev.Event) -> float:
        begun = time.process_time()
        commands = engine.step(now_ms, *events)
        took_s = time.process_time() - begun
        told.extend(f"{type(c).__name__} {c.job_id} {c.generation}" for c in commands)
        pending = [ev.Stopped(c.job_id, c.generation, float("nan")) for c in commands if isinstance(c, Stop)]
        stopped = {event.job_id for event in pending}
        running[:] = [c for c in running if c.job_id not in stopped]
        started = [c for c in commands if isinstance(c, Launch)]
        running.extend(started)
        answers = [*pending, *(ev.Started(c.job_id, c.generation, 0.0, now_ms) for c in started)]
        if answers:
            answer(now_ms, *answers)
        return took_s

    answer(0, *(ev.JobSubmitted(spec(k, rng)) for k in range(n_jobs)))
    recorder = Recorder(engine)
    step_s, commit_s = [], []
    for k in range(n_steps):
        over = running.pop(0)
        events = (ev.Exited(over.job_id, over.generation, 0, 1.0), ev.JobSubmitted(spec(n_jobs + k, rng)))
        step_s.append(answer(1_000 * (k + 1), *events))
        begun = time.process_time()
        commit = recorder.changes(engine.drain_ended())
        commit_s.append(time.process_time() - begun)
        told.append(f"{len(commit.jobs)} records")
        asked = engine.columns.job_index_of.get(JobId(f"j{n_jobs - 1 - k:05}"))
        told.append("over" if asked is None else str(engine.why(asked)))
    digest = hashlib.sha256("\n".join(told).encode()).hexdigest()[:12]
    return 1e3 * float(np.median(step_s)), 1e3 * float(np.median(commit_s)), digest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", default="fifo,sjf,srtf,las,tiresias,edf")
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=100)
    chosen = parser.parse_args()
    for policy in chosen.policies.split(","):
        run(policy, 1_000, 3)
        step_ms, commit_ms, digest = run(policy, chosen.jobs, chosen.steps)
        print(f"{policy}: a step {step_ms:.2f} ms, a commit {commit_ms:.2f} ms, digest {digest}", flush=True)


if __name__ == "__main__":
    main()
