"""Gavel's studies: what heterogeneity-awareness, the round mechanism, the round length, placement and
estimated throughputs are worth.

    python bench/study_gavel.py --out DIR [--part PART ...] [--seeds 3] [--jobs 60]
    PART: aware | steady | mechanism | rounds | placement | estimator

Jobs by Gavel's synthetic generator on v100=12,p100=12,k80=12. Writes DIR/runs.json (every run; an
interrupted study goes on from there), DIR/study_PART.md and one PNG per figure. Same arguments, same
figures.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from support.gavel_synthetic import GavelSynthetic, gavel_synthetic
from trainmaster.engine.engine import Settings
from trainmaster.estimate.catalogue import ThroughputCatalogue, load_catalogue
from trainmaster.estimate.fingerprint import MatrixEstimator, ReferenceModels
from trainmaster.estimate.references import Hide, reference_matrix
from trainmaster.model.cluster import parse_cluster
from trainmaster.model.job import JobId, JobSpec
from trainmaster.model.placement import parse_strategy
from trainmaster.policies.gavel.objectives import allocate
from trainmaster.policies.gavel.problem import AllocationProblem, AllocationResult, Pairs
from trainmaster.policies.registry import create
from trainmaster.report.style import figure, legend_outside, look, save
from trainmaster.sim.metrics import summary
from trainmaster.sim.run import simulate
from trainmaster.sim.truth import TruthOptions
from trainmaster.sim.workload import workload

TABLE = Path(__file__).resolve().parents[2] / "shared/gavel/throughputs/simulation_throughputs.json"
STUDENT_95 = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26}
FAMILIES = ("gavel-max-min", "gavel-ftf", "gavel-makespan", "gavel-water-filling")
LOADS = (0.4, 0.8, 1.6)
STATIC = 0.0
"""Stands for a trace whose jobs are all there at the start."""
ROUNDS_S = (60, 360, 1200, 3600)
COSTS_S = (0, 10, 30, 60)
FRACTIONS = (0.1, 0.4, 0.7)
SEED_BASE = 100
"""Estimator settings were chosen on seeds 0 and 1."""


@dataclass(frozen=True)
class Run:
    policy: str
    per_hour: float
    seed: int
    jobs: int
    round_s: int = 360
    restart_cost_s: int = 0
    placement: str = "count"
    cluster: str = "v100=12,p100=12,k80=12"
    estimates: float | None = None
    """Fraction profiled; None: oracle."""
    online: bool = True
    rule: str = "completed"


class Runner:
    """Does every run once and keeps its figures on disk."""

    def __init__(self, table: Path, out: Path) -> None:
        self.catalogue = load_catalogue(table)
        self.path = out / "runs.json"
        self.done: dict[str, dict[str, float]] = json.loads(self.path.read_text()) if self.path.exists() else {}
        self._trace = cache(self._make_trace)

    def __call__(self, run: Run) -> dict[str, float]:
        key = json.dumps(asdict(run), sort_keys=True)
        if key not in self.done:
            self.done[key] = self._simulate(run)
            self.path.write_text(json.dumps(self.done, sort_keys=True, indent=0) + "\n")
        return self.done[key]

    def _make_trace(self, per_hour: float, jobs: int, seed: int, cluster: str) -> Sequence[JobSpec]:
        wanted = GavelSynthetic(jobs, per_hour if per_hour > STATIC else None)
        trace = gavel_synthetic(wanted, self.catalogue, seed)
        return workload(trace, parse_cluster(cluster), self.catalogue).specs

    def _simulate(self, run: Run) -> dict[str, float]:
        estimator, report_ms = None, 0
        if run.estimates is not None:
            rule = "nearest" if run.rule == "nearest" else "completed"
            estimator = MatrixEstimator(
                self.catalogue,
                run.estimates,
                run.seed,
                rule=rule,
                references=_references(self.catalogue, "model"),
            )
            report_ms = 60_000 if run.online else 0
        result = simulate(
            self._trace(run.per_hour, run.jobs, run.seed, run.cluster),
            parse_cluster(run.cluster),
            create(run.policy),
            Settings(placement=parse_strategy(run.placement), round_ms=run.round_s * 1000, seed=run.seed),
            TruthOptions(restart_cost_ms=run.restart_cost_s * 1000, report_ms=report_ms),
            estimator,
        )
        found = summary(result)
        assert found["jobs_finished"] == run.jobs, run
        names = ("average_jct_s", "makespan_s", "p99_jct_s", "preemptions", "lost_gpu_s", "utilization")
        return {name: float(found[name]) for name in names}


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean and half-width of its 95 % interval (Student)."""
    array = np.asarray(values, float)
    if len(array) < 2:
        return float(array.mean()), math.nan
    half = STUDENT_95.get(len(array), 1.96) * array.std(ddof=1) / math.sqrt(len(array))
    return float(array.mean()), float(half)


