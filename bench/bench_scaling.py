"""CPU per event of queue policies as the queue and the cluster grow, and the ratio per doubling.

Run: python bench/bench_scaling.py [--policies srtf,las] [--ends 5000] [--repeat 2]. Many jobs come at once, more keep
coming; what is measured is the time in which the next jobs end while all others wait. Nothing is read.
"""

from __future__ import annotations

import argparse
import time
from itertools import pairwise

import numpy as np

from trainmaster.engine.records import Settings
from trainmaster.estimate.declared import DeclaredSpeeds
from trainmaster.model.cluster import Cluster, parse_cluster
from trainmaster.model.units import NEVER_MS
from trainmaster.policies.registry import create
from trainmaster.sim.job_list import JobList
from trainmaster.sim.run import _Run
from trainmaster.sim.truth import TruthOptions
from trainmaster.sim.workload import workload
from trainmaster.traces.generator import trace_from_arrays

POLICIES = ("fifo", "fifo:backfill=true", "sjf", "srtf", "las", "tiresias", "edf")
QUEUES = (10_000, 20_000, 40_000, 80_000)
NODES = (312, 625, 1_250, 2_500)
SIZES, SHARES = (1, 2, 4, 8, 16), (0.66, 0.1, 0.15, 0.05, 0.04)


def jobs_for(cluster: Cluster, waiting: int, ends: int) -> JobList:
    """Jobs that fill the cluster and a queue behind it at once, then one for each that ends."""
    rng = np.random.Generator(np.random.PCG64(1))
    fill = round(cluster.total_gpus / float(np.dot(SIZES, SHARES)))
    n = fill + waiting + 2 * ends
    gpus = rng.choice(SIZES, n, p=SHARES)
    durations_s = np.ceil(np.clip(3600 * np.exp(1.2 * rng.standard_normal(n)), 60, 10 * 86_400))
    gap_s = 5000.0 / fill
    submits_s = np.concatenate([np.zeros(fill + waiting), gap_s * np.arange(1, 2 * ends + 1)])
    return workload(trace_from_arrays("scaling", submits_s, gpus, durations_s, {}), cluster).specs


def us_per_event(policy: str, nodes: int, waiting: int, ends: int) -> float:
    cluster = parse_cluster(f"gpu={8 * nodes}x8")
    jobs = jobs_for(cluster, waiting, ends)
    settings = Settings(resend_ms=NEVER_MS // 2)
    run = _Run(jobs, cluster, create(policy), settings, TruthOptions(), DeclaredSpeeds(), None)
    loop = run.loop
    loop.until_over = ends // 4
    loop.go()
    loop.until_over = run.engine.n_over + ends
    events, begun = loop.events, time.process_time()
    loop.go()
    return (time.process_time() - begun) / (loop.events - events) * 1e6


def table(
    title: str, policies: list[str], cells: list[tuple[int, int]], labels: tuple[int, ...], ends: int, repeat: int
):
    print(f"\n{title}: CPU us per event, ratio per doubling\n{'policy':20s}" + "".join(f"{x:>16,d}" for x in labels))
    for policy in policies:
        found = [min(us_per_event(policy, *cell, ends) for _ in range(repeat)) for cell in cells]
        ratios = ["", *(f" x{b / a:.2f}" for a, b in pairwise(found))]
        line = "".join(f"{f'{us:.2f}{ratio}':>16s}" for us, ratio in zip(found, ratios, strict=True))
        print(f"{policy:20s}{line}  worst x{max(b / a for a, b in pairwise(found)):.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument("--ends", type=int, default=5000)
    parser.add_argument("--repeat", type=int, default=2)
    wanted = parser.parse_args()
    policies = wanted.policies.split(",")
    queues = [(NODES[0], waiting) for waiting in QUEUES]
    nodes = [(n, QUEUES[0]) for n in NODES]
    table("waiting jobs (312 nodes)", policies, queues, QUEUES, wanted.ends, wanted.repeat)
    table("nodes (10,000 waiting jobs)", policies, nodes, NODES, wanted.ends, wanted.repeat)


if __name__ == "__main__":
    main()
