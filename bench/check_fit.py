"""How close fits come: mean JCT under FIFO, SRTF, LAS on the real trace and on samples of its fit.

Run: `python bench/check_fit.py TRACE... [--load 0.8] [--jobs 10000] [--seeds 3] [--window 10800]`, in
the product's own simulator: count-only placement, no costs, the same cluster for both. Exits with 1 when a
mean over seeds is off by more than --limit (15 %).
"""

from __future__ import annotations

import argparse
import sys
import time

import numpy as np
import polars as pl

from trainmaster.engine.engine import Settings
from trainmaster.model.cluster import parse_cluster
from trainmaster.model.placement import Strategy
from trainmaster.policies.registry import create
from trainmaster.sim.metrics import summary
from trainmaster.sim.run import simulate
from trainmaster.sim.workload import workload
from trainmaster.traces import JobTrace, load
from trainmaster.traces.fit import fit, sample, to_json
from trainmaster.traces.slice import slice_trace

POLICIES = ("fifo", "srtf", "las:quantum_s={quantum:g}")


def mean_jcts_s(trace: JobTrace, gpus: int, quantum_s: float) -> list[float]:
    """Under each policy, on one pool of GPUs. Jobs larger than the pool are cut to its size in both."""
    cluster = parse_cluster(f"gpu={gpus}x{gpus}")
    unknown = ("gpus_per_worker", "cpus", "mem_gib", "gpu_types", "min_gpus", "max_gpus", "utility", "extra")
    jobs = trace.jobs.filter((pl.col("gpus") > 0) & (pl.col("duration_s") > 0)).with_columns(
        *(pl.lit(None, trace.jobs.schema[name]).alias(name) for name in unknown),
        gpus=pl.min_horizontal(pl.col("gpus").ceil(), pl.lit(float(gpus))),
        num_workers=pl.lit(1, pl.Int64()),
    )
    specs = workload(JobTrace(trace.name, jobs), cluster).specs
    settings = Settings(placement=Strategy.COUNT)
    made = []
    for name in POLICIES:
        begun = time.perf_counter()
        result = simulate(specs, cluster, create(name.format(quantum=quantum_s)), settings)
        made.append(summary(result)["average_jct_s"])
        print(
            f"    {name.format(quantum=quantum_s):24s} {made[-1]:9.0f} s  ({time.perf_counter() - begun:.1f} s)",
            file=sys.stderr,
        )
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", nargs="+")
    parser.add_argument("--load", type=float, default=0.8)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--skip", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--window", type=float, default=3 * 3600.0)
    parser.add_argument("--quantum", type=float, default=600.0, help="seconds between looks of LAS")
    parser.add_argument("--limit", type=float, default=0.15)
    options = parser.parse_args()
    worst = 0.0
    for path in options.traces:
        real = slice_trace(load(path), first=options.skip, jobs=options.jobs)
        work = float((real.jobs["gpus"] * real.jobs["duration_s"]).sum())
        span_s = float(real.jobs["submit_s"][-1] - real.jobs["submit_s"][0])
        largest = float(real.jobs["gpus"].max())  # type: ignore[arg-type]
        gpus = int(max(np.ceil(work / span_s / options.load), largest))
        model = fit(real, window_s=options.window)
        print(
            f"{real.name}: {len(real)} jobs, {gpus} GPUs, load {work / span_s / gpus:.2f}, "
            f"model {len(to_json(model)) / 1024:.0f} KiB",
            flush=True,
        )
        truth = mean_jcts_s(real, gpus, options.quantum)
        print("  real    FIFO {:9.0f}  SRTF {:9.0f}  LAS {:9.0f}".format(*truth), flush=True)
        errors = []
        for seed in range(options.seeds):
            drawn = mean_jcts_s(sample(model, seed), gpus, options.quantum)
            errors.append([a / b - 1 for a, b in zip(drawn, truth, strict=True)])
            print(
                "  seed {:d}  FIFO {:+8.1%}  SRTF {:+8.1%}  LAS {:+8.1%}".format(seed, *errors[-1]),
                flush=True,
            )
        mean = np.mean(errors, axis=0)
        print("  mean    FIFO {:+8.1%}  SRTF {:+8.1%}  LAS {:+8.1%}".format(*mean), flush=True)
        worst = max(worst, float(np.abs(mean).max()))
    if worst > options.limit:
        sys.exit(f"off by {worst:.1%}: more than {options.limit:.0%}")


if __name__ == "__main__":
    main()