def shown(values: Sequence[float], scale: float = 1.0, digits: int = 1) -> str:
    mean, half = interval([value / scale for value in values])
    return f"{mean:.{digits}f}" if math.isnan(half) else f"{mean:.{digits}f} ± {half:.{digits}f}"


def over_seeds(runner: Runner, run: Run, seeds: int, name: str) -> list[float]:
    return [runner(replace(run, seed=SEED_BASE + k))[name] for k in range(seeds)]


def ratio(above: Sequence[float], below: Sequence[float]) -> list[float]:
    return [a / b for a, b in zip(above, below, strict=True)]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def load_name(per_hour: float) -> str:
    return "all at the start" if per_hour == STATIC else f"{per_hour:g}"


# -- a. heterogeneity ------------------------------------------------------------------------------------


def part_aware(runner: Runner, out: Path, seeds: int, jobs: int) -> str:
    rows, curves = [], {}
    for family in FAMILIES:
        means: list[tuple[float, float]] = []
        for load in (*LOADS, STATIC) if family == "gavel-makespan" else LOADS:
            aware, blind = Run(family, load, 0, jobs), Run(f"{family}:aware=false", load, 0, jobs)
            cells = [family, load_name(load)]
            for name in ("average_jct_s", "makespan_s"):
                a, b = over_seeds(runner, aware, seeds, name), over_seeds(runner, blind, seeds, name)
                cells += [shown(a, 3600), shown(b, 3600), shown(ratio(b, a), 1, 2)]
                if name == "average_jct_s" and load != STATIC:
                    means.append(interval(ratio(b, a)))
            rows.append(cells)
            print("aware", *cells, flush=True)
        curves[family] = means
    with figure("Mean JCT: agnostic over aware", "jobs per hour", "ratio") as (made, axes):
        for k, (family, means) in enumerate(curves.items()):
            style = look(k)
            axes.errorbar(
                LOADS, [m for m, _ in means], yerr=[h for _, h in means], label=family, capsize=2,
                marker=style.marker, **style.line(),
            )  # fmt: skip
        axes.axhline(1.0, color="#999999", linewidth=0.8)
        legend_outside(axes)
        save(made, out / "gavel_aware.png")
    head = (
        "policy",
        "jobs/h",
        "JCT h, aware",
        "JCT h, agnostic",
        "ratio",
        "makespan h, aware",
        "makespan h, agnostic",
        "ratio",
    )
    return table(head, rows)


def part_steady(runner: Runner, _out: Path, seeds: int, jobs: int) -> str:
    """Four times as many jobs: a backlog has time to build up, which is where the paper's largest gains lie."""
    rows = []
    for load in (0.6, 1.2, 2.5):
        aware, blind = (
            Run("gavel-max-min", load, 0, 4 * jobs),
            Run("gavel-max-min:aware=false", load, 0, 4 * jobs),
        )
        cells = [load_name(load)]
        for name in ("average_jct_s", "makespan_s"):
            a, b = over_seeds(runner, aware, seeds, name), over_seeds(runner, blind, seeds, name)
            cells += [shown(a, 3600), shown(b, 3600), shown(ratio(b, a), 1, 2)]
        rows.append(cells)
        print("steady", *cells, flush=True)
    return table(("jobs/h", "JCT h, aware", "agnostic", "ratio", "makespan h, aware", "agnostic", "ratio"), rows)


# -- b. mechanism ----------------------------------------------------------------------------------------


