"""The deadline study: deadlines met on scarce and sufficient clusters, noise, and the gap to the optimum.

    python bench/study_deadline.py --out DIR [--seeds 10] [--jobs 200] [--data ../shared] [--tiny 40]
        [--traces generated,itp] [--parts gap,sweep,troubled,foreseen]

Writes DIR/study.json, DIR/study.md and DIR/study.png. Same arguments, same figures. A run that was cut short goes on
where it was when it is started again. Real traces are left out when the data folder is not there.

Jobs of the traces are rigid. As in ElasticFlow's evaluation they are made elastic by seed: from half the
GPUs asked for (at least one) to four times as many, with a serial part of 1, 2 or 5 % (Amdahl). The size in
the trace is what the user asked for: `fifo:backfill=true` (a default Kubernetes scheduler), Gavel's SLO policy (rounds
of 360 s; load 2 and fewer windows, for it is slow) and `edf` run it.
Completion rate = finished by the deadline / submitted with a deadline; refused jobs count as not finished. `bound` is
what no schedule can exceed (`tests/lib/support/oracles/deadline_bound.py`).
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
import numpy as np

from cells import Key, code_digest, run_cells
from support.oracles.admitted_optimum import compare_with_optimum
from support.oracles.deadline_bound import most_in_time
from support.promises import FIFTHS, Foreseen, Promises, UntilDue
from trainmaster.engine.engine import Settings
from trainmaster.model.cluster import parse_cluster
from trainmaster.model.job import DeadlineKind, JobSpec, Phase
from trainmaster.model.scaling import amdahl
from trainmaster.policies.registry import create
from trainmaster.sim.run import simulate
from trainmaster.sim.truth import TruthOptions
from trainmaster.sim.workload import workload
from trainmaster.traces import load
from trainmaster.traces.assign import Assignment, assign
from trainmaster.traces.generator import GeneratorSpec, generate

BASE = "fifo:backfill=true"
GAVEL = "gavel-cost-slo"
POLICIES = (BASE, GAVEL, "edf", "elasticflow", "deadline")
LOADS = {"load 1.2": 1.2, "load 2": 2.0, "load 4": 4.0}
GAVEL_SEEDS, SUFFICIENT_SEEDS, TROUBLED_SEEDS = 3, 3, 5
TROUBLED = ("generated", "chronus-mix1")
TROUBLED_POLICIES = ("deadline", "deadline:confidence=0.99", "elasticflow", "edf")
PARTS = ("gap", "sweep", "troubled", "foreseen")
CODE = ("engine", "estimate", "model", "policies", "sim", "testing", "traces")
GAVEL_ROUND_MS = 360_000
COSTS = TruthOptions(restart_cost_ms=30_000, resize_cost_ms=10_000)
NOISE = replace(COSTS, noise=0.2, report_period_ms=300_000)
FAILURES = replace(NOISE, node_mtbf_ms=5 * 86_400_000, checkpoint_period_ms=1_800_000)
FILES = {
    "chronus-slo": "traces/raw/chronus/trace_job_Philly_SLO.csv.gz",
    "chronus-mix1": "traces/raw/chronus/trace_job_Philly_MIX1.csv.gz",
    "itp": "traces/msft_itp.csv.gz",
}


def all_jobs(name: str, data: Path) -> Sequence[JobSpec] | None:
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


def run_one(specs: Sequence[JobSpec], gpus: int, policy: str, truth: TruthOptions, seed: int) -> dict[str, float]:
    """One run; counts by kind of deadline: submitted, in time, promised, and promised but not in time."""
    settings = Settings(seed=seed)
    inner = create(policy)
    if policy == GAVEL:  # jobs without SLO may starve under it: once no deadline is left, the queue is drained
        last_due_ms = max(spec.deadline_ms for spec in specs if spec.deadline_kind)
        inner = UntilDue(inner, create(BASE), last_due_ms)
        settings = replace(settings, round_ms=GAVEL_ROUND_MS)
    watched = Promises(inner)
    result = simulate(specs, parse_cluster(f"gpu={gpus}"), watched, settings, truth)
    out: dict[str, float] = {}
    for kind in (DeadlineKind.HARD, DeadlineKind.SOFT):
        jobs = [end for end in result.ended if end.spec.deadline_kind == kind]
        late = [end for end in jobs if end.phase != Phase.FINISHED or end.ended_ms > end.spec.deadline_ms]
        name = kind.name.lower()
        out[f"{name}"] = len(jobs)
        out[f"{name}_met"] = len(jobs) - len(late)
        out[f"{name}_promised"] = sum(end.spec.id in watched.admitted for end in jobs)
        out[f"{name}_broken"] = sum(end.spec.id in watched.admitted for end in late)
    held = sum(end.service_gpu_s for end in result.ended)
    return {
        **out,
        "met": (out["hard_met"] + out["soft_met"]) / max(out["hard"] + out["soft"], 1),
        "preemptions": float(sum(end.preemptions for end in result.ended)),
        # Of what is allocated: all of it, less what starting and resizing cost.
        "use_of_allocated": 1.0 - result.lost_gpu_s / held if held else 1.0,
    }


def mean_and_interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean and half of the 95 % interval (Student's t)."""
    array = np.asarray(values, float)
    if len(array) < 2 or array.std() == 0.0:
        return float(array.mean()), 0.0
    return float(array.mean()), float(student_t(len(array) - 1) * array.std(ddof=1) / math.sqrt(len(array)))


