"""The deadline study: deadlines met on scarce and sufficient clusters, noise, and the gap to the optimum.

    python bench/study_deadline.py --out DIR [--seeds 3] [--jobs 400] [--data ../shared] [--tiny 40]

Writes DIR/study.json and DIR/study.md. Same arguments, same figures. Real traces are left out when the data
folder is not there.

Jobs of the traces are rigid. As in ElasticFlow's evaluation they are made elastic by seed: from half the
GPUs asked for (at least one) to four times as many, with a serial part of 1, 2 or 5 % (Amdahl). The size in
the trace is what the user asked for: `fifo:backfill=true` (a default Kubernetes scheduler) and `edf` run it.
Completion rate = finished by the deadline / submitted with a deadline; refused jobs count as not finished.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from trainmaster.engine.core import Settings
from trainmaster.model.cluster import parse_cluster
from trainmaster.model.job import JobSpec
from trainmaster.model.scaling import amdahl
from trainmaster.policies.registry import create
from trainmaster.sim.metrics import job_table
from trainmaster.sim.run import simulate
from trainmaster.sim.truth import TruthOptions
from trainmaster.sim.workload import workload
from trainmaster.testing.admitted_optimum import compare_with_optimum
from trainmaster.traces import load
from trainmaster.traces.assign import Assignment, assign
from trainmaster.traces.generator import GeneratorSpec, generate

POLICIES = ("fifo:backfill=true", "edf", "elasticflow", "deadline", "deadline:keep_trying=true")
LOADS = {"scarce 2.0": 2.0, "scarce 1.2": 1.2}
COSTS = TruthOptions(restart_cost_ms=30_000, resize_cost_ms=10_000)
NOISE = replace(COSTS, noise=0.2, report_period_ms=300_000)
FAILURES = replace(NOISE, node_mtbf_ms=5 * 86_400_000, checkpoint_period_ms=1_800_000)
FILES = {
    "chronus-slo": "traces/raw/chronus/trace_job_Philly_SLO.csv.gz",
    "chronus-mix1": "traces/raw/chronus/trace_job_Philly_MIX1.csv.gz",
    "itp": "traces/msft_itp.csv.gz",
}


def all_jobs(name: str, data: Path) -> list[JobSpec] | None:
    """Every job of a trace as a specification (a cluster that fits them all)."""
    everything = parse_cluster("gpu=4096")
    if name == "generated":
        spec = GeneratorSpec(jobs=4000, arrivals="poisson", load=1.0, cluster_gpus=64, median_s=3600.0, sigma=1.2)
        wishes = Assignment(deadline_fraction=0.8, soft_fraction=0.25, slack=(1.1, 3.0))
        return workload(assign(generate(spec, 11), wishes, 12), everything).specs
    path = data / FILES[name]
    if not path.exists():
        return None
    return workload(load(path), everything, source=str(path)).specs


def window(specs: Sequence[JobSpec], count: int, seed: int) -> list[JobSpec]:
    """A run of consecutive jobs from a seeded start, made elastic, on a clock that starts at 0."""
    rng = np.random.Generator(np.random.PCG64([seed, 5]))
    start = int(rng.integers(0, len(specs) - count))
    chosen = specs[start : start + count]
    origin = chosen[0].submit_ms
    out = []
    for spec in chosen:
        asked = spec.workers_ref
        out.append(
            replace(
                spec,
                submit_ms=spec.submit_ms - origin,
                deadline_ms=spec.deadline_ms - origin if spec.deadline_kind else spec.deadline_ms,
                workers_min=max(1, asked // 2),
                workers_max=4 * asked,
                scaling=amdahl(float(rng.choice([0.01, 0.02, 0.05]))),
            )
        )
    return out


def offered_gpus(specs: Sequence[JobSpec]) -> float:
    """GPUs that the work asked for would keep busy from the first arrival until deadlines are due."""
    work = sum(spec.gpus * (spec.work_total or 0.0) for spec in specs)
    due_ms = np.mean([spec.deadline_ms - spec.submit_ms for spec in specs if spec.deadline_kind])
    return work / max((specs[-1].submit_ms - specs[0].submit_ms + float(due_ms)) / 1000.0, 1.0)


def peak_gpus(specs: Sequence[JobSpec]) -> float:
    """GPUs in use at most if every job started at once at four times the size it asks for."""
    ends = [(s.submit_ms, 4 * s.gpus) for s in specs]
    ends += [(s.submit_ms + (s.work_total or 0.0) * 1000.0 / 2.5, -4 * s.gpus) for s in specs]
    level = most = 0.0
    for _, change in sorted(ends):
        level += change
        most = max(most, level)
    return most


def run_one(specs: list[JobSpec], gpus: int, policy: str, truth: TruthOptions, seed: int) -> dict[str, float]:
    result = simulate(specs, parse_cluster(f"gpu={gpus}"), create(policy), Settings(seed=seed), truth)
    jobs = job_table(result)
    with_deadline = jobs.filter(jobs["deadline_met"].is_not_null())
    finished = with_deadline.filter(with_deadline["status"] == "finished")
    done = jobs.filter(jobs["status"] == "finished")
    held = float(jobs["service_gpu_s"].sum())
    span = (float(done["finish_s"].max() or 0.0) - float(jobs["submit_s"].min() or 0.0)) if len(done) else 0.0  # type: ignore[arg-type]
    return {
        "met": float(with_deadline["deadline_met"].sum()) / max(len(with_deadline), 1),
        "late": float((~finished["deadline_met"]).sum()),
        "accepted": float(len(finished)),
        "preemptions": float(jobs["preemptions"].sum()),
        # Of what is allocated: all of it, less what starting and resizing cost.
        "use_of_allocated": 1.0 - result.lost_gpu_s / held if held else 1.0,
        "utilization": held / (gpus * span) if span > 0 else 0.0,
        "best_effort_jct_s": float(
            done.filter(done["deadline_met"].is_null())["jct_s"].mean() or 0.0  # type: ignore[arg-type]
        ),
    }


def interval(values: Sequence[float]) -> str:
    """Mean and 95 % interval."""
    array = np.asarray(values, float)
    if len(array) < 2:
        return f"{array.mean():.3f}"
    factor = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 8: 2.36, 10: 2.26}.get(len(array), 2.1)
    return f"{array.mean():.3f} ± {factor * array.std(ddof=1) / math.sqrt(len(array)):.3f}"


def sweep(traces: dict[str, list[JobSpec]], count: int, seeds: int) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    for name, specs in traces.items():
        for seed in range(seeds):
            jobs = window(specs, count, seed)
            largest = int(max(spec.gpus for spec in jobs))
            sizes = {label: max(largest, round(offered_gpus(jobs) / factor)) for label, factor in LOADS.items()}
            sizes["sufficient"] = max(largest, math.ceil(peak_gpus(jobs)))
            for label, gpus in sizes.items():
                for policy in POLICIES:
                    cell = rows.setdefault(name, {}).setdefault(label, {}).setdefault(policy, [])
                    cell.append({"gpus": gpus, **run_one(jobs, gpus, policy, COSTS, seed)})
    return rows


def troubled(traces: dict[str, list[JobSpec]], count: int, seeds: int) -> dict[str, Any]:
    """Promises missed under noise, and under noise and failures."""
    rows: dict[str, Any] = {}
    for name, specs in traces.items():
        for label, truth in (("exact", COSTS), ("noise 0.2", NOISE), ("noise and failures", FAILURES)):
            for seed in range(seeds):
                jobs = window(specs, count, seed)
                gpus = max(int(max(spec.gpus for spec in jobs)), round(offered_gpus(jobs) / 1.2))
                for policy in ("deadline", "deadline:confidence=0.99", "elasticflow", "edf"):
                    cell = rows.setdefault(name, {}).setdefault(label, {}).setdefault(policy, [])
                    cell.append(run_one(jobs, gpus, policy, truth, seed))
    return rows


def tables(study: dict[str, Any]) -> str:
    lines = ["## Completion rate", ""]
    header = "| trace | cluster | " + " | ".join(POLICIES) + " | over fifo | use of allocated |"
    lines += [header, "|---" * (len(POLICIES) + 4) + "|"]
    for name, clusters in study["sweep"].items():
        for label, cells in clusters.items():
            means = {policy: float(np.mean([c["met"] for c in cells[policy]])) for policy in POLICIES}
            gain = means["deadline"] / means[POLICIES[0]] - 1.0 if means[POLICIES[0]] > 0 else math.inf
            shown = " | ".join(interval([c["met"] for c in cells[policy]]) for policy in POLICIES)
            use = np.mean([c["use_of_allocated"] for c in cells["deadline"]])
            lines.append(f"| {name} | {label} | {shown} | {gain:+.0%} | {use:.3f} |")
    lines += ["", "## Promises missed (of jobs accepted and finished), load 1.2", ""]
    lines += ["| trace | world | policy | completion rate | missed of accepted |", "|---|---|---|---|---|"]
    for name, worlds in study["troubled"].items():
        for label, cells in worlds.items():
            for policy, runs in cells.items():
                missed = sum(r["late"] for r in runs) / max(sum(r["accepted"] for r in runs), 1.0)
                lines.append(f"| {name} | {label} | {policy} | {interval([r['met'] for r in runs])} | {missed:.3f} |")
    gap = study["gap"]
    lines += ["", "## Admitted against the exact optimum", ""]
    lines.append(
        f"{gap['instances']} random instances, all jobs known at once: admitted {gap['admitted']} of"
        f" {gap['optimum']} in the optimum (gap {gap['gap']:.1%}); equal in {gap['equal']} instances."
    )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=400)
    parser.add_argument("--tiny", type=int, default=40)
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[2] / "shared")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    loaded = {name: all_jobs(name, arguments.data) for name in ("generated", *FILES)}
    traces = {name: specs for name, specs in loaded.items() if specs is not None}
    study: dict[str, Any] = {"gap": compare_with_optimum(arguments.tiny), "sweep": {}, "troubled": {}}
    for part, run in (("sweep", sweep), ("troubled", troubled)):
        for name, specs in traces.items():
            study[part].update(run({name: specs}, arguments.jobs, arguments.seeds))
            (arguments.out / "study.json").write_text(json.dumps(study, sort_keys=True, indent=1) + "\n")
            (arguments.out / "study.md").write_text(tables(study))
            print(f"{part} {name}: done", flush=True)
    print(tables(study))


if __name__ == "__main__":
    main()