def part_mechanism(runner: Runner, _out: Path, seeds: int, jobs: int) -> str:
    rows = []
    for family in ("gavel-max-min", "gavel-ftf"):
        for load in LOADS:
            cells = [family, load_name(load)]
            for name in ("average_jct_s", "makespan_s", "preemptions"):
                new = over_seeds(runner, Run(family, load, 0, jobs), seeds, name)
                old = over_seeds(runner, Run(f"{family}:mechanism=original", load, 0, jobs), seeds, name)
                scale = 1 if name == "preemptions" else 3600
                gain = [100 * (1 - n / o) for n, o in zip(new, old, strict=True)]
                cells += [shown(old, scale), shown(new, scale), shown(gain) + " %"]
            rows.append(cells)
            print("mechanism", *cells, flush=True)
    head = (
        "policy", "jobs/h", "JCT h, original", "backfill", "less by", "makespan h, original", "backfill", "less by",
        "restarts, original", "backfill", "less by",
    )  # fmt: skip
    return table(head, rows)


# -- c. round length -------------------------------------------------------------------------------------


def part_rounds(runner: Runner, out: Path, seeds: int, jobs: int, loads: Sequence[float] = (0.4, 1.6)) -> str:
    """Mean JCT by round length and restart cost, as a ratio within each seed to 360 s without cost."""
    text = ""
    for load in loads:
        run = Run("gavel-max-min", load, 0, jobs)
        base = over_seeds(runner, run, seeds, "average_jct_s")
        rows, curves = [], {}
        for cost in COSTS_S:
            ratios = []
            for length in ROUNDS_S:
                if cost >= length:  # a job that is swapped every round would never make a step
                    ratios.append([math.nan])
                    continue
                varied = replace(run, round_s=length, restart_cost_s=cost)
                ratios.append(ratio(over_seeds(runner, varied, seeds, "average_jct_s"), base))
            rows.append([str(cost), *("-" if math.isnan(v[0]) else shown(v, 1, 3) for v in ratios)])
            curves[cost] = ratios
            print("rounds", load, *rows[-1], flush=True)
        text += f"\nAt {load:g} jobs/h (360 s without cost: {shown(base, 3600)} h):\n\n"
        text += table(("restart cost s", *(f"{length} s" for length in ROUNDS_S)), rows)
        title = f"Round length, {load:g} jobs per hour"
        with figure(title, "round length (s)", "mean JCT over 360 s, no cost") as (made, axes):
            for k, (cost, ratios) in enumerate(curves.items()):
                style = look(k)
                axes.plot(
                    ROUNDS_S, [float(np.mean(values)) for values in ratios], marker=style.marker,
                    label=f"{cost} s", **style.line(),
                )  # fmt: skip
            axes.set_xscale("log")
            axes.set_xticks(ROUNDS_S, labels=[str(length) for length in ROUNDS_S])
            axes.minorticks_off()
            legend_outside(axes, "restart cost")
            save(made, out / f"gavel_rounds_{load:g}.png")
    return text


# -- d. placement ----------------------------------------------------------------------------------------


def part_placement(runner: Runner, _out: Path, seeds: int, jobs: int) -> str:
    rows = []
    for load in (0.4, 1.6):
        found = {
            placement: over_seeds(
                runner,
                Run("gavel-max-min", load, 0, jobs, placement=placement, cluster="v100=12x4,p100=12x4,k80=12x4"),
                seeds, "average_jct_s",
            )
            for placement in ("count", "pack", "spread")
        }  # fmt: skip
        cells = [load_name(load)]
        for placement, values in found.items():
            cells.append(shown(values, 3600))
            if placement != "count":
                cells.append(shown(ratio(values, found["count"]), 1, 2))
        rows.append(cells)
        print("placement", *cells, flush=True)
    return table(("jobs/h", "JCT h, count", "pack", "over count", "spread", "over count"), rows)


# -- e. estimator ----------------------------------------------------------------------------------------


def spec_of(catalogue: ThroughputCatalogue, model: str, gpus: int) -> JobSpec:
    return JobSpec(
        id=JobId(f"{model}/{gpus}"), workers_min=gpus, workers_max=gpus, workers_ref=gpus, model=model,
        steps_per_s={kind: catalogue.steps_per_s(model, gpus, kind) or 0.0 for kind in catalogue.types},
    )  # fmt: skip


