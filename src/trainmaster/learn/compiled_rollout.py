"""Whole episodes of the shared network in one compiled loop: some ten times as fast as inference by inference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from trainmaster.learn import slot_kernels as kernels
from trainmaster.learn.rollout import BAD_RATIO, Samples, Slots, joined
from trainmaster.learn.sizing_trace import SizingTrace
from trainmaster.learn.slot_batch import SlotBatch
from trainmaster.policies.dl2.features import N_GLOBAL, N_JOB
from trainmaster.policies.dl2.incremental import changed, empty_terms, pack, score
from trainmaster.policies.dl2.network import ScoringNetwork

Floats = npt.NDArray[np.float64]
MAX_SLOTS = 20_000


def play_compiled(traces: Sequence[SizingTrace], network: ScoringNetwork, floor: bool = True) -> Floats:
    """Mean completion time on each trace when the best action is always taken."""
    _, _, mean_s = _run(traces, network, np.random.Generator(np.random.PCG64(0)), True, 0.0, 0.0, floor)
    return mean_s


def collect_compiled(
    traces: Sequence[SizingTrace], network: ScoringNetwork, rng: np.random.Generator, kept: float,
    exploration: float = 0.0, floor: bool = True,
) -> tuple[Samples, Slots, Floats]:  # fmt: skip
    """As `rollout.collect`."""
    samples, slots, mean_s = _run(traces, network, rng, False, kept, exploration, floor)
    assert samples is not None
    assert slots is not None
    return samples, slots, mean_s


def _run(
    traces: Sequence[SizingTrace], network: ScoringNetwork, rng: np.random.Generator, greedy: bool, kept: float,
    exploration: float, floor: bool,
) -> tuple[Samples | None, Slots | None, Floats]:  # fmt: skip
    batch = SlotBatch(traces, floor)
    packed = pack(network)
    parts: list[tuple[Samples, Slots]] = []
    for b in range(len(traces)):
        width = int(batch.state.n_jobs[b])
        terms = empty_terms(width, packed)
        out = _episode(b, batch.state, packed, terms, floor, greedy, kept, exploration, rng)
        if not greedy:
            parts.append(_laid_out(out))
    batch.alive = batch.alive[:0]
    mean_s = batch.mean_completion_s()
    if greedy:
        return None, None, mean_s
    return joined([(samples, slots, mean_s[k : k + 1]) for k, (samples, slots) in enumerate(parts)])


@njit(cache=True)
def _grown(array, needed):
    if needed <= array.shape[0]:
        return array
    bigger = np.zeros((max(needed, 2 * array.shape[0]), array.shape[1]), array.dtype)
    bigger[: array.shape[0]] = array
    return bigger


@njit(cache=True)
def _episode(b, s, q, t, floor, greedy, kept, exploration, rng):
    """One episode. Records slots (s_*) and a part of the decisions (d_*); see `Samples` and `Slots`."""
    n_jobs = s.n_jobs[b]
    scores = np.zeros((n_jobs, 3), np.float32)
    globals_ = np.zeros(N_GLOBAL, np.float32)
    s_rows, s_globals = np.zeros((1024, N_JOB), np.float32), np.zeros((256, N_GLOBAL), np.float32)
    s_numbers = np.zeros((256, 3))  # rows, present, progress
    d_rows, d_globals = np.zeros((1024, N_JOB), np.float32), np.zeros((256, N_GLOBAL), np.float32)
    d_allowed = np.zeros((1024, 3), np.bool_)
    d_numbers = np.zeros((256, 6))  # rows, chosen row, action, log p, slot, own progress
    n_s = n_srow = n_d = n_drow = 0
    alive = s.n_rows[b] > 0
    while alive and n_s < MAX_SLOTS:
        n = s.n_rows[b]
        t.sum_h[:] = 0.0
        for i in range(n):
            changed(s.rows[b, i], s.features[b, s.rows[b, i]], q, t, True)
        first_decision = n_d
        if not greedy:
            s_rows = _grown(s_rows, n_srow + n)
            s_globals, s_numbers = _grown(s_globals, n_s + 1), _grown(s_numbers, n_s + 1)
            for i in range(n):
                s_rows[n_srow + i] = s.features[b, s.rows[b, i]]
            kernels.write_globals(b, s, s_globals[n_s])
            s_numbers[n_s, 0] = n
            n_srow += n
        while kernels.any_legal(b, s, floor):
            kernels.write_globals(b, s, globals_)
            void = score(n, globals_, q, t, s.rows[b], scores)
            best, row, action = np.float32(-np.inf), -1, -1
            for i in range(n):
                for a in range(3):
                    if kernels.legal(b, s.rows[b, i], a, s, floor):
                        if scores[i, a] > best:
                            best, row, action = scores[i, a], i, a
                    else:
                        scores[i, a] = -np.inf
            top = max(best, void)
            total = np.exp(np.float64(void - top))
            for i in range(n):
                for a in range(3):
                    total += np.exp(np.float64(scores[i, a] - top))
            if greedy:
                if np.exp(np.float64(void - top)) > 0.5 * total:
                    row, action = -1, -1
            else:
                target = rng.random() * total
                seen = np.exp(np.float64(void - top))
                row, action = -1, -1
                if seen <= target:
                    for i in range(n):
                        for a in range(3):
                            chance = np.exp(np.float64(scores[i, a] - top))
                            if chance > 0.0 and seen <= target:
                                seen += chance
                                row, action = i, a
                if exploration > 0.0 and rng.random() < exploration:
                    for i in range(n):
                        j = s.rows[b, i]
                        w, p = s.workers[b, j], s.servers[b, j]
                        if w > 0 and w >= BAD_RATIO * p and scores[i, 1] > -np.inf:
                            row, action = i, 1
                            break
                        if p > 0 and p >= BAD_RATIO * w and scores[i, 0] > -np.inf:
                            row, action = i, 0
                            break
                if rng.random() < kept:
                    d_rows = _grown(d_rows, n_drow + n)
                    d_allowed = _grown(d_allowed, n_drow + n)
                    d_globals, d_numbers = _grown(d_globals, n_d + 1), _grown(d_numbers, n_d + 1)
                    for i in range(n):
                        d_rows[n_drow + i] = s.features[b, s.rows[b, i]]
                        for a in range(3):
                            d_allowed[n_drow + i, a] = scores[i, a] > -np.inf
                    d_globals[n_d] = globals_
                    chosen = void if row < 0 else scores[row, action]
                    d_numbers[n_d, 0], d_numbers[n_d, 1], d_numbers[n_d, 2] = n, row, action
                    d_numbers[n_d, 3] = np.float64(chosen - top) - np.log(total)
                    d_numbers[n_d, 4] = n_s
                    n_drow += n
                    n_d += 1
            if row < 0:
                break
            j = s.rows[b, row]
            kernels.grant(b, j, action, s)
            changed(j, s.features[b, j], q, t, False)
        rows_now = s.rows[b, :n].copy()
        present, progress = kernels.end_slot(b, s)
        if not greedy:
            s_numbers[n_s, 1], s_numbers[n_s, 2] = present, progress
            for k in range(first_decision, n_d):
                if d_numbers[k, 1] >= 0:
                    d_numbers[k, 5] = s.trained[b, rows_now[np.int64(d_numbers[k, 1])]]
        n_s += 1
        alive = kernels.begin_slot(b, s, floor)
    return (
        s_rows[:n_srow], s_globals[:n_s], s_numbers[:n_s], d_rows[:n_drow], d_allowed[:n_drow], d_globals[:n_d],
        d_numbers[:n_d],
    )  # fmt: skip


def _starts(lengths: Floats) -> npt.NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64)


def _laid_out(out: Any) -> tuple[Samples, Slots]:
    s_rows, s_globals, s_numbers, d_rows, d_allowed, d_globals, d_numbers = out
    samples = Samples(
        d_rows, d_allowed, _starts(d_numbers[:, 0]), d_globals, d_numbers[:, 1].astype(np.int64),
        d_numbers[:, 2].astype(np.int64), d_numbers[:, 3].copy(), d_numbers[:, 4].astype(np.int64),
        d_numbers[:, 5].copy(),
    )  # fmt: skip
    last = np.zeros(len(s_numbers), np.bool_)
    last[-1:] = True
    slots = Slots(
        s_rows, _starts(s_numbers[:, 0]), s_globals, s_numbers[:, 1].copy(), s_numbers[:, 2].copy(),
        np.zeros(len(s_numbers), np.int64), last,
    )  # fmt: skip
    return samples, slots
