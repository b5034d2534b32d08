"""DAS on clusters that it has not been trained on, beside rules of this product that do not stop jobs either.

    python bench/das_elsewhere.py --trace A.csv.gz --trace B.csv.gz --out OUT.json [--part test] [POLICY ...]

Windows of real traces, durations as they were (a minute to five days) and known exactly, as `trainmaster simulate`
tells them to every policy; gaps stretched to a load. Played by the engine. What OUT.json holds is not played again.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import numpy as np

from trainmaster.engine.engine import Settings
from trainmaster.learn.das.jobs import GPUS_MAX, JobPool, draw_stream, pools_of, seeds_of
from trainmaster.learn.das.world import Site, World
from trainmaster.model.cluster import parse_cluster
from trainmaster.policies import registry
from trainmaster.sim.run import simulate
from trainmaster.sim.truth import TruthOptions

SPEED = {"v100": 1.0, "p100": 0.55, "k80": 0.2}
PRICE = {"v100": 2.48, "p100": 1.46, "k80": 0.45}
CLUSTERS = {
    "v100=64x8": True,
    "v100=32x8,k80=32x4": True,
    "v100=32x8,k80=32x4, speeds unknown": False,
    "v100=12,p100=12,k80=12": True,
    "v100=48x4,p100=24x4": True,
}
"""And whether the types differ in speed (a trace that does not name models says nothing of that)."""
LOADS = (0.7, 1.2)
JOBS = 300
WORLDS = {"free": TruthOptions(), "lossy": TruthOptions(spread_penalty=0.1, interference=0.2, node_variation=0.1)}
"""As `simulate` without options; and one where gangs on several machines, neighbours and machines matter."""

Figures = dict[str, dict[str, list[float]]]
"""By policy and case: mean completion time (s), dollars."""


def site_of(name: str) -> Site:
    cluster = parse_cluster(name.partition(", ")[0], PRICE)
    speed = {kind: SPEED[kind] if CLUSTERS[name] else 1.0 for kind in cluster.types}
    machines = tuple((node.accelerator, node.gpus) for node in cluster.nodes)
    return Site(name, machines, tuple(speed.items()), tuple(PRICE.items()))


def play(pools: list[JobPool], policy: str, cluster: str, load: float, seed: int, part: str, world: str) -> list[float]:
    site = site_of(cluster)
    speeds, all_ = dict(site.speed), site.cluster()
    worth = sum(gpus * speeds[kind] for kind, gpus in site.machines)
    largest = min(GPUS_MAX, int(all_.gpus_by_type.max()))
    stream = draw_stream(pools, part, seed, JOBS, load * worth, largest, real=True)
    specs = World(site, stream).job_specs()
    result = simulate(specs, all_, registry.create(policy), Settings(seed=seed), WORLDS[world])
    times = [(end.ended_ms - end.spec.submit_ms) / 1000.0 for end in result.ended]
    return [float(np.mean(times)), float(sum(end.cost for end in result.ended))]


def study(pools: list[JobPool], policies: list[str], part: str, windows: int, worlds: list[str], out: Path) -> None:
    figures: Figures = json.loads(out.read_text()) if out.exists() else {}
    for policy in policies:
        done = figures.setdefault(policy, {})
        for world in worlds:
            for cluster in CLUSTERS:
                for load in LOADS:
                    for seed in seeds_of(part, windows, 700):
                        case = f"{world}/{cluster}/{load}/{seed}"
                        if case not in done:
                            done[case] = play(pools, policy, cluster, load, seed, part, world)
                out.with_suffix(".new").write_text(json.dumps(figures))
                os.replace(out.with_suffix(".new"), out)
    show(figures, policies)


def show(figures: Figures, policies: list[str]) -> None:
    """By world and cluster: of each policy the ratio of das's completion time and cost to its own (geometric means
    over windows and loads), with half of the 95 % interval."""
    first = policies[0]
    groups = dict.fromkeys(case.rsplit("/", 2)[0] for case in figures[first])
    for group in [*groups, ""]:
        cases = [case for case in figures[first] if group in ("", case.rsplit("/", 2)[0])]
        cells = []
        for other in policies[1:]:
            logs = np.log([np.array(figures[first][c]) / np.array(figures[other][c]) for c in cases])
            mean, half = logs.mean(axis=0), 1.96 * logs.std(axis=0, ddof=1) / np.sqrt(len(logs))
            cells.append(
                f"{np.exp(mean[0]):.3f} ± {half[0]:.3f} | {np.exp(logs[:, 0].max()):.2f} | {np.exp(mean[1]):.3f}"
            )
        minutes = np.mean([figures[first][c][0] for c in cases]) / 60.0
        print(f"| {group or 'all'} | {minutes:.0f} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("policies", nargs="*")
    parser.add_argument("--trace", type=Path, action="append", default=[])
    parser.add_argument("--windows", type=int, default=6)
    parser.add_argument("--part", choices=("train", "validation", "test"), default="test")
    parser.add_argument("--world", choices=tuple(WORLDS), action="append", default=[])
    parser.add_argument("--out", type=Path, required=True)
    chosen = parser.parse_intermixed_args()
    policies = chosen.policies or ["das", "sjf", "tetris"]
    study(pools_of(chosen.trace), policies, chosen.part, chosen.windows, chosen.world or list(WORLDS), chosen.out)


if __name__ == "__main__":
    main()
