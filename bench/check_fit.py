"""How close fits come: mean JCT under FIFO, SRTF, LAS on the real trace and on samples of its fit.

Run: `python bench/check_fit.py TRACE... [--load 0.8] [--seeds 3] [--window 10800]`. Zero-cost, count-only
placement in a simulator of its own (below), so that the result does not depend on the product's.
"""

from __future__ import annotations

import argparse

import numpy as np
import polars as pl
from numba import njit

from trainmaster.traces import JobTrace, load
from trainmaster.traces.fit import fit, sample, to_json
from trainmaster.traces.slice import slice_trace

FIFO, SRTF, LAS = 0, 1, 2


@njit(cache=True)
def mean_jct_s(submit, gpus, duration, capacity, policy, quantum_s):
    """FIFO: strict head of line. SRTF: by remaining time, skipping what does not fit, at every event. LAS: by
    attained GPU time, at every event and every `quantum_s`."""
    n = len(submit)
    remaining = duration.copy()
    attained = np.zeros(n)
    active = np.empty(n, np.int64)
    running = np.zeros(n, np.bool_)
    count = 0
    arrived = 0
    now = 0.0
    total = 0.0
    done = 0
    while done < n:
        while arrived < n and submit[arrived] <= now:
            active[count] = arrived
            count += 1
            arrived += 1
        free = capacity
        if policy == FIFO:
            for k in range(count):
                if running[active[k]]:
                    free -= gpus[active[k]]
            for k in range(count):
                j = active[k]
                if not running[j]:
                    if gpus[j] > free:
                        break
                    running[j] = True
                    free -= gpus[j]
        else:
            keys = np.empty(count)
            for k in range(count):
                keys[k] = remaining[active[k]] if policy == SRTF else attained[active[k]]
            order = np.argsort(keys, kind="mergesort")
            for k in range(count):
                j = active[order[k]]
                running[j] = gpus[j] <= free
                if running[j]:
                    free -= gpus[j]
        step = np.inf
        if arrived < n:
            step = submit[arrived] - now
        for k in range(count):
            j = active[k]
            if running[j] and remaining[j] < step:
                step = remaining[j]
        if policy == LAS and step > quantum_s and count > 0:
            step = quantum_s
        now += step
        left = 0
        for k in range(count):
            j = active[k]
            if running[j]:
                remaining[j] -= step
                attained[j] += step * gpus[j]
            if remaining[j] <= 1e-6:
                total += now - submit[j]
                done += 1
            else:
                active[left] = j
                left += 1
        count = left
    return total / n


def measure(trace: JobTrace, capacity: float) -> list[float]:
    jobs = trace.jobs.filter((pl.col("gpus") > 0) & (pl.col("duration_s") > 0))
    columns = [jobs[name].to_numpy().astype(float) for name in ("submit_s", "gpus", "duration_s")]
    columns[1] = np.minimum(columns[1], capacity)
    return [
        mean_jct_s(columns[0], columns[1], columns[2], capacity, policy, 600.0)
        for policy in (FIFO, SRTF, LAS)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", nargs="+")
    parser.add_argument("--load", type=float, default=0.8)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--skip", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--window", type=float, default=3 * 3600.0)
    options = parser.parse_args()
    for path in options.traces:
        real = slice_trace(load(path), first=options.skip, jobs=options.jobs)
        work = float((real.jobs["gpus"] * real.jobs["duration_s"]).sum())
        span_s = float(real.jobs["submit_s"][-1] - real.jobs["submit_s"][0])
        capacity = max(float(np.ceil(work / span_s / options.load)), float(real.jobs["gpus"].max()))  # type: ignore[arg-type]
        model = fit(real, window_s=options.window)
        truth = measure(real, capacity)
        print(
            f"{real.name}: {len(real)} jobs, {capacity:.0f} GPUs, load {work / span_s / capacity:.2f}, "
            f"model {len(to_json(model)) / 1024:.0f} KiB"
        )
        print("  real    FIFO {:9.0f}  SRTF {:9.0f}  LAS {:9.0f}".format(*truth))
        errors = []
        for seed in range(options.seeds):
            drawn = measure(sample(model, seed), capacity)
            errors.append([a / b - 1 for a, b in zip(drawn, truth, strict=True)])
            print("  seed {:d}  FIFO {:+8.1%}  SRTF {:+8.1%}  LAS {:+8.1%}".format(seed, *errors[-1]))
        print("  mean    FIFO {:+8.1%}  SRTF {:+8.1%}  LAS {:+8.1%}".format(*np.mean(errors, axis=0)))


if __name__ == "__main__":
    main()
