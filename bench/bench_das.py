"""DAS's speed: a decision with 100 waiting jobs on 200 machines, half full and empty; and an episode of training."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from trainmaster.learn.das.jobs import draw_stream, synthetic_pool
from trainmaster.learn.das.play import Player
from trainmaster.learn.das.world import GPUS_ASKED, JOBS, SITES, World
from trainmaster.model.cluster import Node, cluster_of
from trainmaster.policies import registry
from trainmaster.policies.das.weights import load_once
from trainmaster.testing.builders import a_job, a_view


def a_crowd(running: int):
    """100 waiting jobs of many sizes and lengths on 200 machines of 4 GPUs, `running` jobs of 4 GPUs on them."""
    rng = np.random.default_rng(1)
    nodes = [Node(f"m{k:03d}", "v100" if k % 8 < 5 else "p100", 4, rack=f"r{k // 8}") for k in range(200)]
    speeds = {"v100": 1.0, "p100": 0.8}
    held = [a_job(f"r{k}", gpus=4, seconds=5_000.0, speeds=speeds, model=f"kind-{k % 8}") for k in range(running)]
    waiting = [
        a_job(f"w{k}", gpus=int(rng.choice([1, 2, 4, 8, 16])), seconds=float(rng.lognormal(8, 1)), speeds=speeds,
              submit_s=float(k), model=f"kind-{k % 8}")
        for k in range(100)
    ]  # fmt: skip
    return a_view([*held, *waiting], cluster_of(nodes), running=[job.id for job in held], now_s=1_000.0)


def main() -> None:
    policy = registry.create("das")
    for label, running in (("every machine full", 200), ("half of the machines full", 100), ("empty", 0)):
        view = a_crowd(running)
        view = replace(view, memo=policy.decide(view).memo)  # compiles, and has seen who runs
        spent, plan = [], policy.decide(view)
        for _ in range(15):
            begun = time.process_time()
            plan = policy.decide(view)
            spent.append(time.process_time() - begun)
        print(
            f"decision, 100 waiting on 200 machines, {label}: {1e3 * np.median(spent):.1f} ms CPU"
            f" ({len(plan.changes)} started)"
        )
    weights = load_once("")
    stream = draw_stream([synthetic_pool()], "test", 1, JOBS, GPUS_ASKED)
    for site in SITES.values():
        begun = time.process_time()
        Player(World(site, stream), weights.agents, weights.kernel).play()
        print(f"episode of {JOBS} jobs on {site.name}: {time.process_time() - begun:.2f} s CPU")


if __name__ == "__main__":
    main()
