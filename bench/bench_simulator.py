"""Simulator throughput: jobs per CPU-second on philly-mix-1k, and growth on the real Philly trace.

Run: python bench/bench_simulator.py [--full]. Needs the real traces (TRAINMASTER_DATA or ../shared). The baseline
in the same run is a plain event-driven FIFO/SRTF in pure Python with none of the engine's duties (no nodes, no
plans, no verification): what the duties cost is the ratio.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from dataclasses import replace
from pathlib import Path

import polars as pl

from trainmaster.sim.experiment import Experiment, Prepared, prepare, run
from trainmaster.traces import load, write

DATA = Path(os.environ.get("TRAINMASTER_DATA", Path(__file__).resolve().parent.parent.parent / "shared"))
GOLDEN_S = {"fifo": 67_745.0, "srtf": 21_237.0}


def naive(jobs: list[tuple[float, float, int]], gpus: int, preemptive: bool) -> float:
    """Mean JCT by a minimal simulator: lists, no nodes."""
    waiting: list[list[float]] = []
    running: list[list[float]] = []
    free, now, done, k = gpus, 0.0, 0.0, 0
    jobs = sorted(jobs)
    while k < len(jobs) or waiting or running:
        arrival = jobs[k][0] if k < len(jobs) else float("inf")
        finish = min((now + r[0] for r in running), default=float("inf"))
        step = min(arrival, finish) - now
        for r in running:
            r[0] -= step
        now += step
        for r in [r for r in running if r[0] <= 1e-9]:
            running.remove(r)
            free += int(r[1])
            done += now - r[2]
        if k < len(jobs) and jobs[k][0] <= now:
            waiting.append([jobs[k][1], jobs[k][2], jobs[k][0]])
            k += 1
        if preemptive:
            pool = sorted(waiting + running)
            free, running, waiting = gpus, [], []
            for r in pool:
                (running if r[1] <= free else waiting).append(r)
                free -= int(r[1]) if r[1] <= free else 0
        else:
            while waiting and waiting[0][1] <= free:
                r = waiting.pop(0)
                free -= int(r[1])
                running.append(r)
    return done / len(jobs)


def small() -> None:
    trace = DATA / "traces/philly-mix-1k.csv"
    rows = [(s.submit_ms / 1000, s.work_total or 0.0, s.workers_ref) for s in _prepared(trace, "fifo", 64).specs]
    print(f"{'policy':22s} {'mean JCT s':>11s} {'golden':>9s} {'CPU s':>7s} {'jobs/CPU-s':>10s} {'naive CPU s':>11s}")
    for policy in ("fifo", "srtf", "fifo:backfill=true", "sjf", "las", "tiresias"):
        prepared = _prepared(trace, policy, 64)
        run(prepared)
        best = min((run(prepared).summary for _ in range(3)), key=lambda s: s["cpu_s"])
        baseline = float("nan")
        if policy in GOLDEN_S:
            begun = time.process_time()
            naive(rows, 64, policy == "srtf")
            baseline = time.process_time() - begun
        print(
            f"{policy:22s} {best['average_jct_s']:11,.0f} {GOLDEN_S.get(policy, float('nan')):9,.0f}"
            f" {best['cpu_s']:7.3f}"
            f" {1000 / best['cpu_s']:10,.0f} {baseline:11.3f}"
        )


def large(folder: Path) -> None:
    trace = load(DATA / "traces/philly.csv.gz")
    # 2017-10-01 .. 2017-11-30
    window = trace.jobs.filter((pl.col("submit_wall") >= "2017-10-01") & (pl.col("submit_wall") < "2017-12-01"))
    print(f"{'policy':22s} {'jobs':>7s} {'CPU s':>7s} {'us/job':>7s} {'mean JCT h':>10s} {'peak MB':>8s}")
    for policy in ("fifo:backfill=true", "srtf"):
        for size in (10_000, 30_000, len(window)):
            part = replace(trace, jobs=window.head(size))
            path = folder / f"philly-{size}.parquet"
            write(part, path)
            s = run(_prepared(path, policy, 2490)).summary
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            print(
                f"{policy:22s} {size:7d} {s['cpu_s']:7.1f} {s['cpu_s'] / size * 1e6:7.0f}"
                f" {s['average_jct_s'] / 3600:10.2f} {peak:8.0f}"
            )


def _prepared(trace: Path, policy: str, gpus: int) -> Prepared:
    return prepare(Experiment(str(trace), policy, f"gpu={gpus}", placement="count"))


if __name__ == "__main__":
    if not (DATA / "traces/philly-mix-1k.csv").exists():
        sys.exit(f"no traces in {DATA}: set TRAINMASTER_DATA")
    small()
    if "--full" in sys.argv:
        import tempfile

        with tempfile.TemporaryDirectory() as name:
            large(Path(name))
