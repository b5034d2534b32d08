"""The studies of docs/policies/das.md: the table, calibration of the posterior, history length, pictures of a case.

    python bench/study_das.py table --traces 30 --trace A.csv.gz --trace B.csv.gz --out OUT.json [RIVAL ...]
    python bench/study_das.py calibration | history | case  --out OUT

Rivals are names of `trainmaster.learn.das.evaluate` or LABEL=weights.npz; what OUT.json holds is not played again.
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from trainmaster.learn.das.evaluate import BASELINES, Scores, evaluate, read_scores
from trainmaster.learn.das.jobs import JobPool, draw_stream, pools_of, seeds_of
from trainmaster.learn.das.play import Player, scene_of
from trainmaster.learn.das.world import GPUS_ASKED, JOBS, SITES, World
from trainmaster.policies.das.features import job_features, machine_features
from trainmaster.policies.das.weights import SHIPPED, load
from trainmaster.report.baseline_table import table


def table_study(pools: list[JobPool], names: list[str], traces: int, sites: list[str], out: Path) -> None:
    rivals = {}
    for name in names or [*BASELINES, f"DAS={SHIPPED}"]:
        label, _, value = name.partition("=")
        rivals[label] = value or label

    def keep(scores: Scores) -> None:
        out.with_suffix(".new").write_text(json.dumps(scores))
        os.replace(out.with_suffix(".new"), out)

    scores = evaluate(pools, rivals, traces, read_scores(out), keep=keep, sites=sites)
    whole = {label: by_site for label, by_site in scores.items() if len(by_site) == len(SITES)}
    if whole:
        print_table(whole)


def print_table(scores: Scores) -> None:
    base = "DRF-LoadBalance" if "DRF-LoadBalance" in scores else next(iter(scores))
    for row in table(scores, base):
        cells = " | ".join(
            f"{row[f'{site}_jct_min']:.1f}{_within(row[f'{site}_jct_min_half'], '.0f')} | {row[f'{site}_fee']:.2f}"
            for site in (*SITES,)
        )
        print(
            f"| {row['rival']} | {cells} | {row['average_jct_min']:.1f} | {row['average_fee']:.2f} |"
            f" {row['below_jct_min']:.1%}{_within(row['below_jct_min_half'], '.1%')} | {row['below_fee']:.1%} |"
        )


def _within(half: float | None, form: str) -> str:
    """Half an interval, where there is one."""
    return "" if half is None else f" ± {half:{form}}"


def calibration_study(pools: list[JobPool], traces: int, out: Path) -> None:
    """How often the realised log-speed of a job falls into the central 50, 80 and 95 % of what was expected at its
    start; and how much of its variance the mean explains, against the mean of all and a rule that knows use alone."""
    weights = load(SHIPPED)
    z, real, mean = [], [], []
    for site in SITES.values():
        for seed in seeds_of("test", traces):
            world = World(site, draw_stream(pools, "test", seed, JOBS, GPUS_ASKED))
            player = Player(world, weights.agents, weights.kernel, calibrates=True)
            player.play()
            for expected, variance, job in player.expectations:
                took_s = world.end_s[job] - world.start_s[job]
                speed = world.stream.work_s[job] / took_s / world.type_speed[world.held_type[job]]
                if job in player.several:
                    speed /= world.spread_kept
                seen = float(np.log(speed))
                z.append((seen - expected) / np.sqrt(variance + weights.kernel.noise**2))
                real.append(seen)
                mean.append(expected)
    z_, real_, mean_ = np.abs(np.array(z)), np.array(real), np.array(mean)
    figures = {
        "starts": len(z_), "inside_50": float((z_ < 0.674).mean()), "inside_80": float((z_ < 1.282).mean()),
        "inside_95": float((z_ < 1.960).mean()), "z_deviation": float(np.std(z)), "z_mean": float(np.mean(z)),
        "explained": float(1.0 - np.var(real_ - mean_) / np.var(real_)),
        "correlation": float(np.corrcoef(real_, mean_)[0, 1]),
    }  # fmt: skip
    out.write_text(json.dumps(figures, indent=1))
    print(json.dumps(figures, indent=1))


def history_study(pools: list[JobPool], lengths: list[int], traces: int, out: Path) -> None:
    """Completion time and fee with other lengths of history (the first is what the others are compared with), the
    weights being the same; what OUT holds is not played again."""
    weights, scores = load(SHIPPED), read_scores(out)
    for length in lengths:
        kernel = replace(weights.kernel, history=length)
        for site in SITES.values():
            done = scores.setdefault(f"tau = {length}", {}).setdefault(site.name, {})
            for seed in seeds_of("test", traces):
                if str(seed) not in done:
                    world = World(site, draw_stream(pools, "test", seed, JOBS, GPUS_ASKED))
                    Player(world, weights.agents, kernel).play()
                    done[str(seed)] = [float(world.completion_s().mean()) / 60.0, float(world.fee().mean())]
        out.write_text(json.dumps(scores))
    print_table(scores)


def case_study(pools: list[JobPool], out: Path) -> None:
    """Four steps on the small site in which several jobs wait: scores, affinities, and where jobs went."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    weights = load(SHIPPED)
    world = World(SITES["small"], draw_stream(pools, "test", seeds_of("test", 2)[1], JOBS, GPUS_ASKED))
    player = Player(world, weights.agents, weights.kernel)
    steps = []
    while len(steps) < 4 and world.to_decision():
        player.observe()
        pending = world.pending()
        shown = 3 <= len(pending) <= 10 and int(world.free.sum()) >= 3
        if shown:
            scene = scene_of(world)
            scores = weights.agents.scores(job_features(scene), machine_features(scene))
            free = world.free.copy()
            player.traced.clear()
        else:
            scores = free = np.empty(0)
        before = world.held.copy()
        player.decide()
        started = np.flatnonzero((world.held > 0).any(axis=1) & ~(before > 0).any(axis=1))
        apart = not steps or world.now_s > steps[-1][0] + 3600.0
        if shown and apart and any(len(candidates) > 2 for _, candidates, _ in player.traced):
            taken = world.held.copy()
            steps.append((world.now_s, pending, scores, free, taken, started, list(player.traced), player.held_for))
    fig, axes = plt.subplots(3, 4, figsize=(15, 9.5), height_ratios=[1.1, 0.9, 1.2])
    for k, (now, pending, scores, free, held, started, traced, held_for) in enumerate(steps):
        top, middle, bottom = axes[:, k]
        names = [f"j{j} ({world.stream.gpus[j]} GPU)" for j in pending]
        colours = ["#2a6fbb" if j in started else "#d98a29" if j == held_for else "#c9d3df" for j in pending]
        top.barh(range(len(pending)), scores, color=colours)
        top.set_yticks(range(len(pending)), names, fontsize=8)
        top.invert_yaxis()
        top.set_title(f"step {k + 1}: {now / 3600:.1f} h, {int(free.sum())} GPUs free", fontsize=10)
        top.set_xlabel("order score (blue: starts, orange: held for)", fontsize=8)
        grid = np.full((max(len(traced), 1), len(free)), np.nan)
        for i, (_, candidates, affinity) in enumerate(traced):
            grid[i, candidates] = affinity
        middle.imshow(grid, aspect="auto", cmap="viridis")
        for i in range(len(traced)):
            for m in range(len(free)):
                if np.isfinite(grid[i, m]):
                    bright = grid[i, m] > 0.5 * (np.nanmin(grid) + np.nanmax(grid))
                    middle.text(m, i, f"{grid[i, m]:.1f}", ha="center", va="center", fontsize=7,
                                color="black" if bright else "white")  # fmt: skip
        middle.set_yticks(range(len(traced)), [f"j{job}" for job, *_ in traced], fontsize=8)
        middle.set_xticks(range(len(free)), [f"m{m}" for m in range(len(free))], fontsize=8)
        middle.set_title("affinity (blank: no room)", fontsize=8)
        cells = np.ones((4, len(free), 3))
        for m in range(len(free)):
            slot = 0
            for j in np.flatnonzero(held[:, m]).tolist():
                for _ in range(int(held[j, m])):
                    cells[slot, m] = (0.16, 0.44, 0.73) if j in started else (0.75, 0.78, 0.82)
                    bottom.text(m, slot, str(j), ha="center", va="center", fontsize=7,
                                color="white" if j in started else "black")  # fmt: skip
                    slot += 1
        bottom.imshow(cells, aspect="auto", origin="lower")
        bottom.set_xticks(range(len(free)), [f"m{m}" for m in range(len(free))], fontsize=8)
        bottom.set_yticks([])
        bottom.set_title("GPUs afterwards (blue: just started)", fontsize=8)
    fig.tight_layout()
    fig.savefig(out, dpi=90)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=("table", "calibration", "history", "case"))
    parser.add_argument("rivals", nargs="*")
    parser.add_argument("--trace", type=Path, action="append", default=[])
    parser.add_argument("--traces", type=int, default=30)
    parser.add_argument("--length", type=int, action="append", default=[], help="of history, for `history`")
    parser.add_argument("--site", choices=tuple(SITES), action="append", default=[])
    parser.add_argument("--out", type=Path, required=True)
    chosen = parser.parse_intermixed_args()
    pools = pools_of(chosen.trace)
    if chosen.study == "table":
        table_study(pools, chosen.rivals, chosen.traces, chosen.site or list(SITES), chosen.out)
    elif chosen.study == "calibration":
        calibration_study(pools, chosen.traces, chosen.out)
    elif chosen.study == "history":
        history_study(pools, chosen.length or [64, 1, 4, 16, 32, 128], chosen.traces, chosen.out)
    else:
        case_study(pools, chosen.out)


if __name__ == "__main__":
    main()
