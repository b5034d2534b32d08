"""Episodes played by a network: what was seen, chosen and gained, in flat arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from trainmaster.core.arrays import Bools, Floats, Ints, Singles
from trainmaster.learn.sizing.batch import Decisions, SlotBatch, choose
from trainmaster.learn.sizing.trace import SizingTrace

BAD_RATIO = 10.0
"""Workers per server, or servers per worker, from which a size counts as badly matched (the paper's figure)."""


class Scorer(Protocol):
    """Anything that scores jobs and stopping, such as `ScoringNetwork`."""

    def scores(self, rows: Singles, starts: Ints, globals_: Singles) -> tuple[Singles, Singles]: ...


@dataclass
class Samples:
    """Decisions one below the other: `starts[k]` is the first row of decision k."""

    rows: Singles
    allowed: Bools
    starts: Ints
    globals_: Singles
    chosen_row: Ints
    """Row of the chosen job, counted from the decision's first; -1: stop."""
    action: Ints
    log_p: Floats
    slot: Ints
    """Index of the slot (in `Slots`) in which it was made."""
    own_progress: Floats
    """Part of its work that the chosen job did in that slot; 0 for stopping."""

    def __len__(self) -> int:
        return len(self.starts)


@dataclass
class Slots:
    """Slots one below the other, in order of time within an episode; `last` marks the end of each episode."""

    rows: Singles
    starts: Ints
    globals_: Singles
    present: Floats
    progress: Floats
    episode: Ints
    last: Bools

    def __len__(self) -> int:
        return len(self.present)


def play(traces: Sequence[SizingTrace], scorer: Scorer, floor: bool = True) -> Floats:
    """Mean completion time on each trace when the best action is always taken."""
    batch = SlotBatch(traces, floor)
    while len(batch.alive):
        decisions = batch.decisions()
        scores, void = scorer.scores(decisions.rows, decisions.starts, decisions.globals_)
        row, action, _ = choose(decisions, scores, void, np.zeros(len(void)), True)
        batch.apply(decisions, row, action)
    return batch.mean_completion_s()


def collect(
    traces: Sequence[SizingTrace],
    scorer: Scorer,
    rng: np.random.Generator,
    kept: float,
    exploration: float = 0.0,
    floor: bool = True,
) -> tuple[Samples, Slots, Floats]:
    """Sampled episodes: a part of their decisions, all of their slots, mean completion times."""
    batch = SlotBatch(traces, floor)
    book = _Book(len(traces))
    book.open_slots(batch.decisions())
    while len(batch.alive):
        decisions = batch.decisions()
        scores, void = scorer.scores(decisions.rows, decisions.starts, decisions.globals_)
        n = len(void)
        uniform, luck, keep = rng.random(n), rng.random(n), rng.random(n) < kept
        row, action, log_p = choose(decisions, scores, void, uniform, False)
        if exploration:
            override(decisions, luck < exploration, row, action)
            log_p = _log_p(decisions, scores, void, row, action)
        book.add(decisions, row, action, log_p, keep)
        outcome = batch.apply(decisions, row, action)
        if outcome.ended.any():
            book.close_slots(decisions.episodes, outcome.ended, outcome.present, outcome.progress, batch.state.trained)
            if len(batch.alive):
                opened = decisions.episodes[outcome.ended & ~outcome.over]
                if len(opened):
                    book.open_slots(_only(batch.decisions(), opened))
    samples, slots = book.finish()
    return samples, slots, batch.mean_completion_s()


def override(decisions: Decisions, tempted: Bools, row: Ints, action: Ints) -> None:
    """Job-aware exploration: where a job has workers without servers, servers without workers, or ten times more of
    one than of the other, give it what it lacks instead of what the network chose."""
    rows = decisions.rows
    workers, servers = np.expm1(rows[:, 12] * 3.0), np.expm1(rows[:, 13] * 3.0)
    lacks_server = (workers > 0.5) & (workers >= BAD_RATIO * servers) & decisions.allowed[:, 1]
    lacks_worker = (servers > 0.5) & (servers >= BAD_RATIO * workers) & decisions.allowed[:, 0]
    poor = np.flatnonzero(lacks_server | lacks_worker)
    if len(poor) == 0:
        return
    owner = np.searchsorted(decisions.starts, poor, side="right") - 1
    for k, i in zip(owner[::-1].tolist(), poor[::-1].tolist(), strict=True):
        if tempted[k]:
            row[k], action[k] = i, 1 if lacks_server[i] else 0


def _log_p(decisions: Decisions, scores: Singles, void: Singles, row: Ints, action: Ints) -> Floats:
    """Of these choices, by the masked softmax of each decision."""
    counts = np.diff(np.append(decisions.starts, len(decisions.rows)))
    masked = np.where(decisions.allowed, scores, -np.inf)
    top = np.maximum(np.maximum.reduceat(masked.max(axis=1), decisions.starts), void).astype(np.float64)
    odds = np.exp(masked - np.repeat(top, counts)[:, None]).sum(axis=1)
    total = np.add.reduceat(odds, decisions.starts) + np.exp(void - top)
    chosen = np.where(row < 0, void, scores[np.maximum(row, 0), np.maximum(action, 0)])
    return chosen - top - np.log(total)


def _only(decisions: Decisions, episodes: Ints) -> Decisions:
    """The decisions of these episodes alone."""
    wanted = np.isin(decisions.episodes, episodes)
    ends = np.append(decisions.starts[1:], len(decisions.rows))
    lengths = (ends - decisions.starts)[wanted]
    rows = np.repeat(wanted, ends - decisions.starts)
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64)
    return Decisions(
        decisions.episodes[wanted],
        decisions.rows[rows],
        decisions.allowed[rows],
        starts,
        decisions.globals_[wanted],
        decisions.job[rows],
    )


