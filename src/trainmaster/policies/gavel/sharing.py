"""Rounds in which two jobs may have the same GPUs: who runs with whom, and how that is brought about.

A pair is one more entry of the round's list, beside its two jobs alone: its priority is its share over what
it has received as a pair, and a job is never taken twice (Gavel, OSDI'20, sections 3.1 and 5).
"""

from __future__ import annotations

import numpy as np
from numba import njit

from trainmaster.model.draft import HALF_MILLI, Draft
from trainmaster.model.job import P
from trainmaster.model.snapshot import Snapshot
from trainmaster.policies.gavel.pair_book import PairBook
from trainmaster.policies.gavel.problem import BoolArray, FloatArray, IntArray
from trainmaster.policies.gavel.round_pass import BY_TYPE, ONLY_POSITIVE


def choose(
    book: PairBook,
    priority: FloatArray,
    pair_priority: FloatArray,
    second: FloatArray,
    third: FloatArray,
    gpus: FloatArray,
    free: FloatArray,
    eligible: BoolArray,
    usable: BoolArray,
    type_order: IntArray,
    job_order: IntArray,
    queueing: int = 0,
    split: bool = True,
) -> tuple[IntArray, IntArray]:
    """The type of each job (-1: none) and the pair it runs in (-1: alone). Uses up `free`.

    Entries go (by type first, if each has a queue) by priority,
    then the second and third key, then type, job, pair. With `split`, pairs for which
    there is room left over are taken apart: both run faster alone, at nobody's expense.
    """
    n, types = priority.shape
    k = len(book)
    first = np.concatenate([np.arange(n), book.rows[:, 0]])
    other = np.concatenate([np.full(n, -1), book.rows[:, 1]])
    order = np.concatenate([job_order, n + np.arange(k)])
    flat = (order[None, :] * types + type_order[:, None]).ravel()
    keys = [
        -np.concatenate([alone, pairs]).ravel()[flat]
        for alone, pairs in ((third, book.share), (second, np.zeros((k, types))), (priority, pair_priority))
    ]
    if queueing & BY_TYPE:
        keys.append(np.repeat(np.arange(types, dtype=np.float64), n + k))
    entries = flat[np.lexsort(keys)]
    can = np.concatenate([usable, pair_priority > 0.0])
    only_positive = bool(queueing & ONLY_POSITIVE)
    chosen = _select(entries, np.concatenate([priority, pair_priority]), can, gpus, free, only_positive, eligible,
                     first, other, split)  # fmt: skip
    kind, pair_of = chosen[:n].copy(), np.full(n, -1, np.int64)
    for pair in np.flatnonzero(chosen[n:] >= 0).tolist():
        kind[book.rows[pair]] = chosen[n + pair]
        pair_of[book.rows[pair]] = pair
    return kind, pair_of


@njit(cache=True)
def _select(entries, priority, usable, gpus, free, only_positive, eligible, first, other, split):
    """Greedy choice down the entries of units (jobs, then pairs): type of each chosen unit, -1 for the others."""
    units, types = priority.shape
    taken = np.zeros(gpus.size, np.bool_)
    chosen = np.full(units, -1, np.int64)
    for at in range(entries.size):
        u = entries[at] // types
        j = entries[at] % types
        a, b = first[u], other[u]
        if taken[a] or not eligible[a] or not usable[u, j] or gpus[a] > free[j]:
            continue
        if b >= 0 and (taken[b] or not eligible[b]):
            continue
        if only_positive and priority[u, j] <= 0.0:
            continue
        chosen[u] = j
        taken[a] = True
        if b >= 0:
            taken[b] = True
        free[j] -= gpus[a]
    if split:
        for u in range(units):
            j = chosen[u]
            if j >= 0 and other[u] >= 0 and gpus[first[u]] <= free[j]:
                free[j] -= gpus[first[u]]
                chosen[u] = -1
                chosen[first[u]] = j
                chosen[other[u]] = j
    return chosen


def speeds_beside(speeds: FloatArray, book: PairBook, chosen: IntArray, pair_of: IntArray) -> FloatArray:
    """Speeds by type, with those of chosen pairs where they run."""
    if not (pair_of >= 0).any():
        return speeds
    speeds = speeds.copy()
    for pair in np.unique(pair_of[pair_of >= 0]).tolist():
        for side, row in enumerate(book.rows[pair].tolist()):
            speeds[row, chosen[row]] = book.speed[pair, chosen[row], side]
    return speeds


