"""Gavel's synthetic workload: the population of its simulated sweeps, for any throughput table that has
its models.

Duration on the reference type is 60 * 10^U(1.5, 3) s with probability 0.8, else 60 * 10^U(3, 4) s; gangs
of 1, 2, 4, 8 with probabilities 0.70, 0.10, 0.15, 0.05; the model is uniform over those that the table
knows at that size; steps = duration * speed on the reference type; arrivals are Poisson (Narayanan et
al., OSDI'20, section 7).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from trainmaster.estimate.catalogue import ThroughputCatalogue, split_batch_size
from trainmaster.model.errors import InputError
from trainmaster.traces.generator import trace_from_arrays
from trainmaster.traces.trace import JobTrace

SIZES = (1, 2, 4, 8)
SIZE_SHARES = (0.70, 0.10, 0.15, 0.05)
SHORT_SHARE = 0.8
SHORT_EXPONENTS = (1.5, 3.0)
LONG_EXPONENTS = (3.0, 4.0)


@dataclass(frozen=True)
class GavelSynthetic:
    """What to draw. `jobs_per_hour=None`: all jobs are there at the start (a static trace)."""

    jobs: int = 300
    jobs_per_hour: float | None = 1.0
    multi_gpu: bool = True
    reference_type: str = "v100"

    def check(self) -> None:
        if self.jobs < 1:
            raise InputError(f"{self.jobs} jobs", "at least one job", column="jobs")
        if self.jobs_per_hour is not None and not 0 < self.jobs_per_hour < float("inf"):
            raise InputError(f"{self.jobs_per_hour} jobs an hour", "a positive number, or none", column="jobs_per_hour")


def gavel_synthetic(wanted: GavelSynthetic, catalogue: ThroughputCatalogue, seed: int) -> JobTrace:
    """A trace of models and steps; same seed, same jobs, whatever the arrival rate."""
    wanted.check()
    rng = np.random.Generator(np.random.PCG64(seed))
    count = wanted.jobs
    long = rng.random(count) >= SHORT_SHARE
    uniform = rng.random(count)
    low = np.where(long, LONG_EXPONENTS[0], SHORT_EXPONENTS[0])
    high = np.where(long, LONG_EXPONENTS[1], SHORT_EXPONENTS[1])
    duration_s = 60.0 * 10.0 ** (low + (high - low) * uniform)
    drawn = rng.choice(np.array(SIZES), count, p=np.array(SIZE_SHARES))
    gpus = drawn if wanted.multi_gpu else np.ones(count, np.int64)
    pick = rng.random(count)
    gaps = rng.exponential(1.0, count)
    known = {size: _known(catalogue, size, wanted.reference_type) for size in sorted(set(gpus.tolist()))}
    models: list[str] = []
    steps = np.zeros(count, np.int64)
    for k in range(count):
        names = known[int(gpus[k])]
        model, speed = names[int(pick[k] * len(names))]
        models.append(model)
        steps[k] = max(1, round(float(duration_s[k]) * speed))
    submit_s = np.zeros(count) if wanted.jobs_per_hour is None else np.cumsum(gaps) * 3600.0 / wanted.jobs_per_hour
    submit_s = submit_s - submit_s[0]
    trace = trace_from_arrays("gavel-synthetic", submit_s, gpus.astype(float), duration_s, {"generator_seed": seed})
    jobs = trace.jobs.with_columns(
        pl.lit(None, pl.Float64).alias("duration_s"),
        pl.Series("model", models, dtype=pl.String),
        pl.Series(
            "batch_size",
            [split_batch_size(name)[1] for name in models],
            dtype=trace.jobs.schema["batch_size"],
        ),
        pl.Series("iterations", steps).cast(trace.jobs.schema["iterations"]),
        pl.lit("submit_s|gpus|model|batch_size|iterations").alias("generated_fields"),
    )
    return JobTrace(trace.name, jobs, trace.meta, source="generator")


def _known(catalogue: ThroughputCatalogue, gpus: int, reference_type: str) -> list[tuple[str, float]]:
    found = [
        (name, speed)
        for name in catalogue.models
        if (speed := catalogue.steps_per_s(name, gpus, reference_type)) is not None and speed > 0
    ]
    if not found:
        raise InputError(
            f"the throughput table knows no model on {gpus} {reference_type}", "Gavel's table, or one like it",
            "Use another table or reference type.", column="throughputs",
        )  # fmt: skip
    return found