class _Book:
    """Collects decisions and slots while episodes run, and lays them out at the end."""

    def __init__(self, n_episodes: int) -> None:
        self.open = np.full(n_episodes, -1, np.int64)
        self.slots: list[tuple[Singles, Singles, int]] = []
        self.present: dict[int, float] = {}
        self.progress: dict[int, float] = {}
        self.taken: list[tuple[Singles, Bools, Singles, int, int, float, int, int]] = []
        self.own: list[float] = []
        self.waiting: dict[int, list[int]] = {}

    def open_slots(self, decisions: Decisions) -> None:
        ends = np.append(decisions.starts[1:], len(decisions.rows))
        for k, episode in enumerate(decisions.episodes.tolist()):
            self.open[episode] = len(self.slots)
            rows = decisions.rows[decisions.starts[k] : ends[k]]
            self.slots.append((rows.copy(), decisions.globals_[k].copy(), episode))

    def add(self, decisions: Decisions, row: Ints, action: Ints, log_p: Floats, keep: Bools) -> None:
        ends = np.append(decisions.starts[1:], len(decisions.rows))
        for k in np.flatnonzero(keep).tolist():
            first, last = int(decisions.starts[k]), int(ends[k])
            episode = int(decisions.episodes[k])
            slot = int(self.open[episode])
            local = int(row[k]) - first if row[k] >= 0 else -1
            job = int(decisions.job[row[k]]) if row[k] >= 0 else -1
            self.waiting.setdefault(slot, []).append(len(self.taken))
            self.taken.append(
                (
                    decisions.rows[first:last].copy(),
                    decisions.allowed[first:last].copy(),
                    decisions.globals_[k].copy(),
                    local,
                    int(action[k]),
                    float(log_p[k]),
                    slot,
                    job,
                )
            )
            self.own.append(0.0)

    def close_slots(self, episodes: Ints, ended: Bools, present: Floats, progress: Floats, trained: Floats) -> None:
        for k in np.flatnonzero(ended).tolist():
            episode = int(episodes[k])
            slot = int(self.open[episode])
            self.present[slot], self.progress[slot] = float(present[k]), float(progress[k])
            for index in self.waiting.pop(slot, []):
                job = self.taken[index][7]
                self.own[index] = float(trained[episode, job]) if job >= 0 else 0.0

    def finish(self) -> tuple[Samples, Slots]:
        taken = self.taken
        lengths = np.array([len(item[0]) for item in taken], np.int64)
        samples = Samples(
            rows=np.concatenate([item[0] for item in taken]),
            allowed=np.concatenate([item[1] for item in taken]),
            starts=np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64),
            globals_=np.stack([item[2] for item in taken]),
            chosen_row=np.array([item[3] for item in taken], np.int64),
            action=np.array([item[4] for item in taken], np.int64),
            log_p=np.array([item[5] for item in taken]),
            slot=np.array([item[6] for item in taken], np.int64),
            own_progress=np.array(self.own),
        )
        episode = np.array([item[2] for item in self.slots], np.int64)
        order = np.lexsort((np.arange(len(episode)), episode))
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        samples.slot = place[samples.slot]
        ordered = [self.slots[k] for k in order.tolist()]
        sizes = np.array([len(item[0]) for item in ordered], np.int64)
        sorted_episode = episode[order]
        slots = Slots(
            rows=np.concatenate([item[0] for item in ordered]),
            starts=np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64),
            globals_=np.stack([item[1] for item in ordered]),
            present=np.array([self.present[int(k)] for k in order]),
            progress=np.array([self.progress[int(k)] for k in order]),
            episode=sorted_episode,
            last=np.append(sorted_episode[1:] != sorted_episode[:-1], True),
        )
        return samples, slots