def table_errors(catalogue: ThroughputCatalogue, fraction: float, seed: int, rule: str, hide: str) -> dict[str, float]:
    """Relative errors of the cells that were not profiled, each model a stranger to the estimator."""
    references = _references(catalogue, "family" if hide == "family" else "model")
    estimator = MatrixEstimator(
        catalogue, fraction, seed, rule="nearest" if rule == "nearest" else "completed", references=references
    )
    errors: dict[str, list[float]] = {"alone": [], "gangs": [], "own": [], "fits": []}
    for gpus in (1, 4):
        full = _matrix(catalogue, gpus)
        for k, model in enumerate(full.models):
            row = estimator.estimate(spec_of(catalogue, model, gpus))
            for at, column in enumerate(row.columns):
                index = full.index(column)
                assert index is not None
                true = full.values[k, index]
                if row.profiled[at] or math.isnan(true):
                    continue
                if column.kind == "fits":
                    errors["fits"].append(float((row.values[at] >= 0.5) != (true >= 0.5)))
                elif column.kind in ("alone", "own"):
                    kind = "gangs" if gpus > 1 and column.kind == "alone" else column.kind
                    errors[kind].append(abs(math.exp(row.values[at] - true) - 1.0))
    out: dict[str, float] = {}
    for kind, values in errors.items():
        out[f"{kind}_mean"] = float(np.mean(values)) if values else math.nan
        out[f"{kind}_median"] = float(np.median(values)) if values else math.nan
    return out


@cache
def _matrix(catalogue: ThroughputCatalogue, gpus: int) -> Any:
    return reference_matrix(catalogue, gpus)


@cache
def _references(catalogue: ThroughputCatalogue, hide: Hide) -> ReferenceModels:
    return ReferenceModels(catalogue, hide)


def sharing_level(
    catalogue: ThroughputCatalogue, fraction: float | None, seed: int, misfits_found: bool, jobs: int = 24
) -> tuple[float, float]:
    """Space sharing solved with estimated alone and pair speeds, run with the true ones: smallest and mean
    normalised throughput over those with oracle speeds. `misfits_found`: a pair that does not fit in memory failed
    when it was started, so it is known. Fraction `None`: no sharing, oracle speeds."""
    rng = np.random.Generator(np.random.PCG64([seed, 1]))
    models = [_matrix(catalogue, 1).models[k] for k in rng.integers(0, len(_matrix(catalogue, 1).models), jobs)]
    specs = [replace(spec_of(catalogue, model, 1), id=JobId(f"{k}")) for k, model in enumerate(models)]
    types = catalogue.types
    counts = np.array([4.0, 4.0, 4.0])
    members = np.array([(a, b) for a in range(jobs) for b in range(a + 1, jobs)])

    def problem(estimator: MatrixEstimator | None) -> AllocationProblem:
        if estimator is None:
            alone = np.array([[spec.steps_per_s[kind] for kind in types] for spec in specs])
            pair = np.array(
                [
                    [catalogue.pair_steps_per_s(models[a], 1, models[b], 1, t) or (0.0, 0.0) for t in types]
                    for a, b in members
                ]
            )
        else:
            alone = np.array([estimator.profile(spec, types)[0] for spec in specs])
            kept = np.array([estimator.pair_kept(specs[a], specs[b], types) for a, b in members])
            pair = kept * alone[members].transpose(0, 2, 1)
        one, none = np.ones(jobs), np.zeros(jobs)
        return AllocationProblem(
            throughput=alone, gpus=one, counts=counts, weight=one, steps_remaining=one, elapsed_s=none,
            slo_s=np.full(jobs, np.nan), cost_per_hour=np.ones(len(types)), allowed=np.ones(alone.shape, np.bool_),
            isolated_so_far_s=none, type_names=types, pairs=Pairs(members, np.ascontiguousarray(pair)),
        )  # fmt: skip

    truth = problem(None)
    assert truth.pairs is not None
    prop = (truth.throughput * counts).sum(axis=1) / counts.sum()

    def delivered(found: AllocationResult) -> Any:
        speed = (found.share * truth.throughput).sum(axis=1)
        if found.pair_share is not None and truth.pairs is not None:
            for side in (0, 1):
                both = (found.pair_share * truth.pairs.throughput[:, :, side]).sum(axis=1)
                np.add.at(speed, members[:, side], both)
        return speed / prop

    best = delivered(allocate(truth, "gavel-max-min", {"space_sharing": True}))
    if fraction is None:
        level = delivered(allocate(truth, "gavel-max-min"))
    else:
        believed = problem(MatrixEstimator(catalogue, fraction, seed, references=_references(catalogue, "model")))
        if misfits_found:
            assert believed.pairs is not None
            believed.pairs.throughput[(truth.pairs.throughput <= 0).any(axis=2)] = 0.0
        level = delivered(allocate(believed, "gavel-max-min", {"space_sharing": True}))
    return float(level.min() / best.min()), float(level.mean() / best.mean())


