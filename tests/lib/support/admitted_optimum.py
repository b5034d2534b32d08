"""How many hard deadlines could be promised at best: a time-indexed MILP as an oracle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import highspy
import numpy as np

from trainmaster.engine.core import Engine, Settings
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
    """The largest number of deadlines that can be met: x[j, size, slot] = 1 when job j has it there.

    Sizes change freely at slot boundaries (no cost), so this bounds every schedule on that grid.
    """
    model: Any = highspy.Highs()
    model.setOptionValue("output_flag", False)
    horizon = max(spec.deadline_ms for spec in instance.specs) // (SLOT_S * 1000)
    accept = [model.addBinary() for _ in instance.specs]
    use: list[list[Any]] = [[] for _ in range(horizon)]
    for number, spec in enumerate(instance.specs):
        due = spec.deadline_ms // (SLOT_S * 1000)
        done = []
        for slot in range(due):
            here = []
            for size in range(spec.workers_min, spec.workers_max + 1):
                x = model.addBinary()
                here.append(x)
                use[slot].append(size * x)
                rate = float(spec.scaling.speed(size)) / float(spec.scaling.speed(spec.workers_ref))
                done.append(rate * SLOT_S * x)
            model.addConstr(sum(here) <= accept[number])
        model.addConstr(sum(done) >= (spec.work_total or 0.0) * accept[number] - 1e-6)
    for slot in range(horizon):
        if use[slot]:
            model.addConstr(model.qsum(use[slot]) <= instance.gpus)
    model.maximize(model.qsum(accept))
    return round(model.getInfo().objective_function_value)


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
