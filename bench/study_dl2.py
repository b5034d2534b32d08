"""DL2's tables: what it learns from which teacher, and what each part of the recipe is worth.

    python bench/study_dl2.py teachers      # imitation beside its teacher, then reinforcement beside both
    python bench/study_dl2.py ablations     # the paper's parts one by one
    python bench/study_dl2.py federated     # one, two and four clusters feeding one learner
    python bench/study_dl2.py margins       # how far DRF, Optimus and we are from the bound
    python bench/study_dl2.py scenarios     # other kinds, loads, clusters, speeds
    python bench/study_dl2.py baselines     # everybody on the same traces of one scenario

Trainings are short (stated below) on a small cluster, so that each table takes a few minutes of one core; test traces
are those that nothing trains or chooses on. Intervals are 95 %, paired by trace.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from support.completion_bound import least_mean_completion_s
from support.dl2_baselines import SAME_KNOWLEDGE, mean_completion_s, with_beliefs
from trainmaster.learn.dl2.demonstrations import record
from trainmaster.learn.dl2.evaluate import BASELINES, SCENARIOS, SMALL, completion_s, sampled_from
from trainmaster.learn.dl2.options import TrainOptions
from trainmaster.learn.dl2.rollout import play
from trainmaster.learn.dl2.trainer import Trainer, scorer_of
from trainmaster.learn.seeds import TEST_SEEDS
from trainmaster.learn.sizing.job_types import ANALYTIC
from trainmaster.learn.sizing.trace import SizingSpec, draw_traces
from trainmaster.policies.dl2.network import ScoringNetwork
from trainmaster.policies.dl2.weights import load_once
from trainmaster.report.statistics import paired_ratio
from trainmaster.traces import load

TINY = SizingSpec(servers=8, jobs=10, arrivals_per_slot_max=1)
TRACES = 20
SHORT = TrainOptions(
    warm_up_traces=10, warm_up_steps=400, warm_up_rate=0.01, kept=0.3, episodes=8, validation_traces=8,
    validate_every=5,
)  # fmt: skip


def below(values: np.ndarray, base: np.ndarray) -> str:
    """How far the values are below the base: of the means, and the interval paired by trace."""
    ratio = paired_ratio(values.tolist(), base.tolist())
    ends = "" if ratio is None or ratio.low is None or ratio.high is None else (
        f" ({1 - ratio.high:.1%} to {1 - ratio.low:.1%})"
    )  # fmt: skip
    return f"{1 - values.mean() / base.mean():.1%}{ends}"


def tested(trainer: Trainer, spec: SizingSpec) -> np.ndarray:
    traces = draw_traces(spec, range(TEST_SEEDS, TEST_SEEDS + TRACES))
    return play(traces, scorer_of(trainer.options, trainer.best), trainer.options.floor)


def run(options: TrainOptions, clusters: list[SizingSpec]) -> tuple[Trainer, float]:
    begun = time.process_time()
    trainer = Trainer(options, clusters)
    trainer.run()
    return trainer, time.process_time() - begun


def teachers(spec: SizingSpec, only: str) -> None:
    """Imitation alone must match its teacher; with reinforcement it must beat it."""
    print("| teacher | teacher, s | imitation, s | under the teacher | with reinforcement, s | under it | CPU s |")
    print("|---|---|---|---|---|---|---|", flush=True)
    traces = draw_traces(spec, range(TEST_SEEDS, TEST_SEEDS + TRACES))
    for teacher in ("drf", "srtf", "tetris", "optimus", "optimus:fitted=true,error=0.1"):
        if only not in teacher:
            continue
        taught = np.array([record(trace, teacher)[1] for trace in traces])
        base = replace(SHORT, teacher=teacher)
        alone, first_s = run(replace(base, iterations=0), [spec])
        imitated = tested(alone, spec)
        both, then_s = run(replace(base, iterations=25, update="evolution", rate=0.5, pairs=6, episodes=5), [spec])
        improved = tested(both, spec)
        print(
            f"| {teacher} | {taught.mean():,.0f} | {imitated.mean():,.0f} | {below(imitated, taught)} | "
            f"{improved.mean():,.0f} | {below(improved, taught)} | {first_s + then_s:.0f} |", flush=True,
        )  # fmt: skip


PAPER = replace(
    SHORT, teacher="drf", update="replay", reward="progress", exploration=0.4, discount=0.9, trace_decay=1.0,
    entropy=0.1, rate=1e-4, batch=256, iterations=40,
)  # fmt: skip
WITHOUT = {
    "all of it": {},
    "no critic": {"critic": False},
    "no exploration": {"exploration": 0.0},
    "no replay": {"replay": 0},
    "reward per job": {"reward": "per-job"},
    "no warm-up": {"warm_up": False},
    "ours: PPO, completion reward": {"update": "clipped", "reward": "completion", "discount": 0.97, "trace_decay": 0.9,
                                     "exploration": 0.0, "entropy": 1e-3, "rate": 1e-3},
    "ours: evolution": {"update": "evolution", "rate": 0.5, "pairs": 6, "episodes": 5},
}  # fmt: skip


def ablations(spec: SizingSpec, only: str, seeds: int) -> None:
    """The paper's update on our network, with one part left out at a time; every recipe from every seed."""
    print("| recipe | mean, s | by seed | under imitation alone | against all of it | CPU s |")
    print("|---|---|---|---|---|---|")
    imitated = np.concatenate(
        [tested(run(replace(PAPER, iterations=0, seed=k), [spec])[0], spec) for k in range(seeds)]
    )
    whole: np.ndarray | None = None
    for name, changes in WITHOUT.items():
        if only not in name and whole is not None:
            continue
        figures, cpu_s = [], 0.0
        for k in range(seeds):
            trainer, took_s = run(replace(PAPER, **changes, seed=k), [spec])
            # The last weights, not the best: what the recipe does, not what choosing among its steps does.
            trainer.best = trainer.actor.export()
            figures.append(tested(trainer, spec))
            cpu_s += took_s
        both = np.concatenate(figures)
        whole = both if whole is None else whole
        by_seed = ", ".join(f"{values.mean():,.0f}" for values in figures)
        unders = f"{below(both, imitated)} | {below(both, whole)}"
        print(f"| {name} | {both.mean():,.0f} | {by_seed} | {unders} | {cpu_s:.0f} |", flush=True)