def advantages(reward: Floats, value: Floats, last: Bools, discount: float, decay: float) -> tuple[Floats, Floats]:
    """Generalised advantage estimation (Schulman et al., ICLR'16) over slots; returns (advantage, return)."""
    advantage = np.zeros(len(reward))
    rewards, values, ends = reward.tolist(), value.tolist(), last.tolist()
    carried = following = 0.0
    for t in range(len(rewards) - 1, -1, -1):
        if ends[t]:
            following = carried = 0.0
        carried = rewards[t] + discount * following - values[t] + discount * decay * carried
        following = values[t]
        advantage[t] = carried
    return advantage, advantage + value


Played = tuple[Samples, Slots, Floats]


def joined(parts: Sequence[Played]) -> Played:
    """Several collections as one, in this order."""
    rows = np.cumsum([0, *[len(samples.rows) for samples, _, _ in parts]])
    slot_rows = np.cumsum([0, *[len(slots.rows) for _, slots, _ in parts]])
    n_slots = np.cumsum([0, *[len(slots) for _, slots, _ in parts]])
    n_episodes = np.cumsum([0, *[len(mean_s) for _, _, mean_s in parts]])

    def cat(name: str, kind: int, shift: Ints | None = None) -> Any:
        values = [getattr(part[kind], name) for part in parts]
        if shift is not None:
            values = [value + by for value, by in zip(values, shift.tolist(), strict=False)]
        return np.concatenate(values)

    samples = Samples(
        cat("rows", 0),
        cat("allowed", 0),
        cat("starts", 0, rows),
        cat("globals_", 0),
        cat("chosen_row", 0),
        cat("action", 0),
        cat("log_p", 0),
        cat("slot", 0, n_slots),
        cat("own_progress", 0),
    )
    slots = Slots(
        cat("rows", 1),
        cat("starts", 1, slot_rows),
        cat("globals_", 1),
        cat("present", 1),
        cat("progress", 1),
        cat("episode", 1, n_episodes),
        cat("last", 1),
    )
    return samples, slots, np.concatenate([mean_s for _, _, mean_s in parts])
