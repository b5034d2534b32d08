"""The jobs of the study: models, sizes, arrivals, deadlines. Drawn from a seed; some rigid, some with servers."""

from __future__ import annotations

import json
import random
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).resolve().parents[3] / "live" / "programs" / "study_training.py"
SAMPLES, BATCH = 64, 16
MODELS = {"cnn": (0.32, 0.03), "transformer": (0.40, 0.06), "mlp": (0.24, 0.02)}
"""Seconds of a step on the fastest type: what workers divide, and what they do not."""


@dataclass(frozen=True)
class StudyJob:
    name: str
    model: str
    way: str
    """`parallel` or `server`."""
    workers: tuple[int, int]
    steps: int
    arrives_s: float
    deadline_factor: float
    """Deadline as a multiple of the time that the job takes alone at its largest size."""

    @property
    def elastic(self) -> bool:
        return self.workers[0] < self.workers[1]

    def steps_per_s(self, workers: int, slowdown: float = 1.0) -> float:
        """What its pace gives, without the exchange of gradients."""
        parallel_s, serial_s = MODELS[self.model]
        if self.way == "server":  # each gradient takes a whole step; workers do not wait for each other
            return workers / (slowdown * (parallel_s + serial_s))
        return 1.0 / (slowdown * (parallel_s / workers + serial_s))


def draw(count: int, seed: int, minutes: float, seconds_alone: tuple[float, float] = (15.0, 45.0)) -> list[StudyJob]:
    """`count` jobs within `minutes`: of eight, two are rigid and two have parameter servers."""
    chance = random.Random(seed)
    jobs = []
    arrivals_s = sorted(chance.uniform(0.0, 60.0 * minutes) for _ in range(count))
    for k in range(count):
        model = sorted(MODELS)[k % len(MODELS)]
        way = "server" if k % 4 == 3 else "parallel"
        most = chance.choice((2, 3, 4))
        least = most if k % 4 == 1 else 1
        draft = StudyJob(f"s{k:02d}-{model}", model, way, (least, most), 1, arrivals_s[k], chance.uniform(2.5, 6.0))
        alone = draft.steps_per_s(most) * chance.uniform(*seconds_alone)
        whole = max(SAMPLES // BATCH, round(alone / (SAMPLES // BATCH)) * (SAMPLES // BATCH))  # whole epochs
        jobs.append(StudyJob(draft.name, model, way, draft.workers, whole, arrivals_s[k], draft.deadline_factor))
    return jobs


def command_of(job: StudyJob, slowdowns: dict[str, float], folder: str, program: str = str(PROGRAM)) -> list[str]:
    parallel_s, serial_s = MODELS[job.model]
    return [
        program, "--way", job.way, "--model", job.model, "--steps", str(job.steps), "--parallel-s", str(parallel_s),
        "--serial-s", str(serial_s), "--slowdowns", json.dumps(slowdowns), "--samples", str(SAMPLES),
        "--batch", str(BATCH), "--counts", f"{folder}/{job.name}.npz",
    ]  # fmt: skip


def deadline_s_of(job: StudyJob) -> float:
    return 20.0 + job.deadline_factor * job.steps / job.steps_per_s(job.workers[1])


def utility_of(job: StudyJob) -> dict[str, Any]:
    alone_s = job.steps / job.steps_per_s(job.workers[1])
    return {"kind": "sigmoid", "theta1": 50.0, "theta2": 0.02, "theta3": 20.0 + 4 * alone_s}


def request_of(job: StudyJob, slowdowns: dict[str, float], folder: Path, policy: str) -> dict[str, Any]:
    """The body of a submission by REST."""
    most = job.workers[1]
    body: dict[str, Any] = {
        "name": job.name,
        "command": [sys.executable, *command_of(job, slowdowns, str(folder))],
        "steps": job.steps,
        "steps_per_s": {name: job.steps_per_s(most, slow) for name, slow in slowdowns.items()},
        "workers": {"min": job.workers[0], "max": most},
        "model": job.model,
        "preemptible": True,
        "max_attempts": 6,
        "workdir": str(folder),
        "env": {"PYTHONPATH": ":".join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"},
    }
    if job.way == "server":
        body["servers"] = {"min": 1, "max": 2}
    if policy == "deadline":
        body |= {"deadline_s": deadline_s_of(job), "deadline_kind": "soft"}
    if policy == "oasis":
        body["utility"] = utility_of(job)
    return body
