"""What learning speeds costs Optimus, and what one try of a size across nodes is worth.

    python bench/study_exploring.py [--data DIR] [--jobs N] [--seeds N]

Elastic jobs with the measured curves of AdaptDL's applications (DIR as for study_speeds.py; the population of the
estimator is learned without them) on 16 nodes of 4 GPUs, resize and restart 30 s. Prints mean completion time over that
with the true curves.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np

from support.speed_study import Curves, Gavel, adaptdl, as_seen
from trainmaster.engine.engine import Settings
from trainmaster.estimate.declared import DeclaredSpeeds
from trainmaster.estimate.speeds.learned import LearningEstimator
from trainmaster.estimate.speeds.population import Population, learn, vague
from trainmaster.model.cluster import parse_cluster
from trainmaster.model.job import JobId, JobSpec
from trainmaster.model.scaling import Scaling
from trainmaster.policies.registry import create
from trainmaster.sim.run import simulate
from trainmaster.sim.truth import TruthOptions

GPUS, NODE = 64, 4
COSTS = {"restart_cost_ms": 30_000, "resize_cost_ms": 30_000}


def jobs_of(curves: Curves, count: int, hours: float, load: float, seed: int, most: int) -> list[JobSpec]:
    """`hours`: mean run time on four GPUs of a node; `load`: GPU time that they would take so, over what there is."""
    rng = np.random.Generator(np.random.PCG64([seed, count]))
    profiles = sorted(curves)
    lengths_s = 3600.0 * hours * rng.lognormal(-0.125, 0.5, count)
    gaps_s = rng.exponential(1.0, count) * float(lengths_s.mean()) * 4 / (GPUS * load)
    at_ms = (np.cumsum(gaps_s) * 1000).astype(np.int64)
    specs = []
    for k in range(count):
        profile = profiles[int(rng.integers(len(profiles)))]
        points = tuple(sorted((place.workers, speed) for place, speed in curves[profile].items()))
        curve = Scaling(points=points)
        specs.append(
            JobSpec(
                JobId(f"job-{k}"), int(at_ms[k]), model=profile.model, batch_size=int(profile.batch), scaling=curve,
                workers_max=most, steps_per_s={"gpu": dict(points)[1]}, work_total=float(curve.speed(4) * lengths_s[k]),
            )
        )  # fmt: skip
    return specs


def mean_jct_s(specs: list[JobSpec], policy: str, population: Population | None) -> tuple[float, int]:
    """With the true curves where there is no population; and how many jobs were resized across nodes or restarted."""
    truth = TruthOptions(**COSTS) if population is None else TruthOptions(
        **COSTS, report_ms=30_000, report_period_ms=30_000
    )  # fmt: skip
    estimator = (
        DeclaredSpeeds()
        if population is None
        else LearningEstimator(DeclaredSpeeds(), declared=False, population=population)
    )
    result = simulate(specs, parse_cluster(f"gpu={GPUS}x{NODE}"), create(policy), Settings(), truth, estimator)
    submit = {spec.id: spec.submit_ms for spec in specs}
    return float(np.mean([end.ended_ms - submit[end.spec.id] for end in result.ended])) / 1000.0, len(result.ended)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = os.environ.get("TRAINMASTER_DATA") or Path(__file__).resolve().parents[2] / "shared"
    parser.add_argument("--data", type=Path, default=default)
    parser.add_argument("--jobs", type=int, default=160)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--cases", default="1:0.5:32,1:0.9:32,0.1667:0.9:32,1:0.9:4", help="hours:load:most workers")
    args = parser.parse_args()
    data = Path(args.data)
    curves = adaptdl(data / "traces/raw/adaptdl_profiles")
    gavel = Gavel(data / "gavel/throughputs/simulation_throughputs.json")
    known = [
        (p.model, as_seen(p, curve)) for kind in ("k80", "p100") for p, curve in gavel.curves(kind, across=True).items()
    ]
    population = learn(known, vague())
    print(f"{'hours':>6} {'load':>5} {'most':>5} {'true s':>8} {'learned':>8} {'one try':>8}")
    for case in args.cases.split(","):
        hours, load, most = (float(part) for part in case.split(":"))
        found = []
        for seed in range(args.seeds):
            specs = jobs_of(curves, args.jobs, hours, load, seed, int(most))
            found.append(
                [
                    mean_jct_s(specs, "optimus", None)[0],
                    mean_jct_s(specs, "optimus:explore=false", population)[0],
                    mean_jct_s(specs, "optimus", population)[0],
                ]
            )
        true, learned, tried = np.mean(found, axis=0)
        print(f"{hours:6.3g} {load:5.2g} {most:5.0f} {true:8.0f} {learned / true:8.3f} {tried / true:8.3f}", flush=True)


if __name__ == "__main__":
    main()
