"""DAS and its baselines on the same unseen streams: mean completion time and fee of each stream, site by site."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from trainmaster.learn.das import heuristics
from trainmaster.learn.das.dl2_baseline import Dl2Baseline
from trainmaster.learn.das.heuristics import RULES, Start
from trainmaster.learn.das.jobs import JobPool, draw_stream, seeds_of
from trainmaster.learn.das.metaheuristics import LookAhead, Malo, Mosa
from trainmaster.learn.das.play import Player
from trainmaster.learn.das.rifling import train_rifling
from trainmaster.learn.das.world import GPUS_ASKED, JOBS, SITES, World
from trainmaster.model.errors import InputError
from trainmaster.policies.das.gaussian import Kernel
from trainmaster.policies.das.network import Agents
from trainmaster.policies.das.weights import load

Chooser = Callable[[World], Start | None]
Scores = dict[str, dict[str, dict[str, list[float]]]]
"""By baseline, site and stream: mean completion time (minutes) and mean fee (dollars)."""

SEARCHES: Mapping[str, Callable[[Sequence[JobPool]], Chooser]] = {
    "MALO": lambda _: Malo(),
    "MOSA": lambda _: Mosa(),
    "DL2, adapted": lambda _: Dl2Baseline(),
    "RIFLING": train_rifling,
    "One-step look-ahead": lambda _: LookAhead(),
}
TAUGHT = {"Rule imitated, no process": "da", "Rule imitated": "da+rwgp"}
"""What the agents imitate before they learn, without and with expected speeds of machines."""
BASELINES = (*RULES, *SEARCHES, *TAUGHT)


def player(name: str, pools: Sequence[JobPool]) -> Callable[[World], World]:
    """What plays a world to its end: a baseline by name, or a weights file."""
    if name in RULES:
        return lambda world: heuristics.run(world, RULES[name])
    if name in SEARCHES:
        choose = SEARCHES[name](pools)
        return lambda world: heuristics.run(world, choose)
    if name in TAUGHT:
        nobody = Agents({}, 1, TAUGHT[name])
        return lambda world: Player(world, nobody, Kernel(), teacher=True).play()
    if not Path(name).exists():
        raise InputError(f"unknown rival '{name}'", "a weights file, or one of " + "; ".join(BASELINES))
    weights = load(Path(name))
    return lambda world: Player(world, weights.agents, weights.kernel).play()


def evaluate(
    pools: Sequence[JobPool],
    rivals: Mapping[str, str],
    traces: int,
    known: Scores | None = None,
    part: str = "test",
    keep: Callable[[Scores], None] | None = None,
    sites: Sequence[str] = tuple(SITES),
    jobs: int = JOBS,
) -> Scores:
    """Play every baseline (label -> name) on the first `traces` streams of a part, on these sites. What is `known` is
    not played again; `keep` is called after each baseline and site."""
    scores: Scores = known if known is not None else {}
    for label, name in rivals.items():
        play = None
        for site in (SITES[site_name] for site_name in sites):
            done = scores.setdefault(label, {}).setdefault(site.name, {})
            for seed in seeds_of(part, traces):
                if str(seed) in done:
                    continue
                play = play or player(name, pools)
                world = play(World(site, draw_stream(pools, part, seed, jobs, GPUS_ASKED)))
                done[str(seed)] = [float(world.completion_s().mean()) / 60.0, float(world.fee().mean())]
            if keep:
                keep(scores)
    return scores


def read_scores(path: Path) -> Scores:
    return json.loads(path.read_text()) if path.exists() else {}