UPDATES = {
    "paper": PAPER,
    "evolution": replace(SHORT, teacher="drf", update="evolution", rate=0.5, pairs=6, iterations=15),
}


def federated(spec: SizingSpec, only: str, seeds: int) -> None:
    """Episodes of several clusters in every iteration: what is reached after equally many iterations. The last weights
    of the paper's update, as in its ablations; the best of evolution's."""
    print("| update | clusters | episodes an iteration | mean, s | by seed | under DRF | CPU s |")
    print("|---|---|---|---|---|---|---|")
    traces = draw_traces(spec, range(TEST_SEEDS, TEST_SEEDS + TRACES))
    equal = np.array([record(trace, "drf")[1] for trace in traces])
    for name, options in UPDATES.items():
        if only not in name:
            continue
        for clusters in (1, 2, 4):
            figures, cpu_s = [], 0.0
            for k in range(seeds):
                trainer, took_s = run(replace(options, episodes=2 * clusters, seed=k), [spec] * clusters)
                if name == "paper":
                    trainer.best = trainer.actor.export()
                figures.append(tested(trainer, spec))
                cpu_s += took_s
            by_seed = ", ".join(f"{values.mean():,.0f}" for values in figures)
            both = np.concatenate(figures)
            under = below(both, np.tile(equal, seeds))
            print(
                f"| {name} | {clusters} | {2 * clusters} | {both.mean():,.0f} | {by_seed} | {under} | {cpu_s:.0f} |",
                flush=True,
            )


def margins(traces: int, only: str) -> None:
    """How much there is to gain: completion times beside the least that any schedule by slots could reach."""
    names = ("drf", "optimus", "optimus:fitted=true,error=0.1")
    print("| speeds | " + " | ".join(names) + " | dl2 | dl2, exact | bound | bound under DRF | under fitted Optimus |")
    print("|---" * (len(names) + 6) + "|")
    network = load_once("").network
    assert isinstance(network, ScoringNetwork)
    for label, spec in (("measured", SMALL), ("analytic", replace(SMALL, kinds=ANALYTIC))):
        if only not in label:
            continue
        drawn = draw_traces(spec, range(TEST_SEEDS, TEST_SEEDS + traces))
        found = [mean_completion_s(drawn, name) for name in names]
        found.append(play(drawn, network))
        found.append(play([with_beliefs(trace, trace.curve) for trace in drawn], network))
        least = np.array([least_mean_completion_s(trace) for trace in drawn])
        cells = " | ".join(f"{figures.mean():,.0f}" for figures in [*found, least])
        print(f"| {label} | {cells} | {below(least, found[0])} | {below(least, found[2])} |", flush=True)


