"""Whole episodes of the shared network in one compiled loop: some ten times as fast as inference by inference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from trainmaster.core.arrays import Floats
from trainmaster.learn.dl2.episode import Episode
from trainmaster.learn.dl2.rollout import Samples, Slots, joined
from trainmaster.learn.sizing.batch import SlotBatch
from trainmaster.learn.sizing.trace import SizingTrace
from trainmaster.policies.dl2.incremental import IncrementalNetwork
from trainmaster.policies.dl2.network import ScoringNetwork


def play_compiled(traces: Sequence[SizingTrace], network: ScoringNetwork, floor: bool = True) -> Floats:
    """Mean completion time on each trace when the best action is always taken."""
    _, _, mean_s = _run(traces, network, np.random.Generator(np.random.PCG64(0)), True, 0.0, 0.0, floor)
    return mean_s


def collect_compiled(
    traces: Sequence[SizingTrace],
    network: ScoringNetwork,
    rng: np.random.Generator,
    kept: float,
    exploration: float = 0.0,
    floor: bool = True,
) -> tuple[Samples, Slots, Floats]:
    """As `rollout.collect`."""
    samples, slots, mean_s = _run(traces, network, rng, False, kept, exploration, floor)
    assert samples is not None
    assert slots is not None
    return samples, slots, mean_s


def _run(
    traces: Sequence[SizingTrace],
    network: ScoringNetwork,
    rng: np.random.Generator,
    greedy: bool,
    kept: float,
    exploration: float,
    floor: bool,
) -> tuple[Samples | None, Slots | None, Floats]:
    batch = SlotBatch(traces, floor)
    parts: list[tuple[Samples, Slots]] = []
    for b in range(len(traces)):
        incremental = IncrementalNetwork(network.weights, int(batch.state.n_jobs[b]))
        episode = Episode(batch.world, incremental, b, batch.state, greedy, kept, exploration)
        episode.play(rng)
        if not greedy:
            parts.append(_laid_out(episode.records()))
    batch.alive = batch.alive[:0]
    mean_s = batch.mean_completion_s()
    if greedy:
        return None, None, mean_s
    return joined([(samples, slots, mean_s[k : k + 1]) for k, (samples, slots) in enumerate(parts)])


def _starts(lengths: Floats) -> npt.NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64)


def _laid_out(out: Any) -> tuple[Samples, Slots]:
    s_rows, s_globals, s_numbers, d_rows, d_allowed, d_globals, d_numbers = out
    samples = Samples(
        d_rows,
        d_allowed,
        _starts(d_numbers[:, 0]),
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
        _starts(s_numbers[:, 0]),
        s_globals,
        s_numbers[:, 1].copy(),
        s_numbers[:, 2].copy(),
        np.zeros(len(s_numbers), np.int64),
        last,
    )
    return samples, slots
