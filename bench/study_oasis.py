"""The OASiS study: total utility against jobs, servers, slots and urgency, the ratio to the optimum, the
floor on L.

    python bench/study_oasis.py --out DIR [--seeds 20] [--sweep-seeds 5] [--tiny 200] [--only-tiny]

Writes DIR/study.json, DIR/study.md (text tables) and one PNG per figure. Same arguments, same figures. A run that was
cut short goes on where it was when it is started again. --only-tiny: the ratio to the optimum alone.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from cells import Key, code_digest, run_cells
from support.oracles.admission_instances import PaperLike, Tiny, paper_like_instance, tiny_instance
from trainmaster.policies.oasis.instance.solve import solve_instance

POLICIES = ("oasis", "rrh", "dorm", "drf", "fifo")
BASE = PaperLike(jobs=100, horizon=100)
SWEEPS: dict[str, tuple[str, Sequence[float]]] = {
    "jobs": ("jobs", (10, 25, 50, 100, 150)),
    "servers": ("servers of each role", (10, 20, 50, 100, 200)),
    "horizon": ("slots (jobs in proportion)", (100, 200, 300)),
    "critical_share": ("share of time-critical jobs", (0.0, 0.35, 0.7, 0.9)),
}
COSTLY = ("horizon", "critical_share")
"""Sweeps with half as many seeds: their instances take longest."""
SPREADS = (2.0, 3.0, 4.0, 5.0, 5.5, 6.0, 7.0, 8.0, 10.0, 14.0, 20.0, 40.0)
Options = dict[str, Any]
PAPER: Options = {"rule": "paper", "constants": "oracle"}
FIRST_SEED = 100


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean and half-width of its 95 % interval (Student's factor for few values)."""
    array = np.asarray(values, dtype=float)
    if len(array) < 2:
        return float(array.mean()), math.nan
    factor = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 10: 2.26, 20: 2.09}.get(len(array), 2.0)
    return float(array.mean()), float(factor * array.std(ddof=1) / math.sqrt(len(array)))


def varied(name: str, value: float) -> PaperLike:
    if name == "servers":
        return replace(BASE, worker_servers=int(value), ps_servers=int(value))
    if name == "horizon":
        return replace(BASE, horizon=int(value), jobs=int(value))
    return replace(BASE, **{name: value if name == "critical_share" else int(value)})


def paper_like_cell(config: PaperLike, seed: int, policy: str, options: Options) -> tuple[Key, Callable[[], Any]]:
    """Total utility and ages at completion of one policy on one paper-like instance."""

    def compute() -> dict[str, Any]:
        instance = paper_like_instance(config, seed)
        arrival = {job["id"]: job["arrival"] for job in instance["jobs"]}
        result = solve_instance(instance, policy, dict(options))
        done = {key: job["completion"] for key, job in result["jobs"].items() if job["admitted"]}
        return {
            "utility": result["total_utility"],
            "ages": [completion - arrival[key] + 1 for key, completion in done.items()],
        }

    return _key("paper-like", asdict(config), seed, policy, options), compute


def tiny_cell(seed: int, policy: str, options: Options) -> tuple[Key, Callable[[], Any]]:
    def compute() -> dict[str, Any]:
        result = solve_instance(tiny_instance(Tiny(jobs=(5, 8)[seed % 2]), seed), policy, dict(options))
        return {"utility": result["total_utility"], "bound_alpha": result["bound_alpha"]}

    return _key("tiny", {}, seed, policy, options), compute


def _key(kind: str, config: dict[str, Any], seed: int, policy: str, options: Options) -> Key:
    return (kind, json.dumps(config, sort_keys=True), seed, policy, json.dumps(options, sort_keys=True))