def scenarios(traces: int, only: str, sampled: list[Path]) -> None:
    """The shipped weights on every scenario, by slots, beside DRF and Optimus; or on jobs with the lengths and gaps of
    real traces."""
    names = ("drf", "optimus:fitted=true,error=0.1", "optimus", SAME_KNOWLEDGE)
    unders = "under DRF | under fitted Optimus | under exact | under the same knowledge"
    print("| scenario | traces | " + " | ".join(names) + f" | dl2 | {unders} |")
    print("|---" * 11 + "|", flush=True)
    network = load_once("").network
    assert isinstance(network, ScoringNetwork)
    specs = {path.name.partition(".")[0]: sampled_from(load(path)) for path in sampled} or SCENARIOS
    for label, spec in specs.items():
        if only not in label:
            continue
        drawn = draw_traces(spec, range(TEST_SEEDS, TEST_SEEDS + traces))
        found = [mean_completion_s(drawn, name) for name in names]
        learned = play(drawn, network)
        cells = " | ".join(f"{figures.mean():,.0f}" for figures in [*found, learned])
        print(
            f"| {label} | {traces} | {cells} | " + " | ".join(below(learned, base) for base in found) + " |", flush=True
        )


OFFLINE = replace(SHORT, teacher="rule", update="evolution", rate=0.01, width=0.03, pairs=6, episodes=4, iterations=10)
"""Offline learning: on the analytic model alone, whatever the cluster really does."""


def baselines(traces: int, name: str) -> None:
    """Everybody on the same test traces; those that the slot simulator does not know, in the engine."""
    spec = SCENARIOS[name or "small"]
    drawn = draw_traces(spec, range(TEST_SEEDS, TEST_SEEDS + traces))
    network = load_once("").network
    assert isinstance(network, ScoringNetwork)
    learned = play(drawn, network)
    print("| policy | mean, s | dl2 is under it by |")
    print("|---|---|---|")
    print(f"| dl2 | {learned.mean():,.0f} | |", flush=True)
    exact = play([with_beliefs(trace, trace.curve) for trace in drawn], network)
    print(f"| dl2, exact knowledge | {exact.mean():,.0f} | {below(learned, exact)} |", flush=True)
    offline = run(OFFLINE, [replace(SizingSpec(servers=24, jobs=30, arrivals_per_slot_max=2), kinds=ANALYTIC)])[0]
    figures = play(drawn, scorer_of(offline.options, offline.best))
    print(
        f"| dl2 trained on the analytic model alone | {figures.mean():,.0f} | {below(learned, figures)} |", flush=True
    )
    for policy in (*BASELINES, SAME_KNOWLEDGE):
        by_slots = policy not in ("srtf", "tetris")
        figures = mean_completion_s(drawn, policy) if by_slots else np.array([completion_s(t, policy) for t in drawn])
        print(f"| `{policy}` | {figures.mean():,.0f} | {below(learned, figures)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=("teachers", "ablations", "federated", "margins", "scenarios", "baselines"))
    parser.add_argument("--traces", type=int, default=10, help="of `margins`, `scenarios`, `baselines`")
    parser.add_argument("--only", default="", help="only rows whose name holds this; the scenario of `baselines`")
    parser.add_argument("--trace", type=Path, action="append", default=[], help="`scenarios`: sample its lengths, gaps")
    parser.add_argument("--seeds", type=int, default=3, help="of `ablations`, `federated`")
    wanted = parser.parse_args()
    torch.set_num_threads(1)
    if wanted.table == "margins":
        margins(wanted.traces, wanted.only)
    elif wanted.table == "scenarios":
        scenarios(wanted.traces, wanted.only, wanted.trace)
    elif wanted.table == "baselines":
        baselines(wanted.traces, wanted.only)
    elif wanted.table == "teachers":
        teachers(TINY, wanted.only)
    else:
        {"ablations": ablations, "federated": federated}[wanted.table](TINY, wanted.only, wanted.seeds)


if __name__ == "__main__":
    main()