def student_t(freedom: int) -> float:
    """The 97.5 % quantile; Cornish-Fisher expansion, within 1 % from 3 degrees of freedom on."""
    z = 1.959964
    exact = {1: 12.706, 2: 4.303}
    rest = z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    return exact.get(freedom, rest)


def shown(values: Sequence[float]) -> str:
    mean, half = mean_and_interval(values)
    return f"{mean:.3f} ± {half:.3f}" if half else f"{mean:.3f}"


Cells = dict[Key, Callable[[], Any]]


def sweep(name: str, specs: Sequence[JobSpec], count: int, seeds: int) -> Cells:
    """Every policy on the same windows and clusters. Keys: part, trace, jobs, cluster, column, seed."""
    cells: Cells = {}
    for seed in range(seeds):
        jobs = window(specs, count, seed)
        timed = sum(1 for spec in jobs if spec.deadline_kind)
        largest = int(max(spec.gpus for spec in jobs))
        sizes = {label: max(largest, round(offered_gpus(jobs) / factor)) for label, factor in LOADS.items()}
        if seed < SUFFICIENT_SEEDS:
            sizes["sufficient"] = max(largest, math.ceil(peak_gpus(jobs)))
        for label, gpus in sizes.items():
            for policy in POLICIES:
                if policy != GAVEL or (seed < GAVEL_SEEDS and label == "load 2"):
                    cells["sweep", name, count, label, policy, seed] = partial(run_one, jobs, gpus, policy, COSTS, seed)
            bound = (lambda: {"met": 1.0}) if label == "sufficient" else partial(bound_of, jobs, gpus, timed)
            cells["sweep", name, count, label, "bound", seed] = bound
    return cells


def bound_of(jobs: list[JobSpec], gpus: int, timed: int) -> dict[str, float]:
    return {"met": most_in_time(jobs, gpus) / timed}


def troubled(name: str, specs: Sequence[JobSpec], count: int, seeds: int) -> Cells:
    """Deadlines and promises under noise, and under noise and failures, at load 2."""
    cells: Cells = {}
    for label, truth in (("exact", COSTS), ("noise 0.2", NOISE), ("noise and failures", FAILURES)):
        for seed in range(seeds):
            jobs = window(specs, count, seed)
            gpus = max(int(max(spec.gpus for spec in jobs)), round(offered_gpus(jobs) / 2.0))
            for policy in TROUBLED_POLICIES:
                cells["troubled", name, count, label, policy, seed] = partial(run_one, jobs, gpus, policy, truth, seed)
    return cells