def part_estimator(runner: Runner, _out: Path, seeds: int, jobs: int) -> str:
    catalogue = runner.catalogue
    rows = []
    for rule, hide in (("completed", "model"), ("nearest", "model"), ("completed", "family")):
        for fraction in FRACTIONS:
            found = [table_errors(catalogue, fraction, SEED_BASE + k, rule, hide) for k in range(seeds)]
            cells = [f"{rule}, {hide} unknown", f"{fraction:g}"]
            for name in ("alone_mean", "alone_median", "gangs_mean", "own_mean", "own_median", "fits_mean"):
                values = [one[name] for one in found]
                cells.append("-" if any(math.isnan(v) for v in values) else shown(values, 0.01))
            rows.append(cells)
            print("estimator", *cells, flush=True)
    text = "Relative error in % of cells that were not profiled:\n\n" + table(
        (
            "rule",
            "profiled",
            "alone, mean",
            "median",
            "gangs of 4, mean",
            "pairs, mean",
            "median",
            "fits: wrong",
        ),
        rows,
    )
    rows = []
    for load in (0.4, 1.6):
        oracle = over_seeds(runner, Run("gavel-max-min", load, 0, jobs), seeds, "average_jct_s")
        blind = over_seeds(runner, Run("gavel-max-min:aware=false", load, 0, jobs), seeds, "average_jct_s")
        rows.append([load_name(load), "oracle", shown(oracle, 3600), "1"])
        rows.append([load_name(load), "agnostic", shown(blind, 3600), shown(ratio(blind, oracle), 1, 3)])
        variants = [(0.0, False), (0.2, False), (0.7, False), (0.0, True), (0.2, True)]
        for fraction, online in variants:
            run = Run("gavel-max-min", load, 0, jobs, estimates=fraction, online=online)
            values = over_seeds(runner, run, seeds, "average_jct_s")
            name = f"{fraction:g} profiled, {'corrected online' if online else 'never corrected'}"
            rows.append([load_name(load), name, shown(values, 3600), shown(ratio(values, oracle), 1, 3)])
            print("estimator", *rows[-1], flush=True)
    text += "\nMean JCT under gavel-max-min:\n\n" + table(("jobs/h", "speeds", "JCT h", "over oracle"), rows)
    rows = []
    cases = [(None, False), *((f, found) for found in (False, True) for f in (0.1, 0.4, 1.0))]
    for fraction, misfits in cases:
        levels = [sharing_level(catalogue, fraction, SEED_BASE + k, misfits) for k in range(seeds)]
        name = "no sharing, oracle" if fraction is None else f"sharing, {fraction:g} profiled"
        name += ", misfits found at start" if misfits else ""
        rows.append([name, shown([low for low, _ in levels], 1, 2), shown([mean for _, mean in levels], 1, 2)])
        print("estimator", *rows[-1], flush=True)
    text += "\nSpace sharing, one allocation of 24 single-GPU jobs on 12 GPUs, over oracle speeds:\n\n"
    return text + table(("speeds", "smallest normalised throughput", "mean"), rows)


PARTS = {
    "aware": part_aware,
    "steady": part_steady,
    "mechanism": part_mechanism,
    "rounds": part_rounds,
    "placement": part_placement,
    "estimator": part_estimator,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--part", action="append", choices=sorted(PARTS))
    parser.add_argument("--throughputs", type=Path, default=TABLE)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=60)
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    for name in asked.part or PARTS:
        runner = Runner(asked.throughputs, asked.out)
        (asked.out / f"study_{name}.md").write_text(PARTS[name](runner, asked.out, asked.seeds, asked.jobs))


if __name__ == "__main__":
    main()
