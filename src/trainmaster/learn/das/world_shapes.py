"""Worlds of varied shape, so that agents learn to schedule and not one cluster: machines of one to eight GPUs, one to
three types, other speeds, prices, losses and loads, durations scaled or as long as they were."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trainmaster.learn.das.jobs import GPUS_MAX, JobPool, draw_stream
from trainmaster.learn.das.world import Site, World
from trainmaster.sim.truth import TruthOptions

TYPES = ("a", "b", "c")
GPUS_TOTAL = (16, 96)
SPEED = (0.2, 1.0)
LOAD = (0.5, 2.0)
"""GPUs asked for over those there are, in terms of the fastest type."""
PRICE_PER_GPU_HOUR = 4.0


def varied_site(seed: int) -> Site:
    """A cluster drawn by the seed."""
    rng = np.random.Generator(np.random.PCG64([seed, 13]))
    types = TYPES[: int(rng.integers(1, 4))]
    total = float(np.exp(rng.uniform(*np.log(GPUS_TOTAL))))
    share = rng.dirichlet(np.full(len(types), 3.0))
    alike = rng.random() < 0.2
    machines, speed, price = [], [], []
    for gpu_type, part in zip(types, share.tolist(), strict=True):
        gpus = int(rng.choice([1, 2, 4, 8], p=[0.15, 0.15, 0.35, 0.35]))
        machines += [(gpu_type, gpus)] * max(1, round(part * total / gpus))
        relative = 1.0 if alike or gpu_type == TYPES[0] else float(rng.uniform(*SPEED))
        speed.append((gpu_type, relative))
        price.append((gpu_type, PRICE_PER_GPU_HOUR * relative * float(np.exp(rng.normal(0.0, 0.6)))))
    truth = TruthOptions(
        spread_penalty=float(rng.choice([0.0, 0.05, 0.1, 0.25])),
        interference=float(rng.choice([0.0, 0.2])),
        sensitivity_variation=0.5,
        node_variation=float(rng.choice([0.0, 0.12])),
        noise=0.04,
    )
    return Site(f"varied-{seed}", tuple(machines), tuple(speed), tuple(price), truth)


def varied_world(pools: Sequence[JobPool], part: str, seed: int, jobs: int) -> World:
    """A stream of this part on a cluster that suits its seed, at a load drawn by it."""
    site = varied_site(seed)
    cluster = site.cluster()
    speeds = dict(site.speed)
    rng = np.random.Generator(np.random.PCG64([seed, 14]))
    worth = sum(gpus * speeds[gpu_type] for gpu_type, gpus in site.machines)
    asked = float(np.exp(rng.uniform(*np.log(LOAD)))) * worth
    largest = min(GPUS_MAX, int(cluster.gpus_by_type.max()))
    return World(site, draw_stream(pools, part, seed, jobs, asked, largest, real=bool(rng.random() < 0.5)))