def foreseen(name: str, specs: Sequence[JobSpec], count: int, seeds: int) -> Cells:
    """Predicted finishes of running jobs under noise, at load 2, against when they finished."""
    cells: Cells = {}
    for seed in range(seeds):
        jobs = window(specs, count, seed)
        gpus = max(int(max(spec.gpus for spec in jobs)), round(offered_gpus(jobs) / 2.0))
        for policy in (BASE, "deadline"):
            cells["foreseen", name, count, "noise 0.2", policy, seed] = partial(predicted, jobs, gpus, policy, seed)
    return cells


def predicted(jobs: list[JobSpec], gpus: int, policy: str, seed: int) -> list[list[list[float]]]:
    """By fifth of a job's run: [inside the 10-90 % band, below p90, relative error of the median] of each."""
    watched = Foreseen(create(policy))
    result = simulate(jobs, parse_cluster(f"gpu={gpus}"), watched, Settings(seed=seed), NOISE)
    ends = {end.spec.id: end for end in result.ended if end.phase == Phase.FINISHED}
    return watched.against(ends)


def tables(study: dict[str, Any]) -> str:
    columns = (*POLICIES, "bound")
    lines = ["### Completion rate", "", "| trace | cluster | " + " | ".join(columns) + " | over fifo | most possible |"]
    lines += ["|---" * (len(columns) + 4) + "|"]
    for name, clusters in study["sweep"].items():
        for label, cells in clusters.items():
            met = {policy: [c["met"] for c in cells.get(policy, [])] for policy in columns}
            base = float(np.mean(met[BASE]))
            same = float(np.mean(met[BASE][: len(met["bound"])]))  # the windows for which the bound was solved
            pairs = (("deadline", base), ("bound", same))
            gains = [float(np.mean(met[p])) / less - 1.0 if less > 0 else math.inf for p, less in pairs]
            text = " | ".join(shown(met[policy]) if met[policy] else "" for policy in columns)
            lines.append(f"| {name} | {label} | {text} | {gains[0]:+.0%} | {gains[1]:+.0%} |")
    lines += ["", "### `deadline` less the others, window by window", ""]
    lines += ["| trace | cluster | less edf | less elasticflow | use of allocated |", "|---|---|---|---|---|"]
    for name, clusters in study["sweep"].items():
        for label, cells in clusters.items():
            ours = np.array([c["met"] for c in cells["deadline"]])
            less = [shown((ours - np.array([c["met"] for c in cells[p]])).tolist()) for p in ("edf", "elasticflow")]
            use = np.mean([c["use_of_allocated"] for c in cells["deadline"]])
            lines.append(f"| {name} | {label} | {less[0]} | {less[1]} | {use:.4f} |")
    lines += ["", "### With noise and failures, load 2", ""]
    lines += ["| trace | world | policy | hard missed | soft missed | promises broken |", "|---|---|---|---|---|---|"]
    for name, worlds in study["troubled"].items():
        for label, cells in worlds.items():
            for policy, runs in cells.items():
                total = {key: sum(run[key] for run in runs) for key in runs[0]}
                hard, soft = total["hard"] - total["hard_met"], total["soft"] - total["soft_met"]
                broken = total["hard_broken"] + total["soft_broken"]
                promised = total["hard_promised"] + total["soft_promised"]
                lines.append(
                    f"| {name} | {label} | {policy} | {_part(hard, total['hard'])} | {_part(soft, total['soft'])} |"
                    f" {_part(broken, promised)} |"
                )
    lines += ["", "### Predicted finishes of running jobs, noise 0.2, load 2", ""]
    lines += [
        "| trace | policy | fifth of its run | predictions | in the 10-90 % band | before p90 | median error |",
        "|---" * 7 + "|",
    ]
    for name, worlds in study["foreseen"].items():
        for policy, runs in worlds["noise 0.2"].items():
            for fifth in range(FIFTHS):
                found = np.array([row for run in runs for row in run[fifth]]).reshape(-1, 3)
                inside, below = found[:, 0].mean(), found[:, 1].mean()
                lines.append(
                    f"| {name} | {policy} | {fifth + 1} | {len(found)} | {inside:.0%} | {below:.0%} |"
                    f" {np.median(found[:, 2]):.1%} |"
                )
    gap = study.get("gap")
    if gap is None:
        return "\n".join(lines) + "\n"
    lines += ["", "### Admitted against the exact optimum", ""]
    lines.append(
        f"{gap['instances']} random instances, all jobs known at once: admitted {gap['admitted']} of"
        f" {gap['optimum']} in the optimum (gap {gap['gap']:.1%}); equal in {gap['equal']} instances."
    )
    return "\n".join(lines) + "\n"


