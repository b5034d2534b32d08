"""CPU seconds of whole simulated runs under Gavel's policies: 300 jobs, 36 GPUs, about 2,400 rounds.

    python bench/bench_gavel_rounds.py [--throughputs FILE] [--policy P ...] [--repeat 3] [--profile]

The run itself, after imports and reading; `outside` is what is not spent in the solver. With --profile it says where
the time goes, function by function.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
from pathlib import Path

from support.gavel_synthetic import GavelSynthetic, gavel_synthetic
from trainmaster.engine.engine import Settings
from trainmaster.estimate.catalogue import load_catalogue
from trainmaster.model.cluster import parse_cluster
from trainmaster.model.placement import parse_strategy
from trainmaster.model.policy import traits_of
from trainmaster.policies.registry import create
from trainmaster.sim.run import RunResult, simulate
from trainmaster.sim.workload import workload

TABLE = Path(__file__).resolve().parents[2] / "shared/gavel/throughputs/simulation_throughputs.json"
POLICIES = (
    "gavel-max-min:mechanism=original", "gavel-max-min", "gavel-ftf:mechanism=original", "gavel-ftf",
    "gavel-makespan:mechanism=original", "gavel-water-filling", "gavel-fifo:mechanism=original",
)  # fmt: skip
ORIGINAL_CPU_S = {"gavel-max-min:mechanism=original": 6.9, "gavel-ftf:mechanism=original": 46.0}
CLUSTER = "v100=12,p100=12,k80=12"


def once(table: Path, policy_text: str, seed: int, jobs: int, per_hour: float, multi_gpu: bool) -> RunResult:
    catalogue = load_catalogue(table)
    cluster = parse_cluster(CLUSTER)
    trace = gavel_synthetic(GavelSynthetic(jobs, per_hour, multi_gpu), catalogue, seed)
    policy = create(policy_text)
    placement = traits_of(policy).placement or "pack"
    settings = Settings(placement=parse_strategy(placement), round_ms=360_000, seed=seed)
    return simulate(workload(trace, cluster, catalogue).specs, cluster, policy, settings)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--throughputs", type=Path, default=TABLE)
    parser.add_argument("--policy", action="append")
    parser.add_argument("--jobs", type=int, default=300)
    parser.add_argument("--per-hour", type=float, default=1.5)
    parser.add_argument("--multi-gpu", action="store_true", help="gangs of 1, 2, 4, 8 in place of single GPUs")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--profile", action="store_true")
    asked = parser.parse_args()
    print(
        f"{'policy':38} {'rounds':>7} {'decisions':>9} {'cpu_s':>7} {'outside':>7} {'us/decision':>11} {'original':>8}"
    )
    for policy in asked.policy or POLICIES:
        arguments = (asked.throughputs, policy, 0, asked.jobs, asked.per_hour, asked.multi_gpu)
        once(asked.throughputs, policy, 1, 30, asked.per_hour, asked.multi_gpu)
        runs = [once(*arguments) for _ in range(asked.repeat)]
        best = min(runs, key=lambda run: run.cpu_s - run.solver_cpu_s)
        original = ORIGINAL_CPU_S.get(policy, "")
        print(
            f"{policy:38} {best.end_ms // 360_000:7d} {best.decisions:9d} {best.cpu_s:7.3f}"
            f" {best.cpu_s - best.solver_cpu_s:7.3f} {1e6 * best.cpu_s / best.decisions:11.0f} {original!s:>8}",
            flush=True,
        )
        if asked.profile:
            profiler = cProfile.Profile()
            profiler.runcall(once, *arguments)
            pstats.Stats(profiler).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    main()