class Study:
    """The parts of the study. They name the cells they need and, once those are computed, read them."""

    def __init__(self, seeds: int, sweep_seeds: int, tiny: int, *, only_tiny: bool = False) -> None:
        self.seeds, self.sweep_seeds, self.tiny, self.only_tiny = seeds, sweep_seeds, tiny, only_tiny
        self.cells: dict[Key, Callable[[], Any]] = {}
        self.results: dict[Key, Any] | None = None

    def parts(self) -> dict[str, Any]:
        """Called twice: to learn which cells there are (results are blank then), and to read them."""
        if self.only_tiny:
            return {"tiny": self.tiny_ratios()}
        return {
            "floor": self.floor_sensitivity(),
            "tiny": self.tiny_ratios(),
            "main": self.main_comparison(),
            "sweeps": {name: self.sweep(name, points) for name, (_, points) in SWEEPS.items()},
        }

    def run(self, out: Path) -> dict[str, Any]:
        self.parts()
        self.results = run_cells(self.cells.items(), out, code_digest("policies/oasis", "model"))
        return self.parts()

    def _cell(self, cell: tuple[Key, Callable[[], Any]]) -> dict[str, Any]:
        if self.results is None:
            self.cells[cell[0]] = cell[1]
            return {"utility": 1.0, "ages": [1], "bound_alpha": 1.0}
        return self.results[cell[0]]

    def main_comparison(self) -> dict[str, Any]:
        """All policies, and OASiS with the paper's constants, on the same instances; not those of the tuning."""
        variants = {**{policy: (policy, {}) for policy in POLICIES}, "oasis (paper)": ("oasis", PAPER)}
        found = {
            name: [self._cell(paper_like_cell(BASE, FIRST_SEED + seed, *variant)) for seed in range(self.seeds)]
            for name, variant in variants.items()
        }
        return {
            "totals": {name: [cell["utility"] for cell in cells] for name, cells in found.items()},
            "ages": {name: [age for cell in cells for age in cell["ages"]] for name, cells in found.items()},
        }

    def sweep(self, name: str, points: Sequence[float]) -> dict[str, list[list[float]]]:
        """totals[policy][point] over the first seeds of the main comparison, with which they share the base."""
        count = max(self.sweep_seeds // 2, 2) if name in COSTLY else self.sweep_seeds
        seeds = range(FIRST_SEED, FIRST_SEED + count)
        return {
            policy: [
                [self._cell(paper_like_cell(varied(name, point), seed, policy, {}))["utility"] for seed in seeds]
                for point in points
            ]
            for policy in POLICIES
        }

    def tiny_ratios(self) -> dict[str, Any]:
        """Optimum / policy on instances the optimum can solve, beside the bound 2 alpha."""
        variants: dict[str, tuple[str, Options]] = {
            "oasis (density, history)": ("oasis", {}),
            "oasis (density, oracle)": ("oasis", {"constants": "oracle"}),
            "oasis (paper, oracle)": ("oasis", PAPER),
            **{policy: (policy, {}) for policy in POLICIES[1:]},
        }
        ratios: dict[str, list[float]] = {name: [] for name in variants}
        bounds: dict[str, list[float]] = {name: [] for name in variants}
        for seed in range(self.tiny):
            optimum = self._cell(tiny_cell(seed, "optimal", {}))["utility"]
            if optimum <= 1e-6:
                continue
            for name, variant in variants.items():
                result = self._cell(tiny_cell(seed, *variant))
                ratios[name].append(optimum / max(result["utility"], 1e-9))
                if result["bound_alpha"] is not None:
                    bounds[name].append(2 * result["bound_alpha"])
        return {"ratios": ratios, "bounds": bounds}

    def floor_sensitivity(self) -> dict[str, list[list[float]]]:
        """Total utility against the floor, given as the largest ln(U/L), under both rules."""
        return {
            rule: [
                [
                    self._cell(
                        paper_like_cell(
                            BASE,
                            2000 + seed,
                            "oasis",
                            {"rule": rule, "constants": constants, "spread_max": spread},
                        )
                    )["utility"]
                    for seed in range(self.sweep_seeds)
                ]
                for spread in SPREADS
            ]
            for rule, constants in (("density", "history"), ("paper", "oracle"))
        }


def tables(study: dict[str, Any]) -> str:
    lines = [
        "## Paper-like configuration",
        "",
        "| policy | total utility | OASiS ahead by |",
        "|---|---|---|",
    ]
    totals = study["main"]["totals"]
    for policy, values in totals.items():
        mean, half = mean_interval(values)
        lead, lead_half = mean_interval(np.subtract(totals["oasis"], values).tolist())
        ahead = "" if policy == "oasis" else f"{lead:.0f} ± {lead_half:.0f} ({100 * lead / mean:.0f} %)"
        lines.append(f"| {policy} | {mean:.0f} ± {half:.0f} | {ahead} |")
    lines += ["", "## Completion: slots from arrival, of completed jobs", ""]
    lines += ["| policy | completed per instance | median | p90 |", "|---|---|---|---|"]
    for policy, ages in study["main"]["ages"].items():
        done = len(ages) / len(totals[policy])
        lines.append(f"| {policy} | {done:.1f} | {np.median(ages):.0f} | {np.percentile(ages, 90):.0f} |")
    for name, (label, points) in SWEEPS.items():
        lines += ["", f"## Total utility against {label}", ""]
        lines += [f"{len(study['sweeps'][name]['oasis'][0])} seeds.", ""]
        lines.append(f"| {label} | " + " | ".join(POLICIES) + " | lead over the best baseline |")
        lines.append("|---" * (len(POLICIES) + 2) + "|")
        for index, point in enumerate(points):
            values = {policy: study["sweeps"][name][policy][index] for policy in POLICIES}
            best = max(POLICIES[1:], key=lambda policy: float(np.mean(values[policy])))
            lead, half = mean_interval(np.subtract(values["oasis"], values[best]).tolist())
            unit = float(np.mean(values[best])) / 100
            cells = " | ".join(f"{np.mean(values[policy]):.0f}" for policy in POLICIES)
            lines.append(f"| {point:g} | {cells} | {lead / unit:.0f} ± {half / unit:.0f} % ({best}) |")
    lines += ["", *tiny_table(study)]
    lines += ["", "## Total utility against the floor on L", ""]
    lines += ["| largest ln(U/L) | density rule, history | paper's rule, oracle |", "|---|---|---|"]
    for index, spread in enumerate(SPREADS):
        cells = " | ".join(f"{np.mean(study['floor'][rule][index]):.0f}" for rule in ("density", "paper"))
        lines.append(f"| {spread:g} | {cells} |")
    return "\n".join(lines) + "\n"


def tiny_table(study: dict[str, Any]) -> list[str]:
    lines = ["## Optimum / policy on tiny instances", ""]
    lines += ["| policy | mean | median | p90 | max | mean 2 alpha |", "|---|---|---|---|---|---|"]
    for name, ratios in study["tiny"]["ratios"].items():
        bound = study["tiny"]["bounds"][name]
        cells = [np.mean(ratios), np.median(ratios), np.percentile(ratios, 90), np.max(ratios)]
        shown = " | ".join(f"{cell:.3f}" for cell in cells)
        lines.append(f"| {name} | {shown} | {f'{np.mean(bound):.1f}' if bound else ''} |")
    return lines


def figures(study: dict[str, Any], out: Path) -> None:
    for name, (label, points) in SWEEPS.items():
        figure, axes = plt.subplots(figsize=(5.5, 3.6))
        for policy in POLICIES:
            pairs = [mean_interval(values) for values in study["sweeps"][name][policy]]
            means, halves = np.array(pairs).T
            (line,) = axes.plot(points, means, marker="o", label=policy)
            axes.fill_between(points, means - halves, means + halves, color=line.get_color(), alpha=0.15)
        axes.set(xlabel=label, ylabel="total utility", ylim=(0, 1.2 * axes.get_ylim()[1]))  # room for the legend
        _save(figure, axes, out / f"oasis_{name}.png")
    figure, axes = plt.subplots(figsize=(5.5, 3.6))
    for policy, ages in study["main"]["ages"].items():
        axes.step(np.sort(ages), np.arange(1, len(ages) + 1) / len(ages), where="post", label=policy)
    axes.set(xlabel="slots from arrival to completion", ylabel="fraction of completed jobs", ylim=(0, 1))
    _save(figure, axes, out / "oasis_completion.png")
    figure, axes = plt.subplots(figsize=(5.5, 3.6))
    for rule, label in (("density", "density rule, history"), ("paper", "paper's rule, oracle")):
        axes.plot(SPREADS, [np.mean(values) for values in study["floor"][rule]], marker="o", label=label)
    axes.set(xlabel="floor on L: largest ln(U/L)", ylabel="total utility", xscale="log", ylim=(0, None))
    axes.set_xticks([2, 3, 5, 8, 14, 40], labels=["2", "3", "5", "8", "14", "40"])
    axes.minorticks_off()
    _save(figure, axes, out / "oasis_floor.png")
    ratio_figure(study, out)


def ratio_figure(study: dict[str, Any], out: Path) -> None:
    figure, axes = plt.subplots(figsize=(5.5, 3.6))
    for name, ratios in study["tiny"]["ratios"].items():
        if name.startswith("oasis"):
            axes.step(np.sort(ratios), np.arange(1, len(ratios) + 1) / len(ratios), where="post", label=name)
    axes.axvline(np.mean(study["tiny"]["bounds"]["oasis (density, history)"]), ls=":", color="grey", label="2 alpha")
    axes.set(xlabel="optimum / OASiS", ylabel="fraction of instances", xscale="log", ylim=(0, 1))
    axes.set_xticks([1, 1.5, 2, 3, 5, 10], labels=["1", "1.5", "2", "3", "5", "10"])
    axes.minorticks_off()
    _save(figure, axes, out / "oasis_ratio.png")


def _save(figure: Any, axes: Any, path: Path) -> None:
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=100, metadata={"Software": None})
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--sweep-seeds", type=int, default=10)
    parser.add_argument("--tiny", type=int, default=200)
    parser.add_argument("--only-tiny", action="store_true")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    sizes = (arguments.seeds, arguments.sweep_seeds, arguments.tiny)
    study = Study(*sizes, only_tiny=arguments.only_tiny).run(arguments.out)
    (arguments.out / "study.json").write_text(json.dumps(study, sort_keys=True) + "\n")
    if arguments.only_tiny:
        text = "\n".join(tiny_table(study)) + "\n"
        ratio_figure(study, arguments.out)
    else:
        text = tables(study)
        figures(study, arguments.out)
    (arguments.out / "study.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
