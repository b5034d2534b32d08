"""Space sharing: pairs whose speeds are known, learned on the way, or never tried; mean completion times over seeds.

    python bench/study_sharing.py --shared FOLDER [--seeds 8] [--policy gavel-max-min] [--json FILE]

Workloads: Gavel's trace of 96 jobs, resampled by seed, on half of the GPUs that it was made for. Truth: Gavel's
measured pairs; attempts vary by 5 %, a restart costs 20 s. `learned`: nothing is known of pairs in the beginning; what
jobs alone are worth on each type is known to all.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from trainmaster.engine.ports import Estimator
from trainmaster.estimate.declared import DeclaredSpeeds
from trainmaster.estimate.pairs import PairSlowdowns
from trainmaster.estimate.speeds.learned import LearningEstimator
from trainmaster.model.job import JobSpec
from trainmaster.model.scaling import Measurement, News
from trainmaster.sim.experiment import Experiment, prepare
from trainmaster.sim.metrics import job_table, summary
from trainmaster.sim.run import simulate

CLUSTERS = {
    "3 x 2 GPUs": "v100=2,p100=2,k80=2",
    "3 x 4 GPUs": "v100=4,p100=4,k80=4",
    "3 x 6 GPUs": "v100=6,p100=6,k80=6",
}
VARIANTS = ("alone", "learned", "oracle")
REPORT_MS, PERIOD_MS = 60_000, 300_000


class PairsLearned(LearningEstimator):
    """Learns what pairs keep; what jobs are worth alone, they declare."""

    table = group = None  # type: ignore[assignment]

    def profile(self, spec: JobSpec, types: Any) -> Any:
        return self.prior.profile(spec, types)

    def observe(self, measured: Measurement) -> News:
        super().observe(measured)
        return News.NONE


def run(shared: Path, policy: str, cluster: str, seed: int, variant: str, jobs: int) -> dict[str, float]:
    estimator: Estimator | None = PairsLearned(DeclaredSpeeds()) if variant == "learned" else None
    name = policy if variant == "alone" or policy == "gandiva" else f"{policy}:space_sharing=true"
    experiment = Experiment(
        trace=str(shared / "gavel/traces/physical_max_min_fairness.trace"), policy=name, cluster=CLUSTERS[cluster],
        throughputs=str(shared / "gavel/throughputs/simulation_throughputs.json"), round_s=360, seed=seed,
        resample="jobs", restart_cost_s=20.0, noise=0.05,
    )  # fmt: skip
    prepared = prepare(experiment)
    assert prepared.catalogue is not None
    pairs, truth = PairSlowdowns(prepared.catalogue), prepared.truth
    if estimator is not None:
        truth = replace(truth, report_ms=REPORT_MS, report_period_ms=PERIOD_MS)
    begun = time.process_time()
    result = simulate(
        list(prepared.specs)[:jobs], prepared.cluster, prepared.policy, prepared.settings, truth, pairs=pairs,
        estimator=estimator or DeclaredSpeeds(0.0, pairs),
    )  # fmt: skip
    assert result.plans_refused == 0
    found = summary(result, job_table(result))
    return {"jct_h": found["average_jct_s"] / 3600, "makespan_h": found["makespan_s"] / 3600,
            "cpu_s": time.process_time() - begun}  # fmt: skip


def interval(values: list[float]) -> str:
    """Mean and half-width of the 95 % interval (Student)."""
    n = len(values)
    t = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26}.get(n, 2.0)
    return f"{np.mean(values):.2f} ± {t * np.std(values, ddof=1) / math.sqrt(n):.2f}" if n > 1 else f"{values[0]:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shared", type=Path, default=Path(__file__).resolve().parents[2] / "shared")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=96)
    parser.add_argument("--policy", default="gavel-max-min")
    parser.add_argument("--clusters", nargs="*", default=list(CLUSTERS))
    parser.add_argument("--variants", nargs="*", default=list(VARIANTS))
    parser.add_argument("--json", type=Path)
    wanted = parser.parse_args()
    rows = []
    for cluster in wanted.clusters:
        found: dict[str, list[dict[str, float]]] = {}
        for variant in wanted.variants:
            for seed in range(wanted.first, wanted.first + wanted.seeds):
                one = run(wanted.shared, wanted.policy, cluster, seed, variant, wanted.jobs)
                print(cluster, variant, seed, {name: round(value, 3) for name, value in one.items()}, flush=True)
                found.setdefault(variant, []).append(one)
        alone = [row["jct_h"] for row in found[wanted.variants[0]]]
        for variant, runs in found.items():
            jct = [row["jct_h"] for row in runs]
            ratio = [one / other for one, other in zip(jct, alone, strict=True)]
            row = [cluster, variant, interval(jct), interval(ratio), f"{np.mean([r['cpu_s'] for r in runs]):.1f}"]
            rows.append(row)
            print("| " + " | ".join(row) + " |", flush=True)
    if wanted.json is not None:
        wanted.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
