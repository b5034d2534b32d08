"""Streams of gang jobs cut from real traces, and what a scheduler could have known of their durations.

Sizes, durations, order and gaps are those of the trace; durations are clipped and scaled, gaps are stretched, so that
every source gives the same mean run time and load (see docs/policies/das.md). What is known of a job's duration is what
jobs of the same group (team and size, or shape of the request) took that have ended before: in the trace before
the stream begins, in the world from then on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trainmaster.core.arrays import Floats, Ints
from trainmaster.learn.seeds import TEST_SEEDS, TRAIN_SEEDS, VALIDATION_SEEDS
from trainmaster.model.errors import InputError
from trainmaster.traces import JobTrace, load

SHORTEST_S, LONGEST_S = 180.0, 36_000.0
REAL_SHORTEST_S, REAL_LONGEST_S = 60.0, 432_000.0
"""Of streams whose durations are not scaled: from a minute to five days."""
MEAN_RUN_S = 4_500.0
"""Mean run time on an undisturbed machine of the fast type: a job that does not wait ends after about 110 minutes."""
GPUS_MAX = 16
SINGLES_KEPT = 0.35
"""Part of the one-GPU jobs that are kept: this is about distributed training."""
KINDS = 8
HISTORY = 1000
"""Jobs before the stream from which durations are estimated."""
PRIOR_JOBS = 4.0
"""How many jobs of its group outweigh what is known of all jobs."""
RECENT_WEIGHT = 0.25
DECLARED_DEVIATION = 0.6
"""Of the logarithm of a declared duration from the true one: two of three users are less than 1.8 times off."""
PARTS = {"train": (0.0, 0.6), "validation": (0.6, 0.72), "test": (0.72, 1.0)}
"""Disjoint parts of a trace, by order of submission."""


@dataclass(frozen=True)
class JobPool:
    """Jobs of one source in order of submission."""

    name: str
    gpus: Ints
    duration_s: Floats
    """Clipped and scaled."""
    real_s: Floats
    """As long as they were, but for the extremes."""
    gap_s: Floats
    """To the job before."""
    group: Ints
    team: Ints

    def __len__(self) -> int:
        return len(self.gpus)


@dataclass
class Durations:
    """Logarithms of durations (s) by group: mean drawn to that of all jobs, deviation, and the mean of recent ones."""

    mean: Floats
    recent: Floats
    square: Floats
    """Mean square about the mean, drawn to that of all jobs."""
    count: Floats

    @classmethod
    def of(cls, groups: int, logs: Floats, group: Ints, inside: npt.NDArray[np.bool_]) -> Durations:
        overall = float(logs.mean()) if len(logs) else float(np.log(MEAN_RUN_S / 2))
        spread = float(logs.var()) if len(logs) > 1 else 2.0
        known = cls(*(np.full(groups, value) for value in (overall, overall, spread, PRIOR_JOBS)))
        for log_s, g in zip(logs[inside].tolist(), group[inside].tolist(), strict=True):
            known.add(g, log_s)
        return known

    def add(self, group: int, log_s: float) -> None:
        """A job of the group has ended."""
        self.count[group] += 1.0
        away = log_s - self.mean[group]
        self.mean[group] += away / self.count[group]
        self.square[group] += (away**2 - self.square[group]) / self.count[group]
        self.recent[group] += RECENT_WEIGHT * (log_s - self.recent[group])

    def copy(self) -> Durations:
        return Durations(self.mean.copy(), self.recent.copy(), self.square.copy(), self.count.copy())


@dataclass(frozen=True)
class JobStream:
    """The jobs of one episode, and what is known of the durations of their groups when it begins."""

    seed: int
    submit_s: Floats
    work_s: Floats
    gpus: Ints
    kind: Ints
    team: Ints
    group: Ints
    known: Durations
    declared: Floats
    """Logarithm of the duration (s) as users state it, with their error. Generated: the traces hold no such field."""

    def __len__(self) -> int:
        return len(self.gpus)


def pool_of(trace: JobTrace) -> JobPool:
    """The jobs of a trace that use GPUs and ran, singles thinned out by their place in the trace."""
    jobs = trace.jobs
    columns: dict[str, Any] = {name: jobs[name].to_list() for name in jobs.columns}
    empty = [None] * len(jobs)
    order = np.argsort(np.array(columns["submit_s"], np.float64), kind="stable").tolist()
    gpus, duration, submit, group, team = [], [], [], [], []
    groups: dict[tuple[Any, ...], int] = {}
    teams: dict[Any, int] = {}
    for place, row in enumerate(order):
        size, length = columns["gpus"][row], columns["duration_s"][row]
        if not size or not length or length < SHORTEST_S / 3:
            continue
        size = min(max(1, round(size)), GPUS_MAX)
        if size == 1 and (place * 0x9E3779B1) % (1 << 32) > SINGLES_KEPT * (1 << 32):
            continue
        team_key = columns.get("vc", empty)[row] or columns.get("qos", empty)[row] or ""
        shape = (columns.get("cpus", empty)[row], columns.get("mem_gib", empty)[row])
        gpus.append(size)
        duration.append(length)
        submit.append(columns["submit_s"][row])
        group.append(groups.setdefault((team_key, size, *shape), len(groups)))
        team.append(teams.setdefault(team_key, len(teams)))
    if len(gpus) < 500:
        raise InputError(f"trace '{trace.name}' has {len(gpus)} usable jobs", "500 or more with GPUs and a duration")
    lengths = np.clip(np.array(duration), SHORTEST_S, LONGEST_S)
    gaps = np.diff(np.array(submit), prepend=submit[0])
    return JobPool(
        trace.name,
        np.array(gpus, np.int64),
        lengths * (MEAN_RUN_S / lengths.mean()),
        np.clip(np.array(duration), REAL_SHORTEST_S, REAL_LONGEST_S),
        np.maximum(gaps, 0.0),
        np.array(group, np.int64),
        np.array(team, np.int64),
    )


def synthetic_pool(seed: int = 0, jobs: int = 6000) -> JobPool:
    """A made-up source with the same traits: recurring groups, long tails, bursts. For tests and first steps."""
    rng = np.random.Generator(np.random.PCG64([seed, 11]))
    n_groups = 40
    median = rng.normal(0.0, 1.0, n_groups)
    size = rng.choice([1, 2, 4, 8, 16], n_groups, p=[0.4, 0.15, 0.2, 0.2, 0.05])
    owner = rng.integers(0, 6, n_groups)
    group = rng.choice(n_groups, jobs, p=rng.dirichlet(np.full(n_groups, 0.7)))
    lengths = np.clip(2_000.0 * np.exp(median[group] + rng.normal(0.0, 1.1, jobs)), SHORTEST_S, LONGEST_S)
    gaps = rng.gamma(0.5, 2.0, jobs)
    return JobPool(
        "synthetic",
        size[group].astype(np.int64),
        lengths * (MEAN_RUN_S / lengths.mean()),
        lengths,
        gaps,
        group.astype(np.int64),
        owner[group].astype(np.int64),
    )


def pools_of(paths: Sequence[Path]) -> list[JobPool]:
    """The sources in these files; none given: the synthetic one."""
    return [pool_of(load(path)) for path in paths] or [synthetic_pool()]


def draw_stream(
    pools: Sequence[JobPool],
    part: str,
    seed: int,
    jobs: int,
    gpus_asked: float,
    gpus_max: int = GPUS_MAX,
    real: bool = False,
) -> JobStream:
    """Consecutive jobs from a place drawn in this part of a source; sources take turns by seed. They come at the rate
    at which they would keep `gpus_asked` GPUs busy. `real`: their durations are not scaled."""
    pool = pools[seed % len(pools)]
    rng = np.random.Generator(np.random.PCG64([seed, 5]))
    low, high = (int(bound * len(pool)) for bound in PARTS[part])
    first = int(rng.integers(low, max(high - jobs, low + 1)))
    picked = slice(first, first + jobs)
    gaps = pool.gap_s[picked].copy()
    # Days in which nothing comes say nothing about scheduling: gaps are cut at ten times their mean, then stretched.
    gaps = np.minimum(gaps, 10.0 * max(gaps.mean(), 1e-9)) + 1e-3
    length_s, gpus = pool.real_s if real else pool.duration_s, np.minimum(pool.gpus, gpus_max)
    gaps *= float((gpus * length_s)[picked].mean()) / gpus_asked / gaps.mean()
    groups, group = np.unique(pool.group[picked], return_inverse=True)
    before = slice(max(0, first - HISTORY), first)
    known = Durations.of(
        len(groups),
        np.log(length_s[before]),
        np.searchsorted(groups, pool.group[before]),
        np.isin(pool.group[before], groups),
    )
    return JobStream(
        seed,
        np.cumsum(gaps) - gaps[0],
        length_s[picked].copy(),
        gpus[picked].copy(),
        pool.group[picked] * 7 % KINDS,
        pool.team[picked].copy(),
        group.astype(np.int64),
        known,
        np.log(length_s[picked]) + rng.normal(0.0, DECLARED_DEVIATION, jobs),
    )


def seeds_of(part: str, count: int, first: int = 0) -> range:
    """Seeds of streams for a purpose; no purpose shares one with another."""
    base = {"train": TRAIN_SEEDS, "validation": VALIDATION_SEEDS, "test": TEST_SEEDS}[part]
    return range(base + first, base + first + count)
