"""Episodes played by a network: what was seen, chosen and gained, in flat arrays. Those of the shared network are one
compiled loop, some ten times as fast as inference by inference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol

import numpy as np

from trainmaster.core.arrays import Bools, Floats, Ints, Singles
from trainmaster.learn.advantage import generalised_advantage
from trainmaster.learn.dl2.episode import Episode
from trainmaster.learn.sizing.batch import SlotBatch
from trainmaster.learn.sizing.trace import SizingTrace
from trainmaster.policies.dl2.incremental import IncrementalNetwork
from trainmaster.policies.dl2.network import ScoringNetwork


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
    return _episodes(traces, scorer, np.random.Generator(np.random.PCG64(0)), True, 0.0, 0.0, floor)[1]


def collect(
    traces: Sequence[SizingTrace],
    scorer: Scorer,
    rng: np.random.Generator,
    kept: float,
    exploration: float = 0.0,
    floor: bool = True,
) -> tuple[Samples, Slots, Floats]:
    """Sampled episodes: a part of their decisions, all of their slots, mean completion times."""
    episodes, mean_s = _episodes(traces, scorer, rng, False, kept, exploration, floor)
    return joined([(*_laid_out(episode.records()), mean_s[k : k + 1]) for k, episode in enumerate(episodes)])


def _episodes(
    traces: Sequence[SizingTrace],
    scorer: Scorer,
    rng: np.random.Generator,
    greedy: bool,
    kept: float,
    exploration: float,
    floor: bool,
) -> tuple[list[Episode], Floats]:
    batch, episodes = SlotBatch(traces, floor), []
    for b in range(len(traces)):
        network = None
        if isinstance(scorer, ScoringNetwork):
            network = IncrementalNetwork(scorer.weights, int(batch.state.n_jobs[b]))
        episodes.append(Episode(batch.world, network, scorer, b, batch.state, greedy, kept, exploration))
        episodes[-1].play(rng)
    return episodes, batch.mean_completion_s()


def starts_of(lengths: Floats | Ints) -> Ints:
    """Where each part begins of parts laid one behind the other."""
    return np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64)


def _laid_out(out: Any) -> tuple[Samples, Slots]:
    s_rows, s_globals, s_numbers, d_rows, d_allowed, d_globals, d_numbers = out
    samples = Samples(
        d_rows,
        d_allowed,
        starts_of(d_numbers[:, 0]),
        d_globals,
        d_numbers[:, 1].astype(np.int64),
        d_numbers[:, 2].astype(np.int64),
        d_numbers[:, 3].copy(),
        d_numbers[:, 4].astype(np.int64),
        d_numbers[:, 5].copy(),
    )
    last = np.zeros(len(s_numbers), np.bool_)
    last[-1:] = True
    slots = Slots(
        s_rows,
        starts_of(s_numbers[:, 0]),
        s_globals,
        s_numbers[:, 1].copy(),
        s_numbers[:, 2].copy(),
        np.zeros(len(s_numbers), np.int64),
        last,
    )
    return samples, slots


def advantages(reward: Floats, value: Floats, last: Bools, discount: float, decay: float) -> tuple[Floats, Floats]:
    """Generalised advantage estimation over slots; returns (advantage, return)."""
    advantage = generalised_advantage(reward, value, np.where(last, 0.0, discount), decay)
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

    shift = {"starts": rows, "slot": n_slots}
    samples = Samples(**{part.name: cat(part.name, 0, shift.get(part.name)) for part in fields(Samples)})
    shift = {"starts": slot_rows, "episode": n_episodes}
    slots = Slots(**{part.name: cat(part.name, 1, shift.get(part.name)) for part in fields(Slots)})
    return samples, slots, np.concatenate([mean_s for _, _, mean_s in parts])


def take(samples: Samples, picked: Ints) -> tuple[Samples, Ints]:
    """Some decisions with their rows; also which rows those were."""
    ends = np.append(samples.starts[1:], len(samples.rows))
    lengths = (ends - samples.starts)[picked]
    starts = starts_of(lengths)
    rows = np.repeat(samples.starts[picked] - starts, lengths) + np.arange(int(lengths.sum()))
    by_row = {"rows": samples.rows[rows], "allowed": samples.allowed[rows], "starts": starts}
    others = {name: value[picked] for name, value in vars(samples).items() if name not in by_row}
    return Samples(**by_row, **others), rows