def halved(view: Snapshot) -> BoolArray:
    """Jobs that have less of their devices than they asked for, because others have the rest, or had it."""
    jobs = view.jobs
    return np.asarray(jobs.held_gpu_milli < jobs.workers * jobs.worker_gpu_milli)


def take_whole_devices(view: Snapshot, draft: Draft) -> None:
    """Give running jobs whose companion has gone the whole of their devices again."""
    for row in np.flatnonzero(halved(view) & (view.jobs.phase == P.RUNNING)).tolist():
        if draft.allocation(row) is not None:
            draft.reshare(row, int(view.jobs.share_milli[row]))


def assign(
    view: Snapshot, draft: Draft, kind: IntArray, pair_of: IntArray, book: PairBook, rows: BoolArray, order: IntArray
) -> None:
    """Bring the jobs in `rows` to their chosen types and companions; a job that finds no room gets -1.

    Pairs that run together stay. Else the one of a pair that is on the type stays, and the other comes to it.
    """
    held = _Held(view, draft, rows)
    pairs = list(dict.fromkeys(p for p in pair_of[order].tolist() if p >= 0))
    members = {pair: (int(book.rows[pair, 0]), int(book.rows[pair, 1])) for pair in pairs}
    together = [p for p in pairs if held.stay_together(*members[p], int(kind[members[p][0]]))]
    alone = [row for row in order.tolist() if rows[row] and kind[row] >= 0 and pair_of[row] < 0]
    stays = {row for row in alone if held.stay(row, int(kind[row]))}
    stays.update(row for pair in together for row in members[pair])
    host: dict[int, int] = {}
    for pair in pairs:
        if pair not in together:
            staying = next((row for row in members[pair] if held.stay(row, int(kind[row]))), None)
            if staying is not None:
                host[pair] = staying
                stays.add(staying)
    for row in order.tolist():
        if rows[row] and row not in stays and draft.allocation(row) is not None:
            draft.release(row)
    for pair in pairs:
        if pair in host:
            a, b = members[pair]
            guest = b if host[pair] == a else a
            if not draft.place_beside(guest, host[pair]):
                kind[guest] = pair_of[guest] = pair_of[host[pair]] = -1
    take_whole_devices(view, draft)
    for row in order.tolist():
        if not rows[row] or kind[row] < 0 or draft.allocation(row) is not None:
            continue
        pair = int(pair_of[row])
        placed = draft.place(row, accelerator=int(kind[row]))
        if not placed:
            kind[row] = pair_of[row] = -1
        if pair >= 0:
            a, b = members[pair]
            guest = b if row == a else a
            if not placed or not draft.place_beside(guest, row):
                kind[guest] = pair_of[guest] = pair_of[row] = -1


class _Held:
    """Who may stay on the devices that two have now: the first to ask, and its companion."""

    def __init__(self, view: Snapshot, draft: Draft, rows: BoolArray) -> None:
        self.jobs, self.draft, self.rows = view.jobs, draft, rows
        self._claimed: set[tuple[int, int]] = set()

    def _devices(self, row: int, kind: int) -> list[tuple[int, int]] | None:
        """Devices that others may have too; None when the job is not on this type."""
        allocation = self.draft.allocation(row)
        if allocation is None or allocation.accelerator != kind or not self.rows[row]:
            return None
        if allocation.share_milli >= int(self.jobs.share_milli[row]):
            return []
        return [(part.node, device) for part in allocation.parts for device in part.devices]

    def stay(self, row: int, kind: int) -> bool:
        devices = self._devices(row, kind)
        if devices is None or any(device in self._claimed for device in devices):
            return False
        self._claimed.update(devices)
        return True

    def stay_together(self, a: int, b: int, kind: int) -> bool:
        one, two = self.draft.allocation(a), self.draft.allocation(b)
        if one is None or two is None or one.parts != two.parts or one.share_milli != HALF_MILLI:
            return False
        return self._devices(b, kind) is not None and self.stay(a, kind)
