"""How many hard deadlines could be promised at best: an oracle that enumerates."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations, product
from typing import Any

import numpy as np

from trainmaster.engine.engine import Engine, Settings
from trainmaster.estimate.declared import DeclaredSpeeds
from trainmaster.model import event as ev
from trainmaster.model.cluster import parse_cluster
from trainmaster.model.job import DeadlineKind, JobId, JobSpec
from trainmaster.model.scaling import amdahl
from trainmaster.policies.registry import create

SLOT_S = 60


@dataclass(frozen=True)
class TinyInstance:
    """Jobs that all come at 0, on one type; times in whole slots."""

    gpus: int
    specs: tuple[JobSpec, ...]


def tiny_deadline_instance(seed: int, jobs: int = 7) -> TinyInstance:
    rng = np.random.Generator(np.random.PCG64([seed, 21]))
    gpus = int(rng.integers(2, 7))
    specs = []
    for number in range(jobs):
        low = int(rng.integers(1, min(4, gpus) + 1))
        high = min(gpus, low + int(rng.integers(0, 3)))
        slots = int(rng.integers(1, 6))
        due = slots + int(rng.integers(0, 6))
        specs.append(
            JobSpec(
                id=JobId(f"j{number}"),
                workers_min=low,
                workers_max=high,
                workers_ref=low,
                work_total=float(slots * SLOT_S),
                scaling=amdahl(0.1),
                deadline_ms=due * SLOT_S * 1000,
                deadline_kind=DeadlineKind.HARD,
            )
        )
    return TinyInstance(gpus, tuple(specs))


def most_deadlines(instance: TinyInstance) -> int:
    """The largest number of deadlines that can be met, by going through all sets of jobs and all their schedules.

    Sizes change freely at slot boundaries (no cost), so this bounds every schedule on that grid.
    """
    jobs = [_Job.of(spec) for spec in instance.specs]
    for count in range(len(jobs), 0, -1):
        if any(_all_in_time(list(chosen), instance.gpus) for chosen in combinations(jobs, count)):
            return count
    return 0


@dataclass(frozen=True)
class _Job:
    """Work in slots at the reference size, the slot by which it is due, and speed by size (0: standing still)."""

    work: float
    due: int
    speeds: dict[int, float]

    @staticmethod
    def of(spec: JobSpec) -> _Job:
        ref = float(spec.scaling.speed(spec.workers_ref))
        speeds = {n: float(spec.scaling.speed(n)) / ref for n in range(spec.workers_min, spec.workers_max + 1)}
        return _Job((spec.work_total or 0.0) / SLOT_S, spec.deadline_ms // (SLOT_S * 1000), {0: 0.0, **speeds})


def _all_in_time(jobs: list[_Job], gpus: int) -> bool:
    """Depth first over slots; a state is the work left. More work done never hurts, so a vector of sizes that another
    one covers is not tried."""
    dead: set[tuple[int, tuple[float, ...]]] = set()
    least_area = [min(n / speed for n, speed in job.speeds.items() if speed) for job in jobs]
    dues = sorted({job.due for job in jobs})

    def hopeless(slot: int, left: tuple[float, ...]) -> bool:
        if any(w > max(j.speeds.values()) * (j.due - slot) + 1e-6 for w, j in zip(left, jobs, strict=True) if w > 0):
            return True
        areas = [(j.due, w * a) for j, w, a in zip(jobs, left, least_area, strict=True)]
        return any(sum(a for due, a in areas if due <= d) > gpus * max(d - slot, 0) + 1e-6 for d in dues)

    def search(slot: int, left: tuple[float, ...]) -> bool:
        if not any(left):
            return True
        if (slot, left) in dead or hopeless(slot, left):
            return False
        sizes = [[n for n in j.speeds if n == 0 or w > 0] for j, w in zip(jobs, left, strict=True)]
        fitting = [vector for vector in product(*sizes) if sum(vector) <= gpus]
        for vector in fitting:
            covered = any(o != vector and all(a >= b for a, b in zip(o, vector, strict=True)) for o in fitting)
            if not covered:
                done = [j.speeds[n] for j, n in zip(jobs, vector, strict=True)]
                after = tuple(0.0 if w - d < 1e-6 else round(w - d, 9) for w, d in zip(left, done, strict=True))
                if search(slot + 1, after):
                    return True
        dead.add((slot, left))
        return False

    return search(0, tuple(job.work for job in jobs))


def admitted(instance: TinyInstance, policy: str = "deadline") -> int:
    """How many the policy accepts when all are offered at once."""
    engine = Engine(parse_cluster(f"gpu={instance.gpus}"), create(policy), DeclaredSpeeds(), Settings())
    engine.step(0, *[ev.JobSubmitted(spec) for spec in instance.specs])
    return int(engine.columns.ints["admitted"][engine.columns.rows].sum())


def compare_with_optimum(instances: int, policy: str = "deadline") -> dict[str, Any]:
    """Totals over random instances, and the relative gap."""
    got = [admitted(tiny_deadline_instance(seed), policy) for seed in range(instances)]
    best = [most_deadlines(tiny_deadline_instance(seed)) for seed in range(instances)]
    return {
        "instances": instances,
        "admitted": sum(got),
        "optimum": sum(best),
        "gap": 1.0 - sum(got) / max(sum(best), 1),
        "equal": sum(1 for g, b in zip(got, best, strict=True) if g == b),
        "above": sum(1 for g, b in zip(got, best, strict=True) if g > b),
    }
