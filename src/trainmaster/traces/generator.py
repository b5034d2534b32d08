"""Seeded synthetic traces: arrivals, sizes and heavy-tailed durations; same seed, same bytes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from trainmaster.model.errors import InputError
from trainmaster.traces.arrivals import PROCESSES
from trainmaster.traces.schema import JOB_COLUMNS, LINE, LONGEST_S
from trainmaster.traces.trace import JobTrace


@dataclass(frozen=True)
class GeneratorSpec:
    """What to generate. Durations are log-normal with a Pareto tail; sizes are independent of them."""

    jobs: int = 1000
    arrivals: str = "poisson"
    load: float = 0.9  # offered GPU-seconds per available GPU-second
    cluster_gpus: int = 64
    gpu_mix: dict[int, float] = field(default_factory=lambda: {1: 0.7, 2: 0.1, 4: 0.15, 8: 0.05})
    median_s: float = 1800.0
    sigma: float = 1.6
    tail_fraction: float = 0.05
    tail_index: float = 1.5
    duration_max_s: float = 14 * 86_400.0
    name: str = "generated"

    def check(self) -> None:
        shares = self.gpu_mix.values()
        sizes_fit = all(gpus > 0 for gpus in self.gpu_mix) and all(0 <= share < math.inf for share in shares)
        bounds = {
            "jobs": (1 <= self.jobs <= 10_000_000, "1 to 10,000,000"),
            "load": (1e-6 <= self.load <= 100, "0.000001 to 100"),
            "cluster_gpus": (self.cluster_gpus >= 1, "at least 1"),
            "median_s": (0 < self.median_s <= LONGEST_S, f"a positive number of seconds, at most {LONGEST_S:g}"),
            "sigma": (0 <= self.sigma <= 5, "0 to 5"),
            "duration_max_s": (0 < self.duration_max_s <= LONGEST_S, f"above 0 and at most {LONGEST_S:g} seconds"),
            "tail_fraction": (0 <= self.tail_fraction < 1, "0 or more, below 1"),
            "tail_index": (self.tail_index > 1, "above 1"),
            "arrivals": (self.arrivals in PROCESSES, f"one of {', '.join(sorted(PROCESSES))}"),
            "gpu_mix": (sizes_fit and sum(shares) > 0, "sizes above 0 with shares that are not negative nor all 0"),
        }
        for name, (holds, expected) in bounds.items():
            if not holds:
                raise InputError(f"{getattr(self, name)!r} is not possible", expected, column=name)


def generate(spec: GeneratorSpec, seed: int) -> JobTrace:
    """A trace of `spec.jobs` jobs; its offered load on `spec.cluster_gpus` is `spec.load`."""
    spec.check()
    rng = np.random.Generator(np.random.PCG64(seed))
    sizes = np.array(sorted(spec.gpu_mix))
    shares = np.array([spec.gpu_mix[size] for size in sizes.tolist()], dtype=float)
    gpus = rng.choice(sizes, spec.jobs, p=shares / shares.sum()).astype(float)
    durations_s = _durations(spec, rng)
    rate_per_s = spec.load * spec.cluster_gpus / float(np.mean(gpus * durations_s))
    submits_s = PROCESSES[spec.arrivals](spec.jobs, rate_per_s, rng)
    return trace_from_arrays(spec.name, submits_s, gpus, durations_s, {"generator_seed": seed})


def _durations(spec: GeneratorSpec, rng: np.random.Generator) -> np.ndarray:
    body = spec.median_s * np.exp(spec.sigma * rng.standard_normal(spec.jobs))
    start_s = spec.median_s * np.exp(spec.sigma * 1.645)  # the body's 95th percentile
    tail = start_s * (1.0 - rng.random(spec.jobs)) ** (-1.0 / spec.tail_index)
    mixed = np.where(rng.random(spec.jobs) < spec.tail_fraction, tail, body)
    return np.ceil(np.clip(mixed, 1.0, spec.duration_max_s))


def trace_from_arrays(
    name: str, submits_s: np.ndarray, gpus: np.ndarray, durations_s: np.ndarray, meta: dict
) -> JobTrace:
    """A generated trace: whole seconds, jobs numbered in order of arrival, every drawn column marked."""
    order = np.argsort(submits_s, kind="stable")
    count = len(order)
    width = len(str(max(count - 1, 1)))
    columns: dict[str, pl.Series] = {
        "trace_id": pl.Series([name] * count),
        "job_id": pl.Series([f"g{index:0{width}d}" for index in range(count)]),
        "submit_s": pl.Series(np.round(submits_s[order])),
        "duration_s": pl.Series(durations_s[order].astype(float)),
        "duration_kind": pl.Series(["generated"] * count),
        "gpus": pl.Series(gpus[order].astype(float)),
        "gang": pl.Series([True] * count),
        "generated_fields": pl.Series(["submit_s|duration_s|gpus"] * count),
    }
    jobs = pl.DataFrame(
        [
            columns[c.name].cast(c.dtype).alias(c.name)
            if c.name in columns
            else pl.Series(c.name, [None], dtype=c.dtype).new_from_index(0, count)
            for c in JOB_COLUMNS
        ]
    ).with_columns(pl.int_range(2, pl.len() + 2, dtype=pl.Int64).alias(LINE))
    return JobTrace(name, jobs, meta, source="generator")