def _part(some: float, of: float) -> str:
    return f"{some:.0f} of {of:.0f} ({some / of:.1%})" if of else "none"


def figure(study: dict[str, Any], path: Path) -> None:
    """Completion rate over load, a panel for each trace, with 95 % intervals."""
    names = list(study["sweep"])
    drawing, axes = plt.subplots(1, len(names), figsize=(3.2 * len(names), 3.2), sharey=True, squeeze=False)
    for axis, name in zip(axes[0], names, strict=True):
        for policy in (*POLICIES, "bound"):
            points = [
                (factor, *mean_and_interval([c["met"] for c in study["sweep"][name][label][policy]]))
                for label, factor in LOADS.items()
                if policy in study["sweep"][name].get(label, {})
            ]
            if points:
                x, y, half = zip(*points, strict=True)
                dashed = {"linestyle": "--", "color": "0.6"} if policy == "bound" else {"marker": "o", "markersize": 3}
                axis.errorbar(x, y, half, label=policy.partition(":")[0], capsize=2, linewidth=1.3, **dashed)
        axis.set_title(name, fontsize=10)
        axis.set_xlabel("load")
        axis.set_ylim(0, 1.05)
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("deadlines met")
    handles, labels = axes[0][0].get_legend_handles_labels()
    drawing.legend(handles, labels, fontsize=8, ncol=len(labels), loc="lower center", frameon=False)
    drawing.tight_layout(rect=(0.0, 0.07, 1.0, 1.0))
    drawing.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(drawing)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--tiny", type=int, default=40)
    parser.add_argument("--traces", default=",".join(("generated", *FILES)), help="some of them only")
    parser.add_argument("--parts", default=",".join(PARTS), help="some of them only")
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[2] / "shared")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    loaded = {name: all_jobs(name, arguments.data) for name in arguments.traces.split(",")}
    traces = {name: specs for name, specs in loaded.items() if specs is not None}
    parts = arguments.parts.split(",")
    cells: Cells = {}
    if "gap" in parts:
        cells["gap", arguments.tiny] = partial(compare_with_optimum, arguments.tiny)
    for name, specs in traces.items():
        if "sweep" in parts:
            cells |= sweep(name, specs, arguments.jobs, arguments.seeds)
        seeds = min(arguments.seeds, TROUBLED_SEEDS) if name in TROUBLED else 0
        if "troubled" in parts:
            cells |= troubled(name, specs, arguments.jobs, seeds)
        if "foreseen" in parts:
            cells |= foreseen(name, specs, arguments.jobs, seeds)
    study: dict[str, Any] = {"sweep": {}, "troubled": {}, "foreseen": {}}
    for key, result in run_cells(cells.items(), arguments.out, code_digest(*CODE)).items():
        if key[0] == "gap":
            study["gap"] = result
        else:
            part, name, _, label, column, _ = key
            study[part].setdefault(name, {}).setdefault(label, {}).setdefault(column, []).append(result)
    (arguments.out / "study.json").write_text(json.dumps(study, sort_keys=True, indent=1) + "\n")
    (arguments.out / "study.md").write_text(tables(study))
    if study["sweep"]:
        figure(study, arguments.out / "study.png")
    print(tables(study))


if __name__ == "__main__":
    main()
