"""Which jobs could share their GPUs: pairs of equal gangs that get more done together than by turns."""

from __future__ import annotations

import numpy as np

from trainmaster.model.snapshot import Snapshot
from trainmaster.model.units import GPU_MILLI
from trainmaster.policies.gavel.problem import AllocationProblem, BoolArray, FloatArray, IntArray, Pairs

PAIRS_MAX = 150_000
"""More than this are not offered to the solver; those that gain most are."""
GAIN_MIN = 1.0 + 1e-9
"""A pair that keeps a and b of its jobs' speeds, a + b <= 1, is no better than taking turns: running the one
alone for a part a of the time and the other for b takes no more GPU time and no more of either job's time."""


def possible_pairs(view: Snapshot, rows: IntArray, throughput: FloatArray) -> tuple[Pairs | None, bool | None]:
    """Pairs among the jobs in `rows` (numbered by their position there, as in `throughput`), and whether any speeds are
    known (None: no two jobs could be a pair).

    Jobs of one model, size and speed are alike: the estimator is asked once for each two kinds.
    """
    if view.pair_source is None:
        return None, False if len(rows) > 1 else None
    kinds = _kinds(view, rows, throughput)
    known: bool | None = None
    found: list[tuple[float, IntArray, IntArray, FloatArray]] = []
    for same_size in kinds.values():
        for p, members_p in enumerate(same_size):
            for q in range(p, len(same_size)):
                members_q = same_size[q]
                if p == q and len(members_p) < 2:
                    continue
                pair = view.pair_speeds(int(rows[members_p[0]]), int(rows[members_q[0]]))
                known = known or pair is not None
                if pair is None:
                    continue
                gain = _gain(pair, throughput[members_p[0]], throughput[members_q[0]])
                worth = gain > GAIN_MIN
                if worth.any():
                    first, second = _combinations(members_p, members_q, p == q)
                    found.append((float(gain.max()), first, second, np.where(worth[:, None], pair, 0.0)))
    if not found:
        return None, known
    return _collected(found), known


def _kinds(view: Snapshot, rows: IntArray, throughput: FloatArray) -> dict[tuple[int, int], list[IntArray]]:
    """Positions in `rows` of jobs that are alike, by gang size. Only preemptible gangs of whole GPUs share."""
    jobs = view.jobs
    able = (
        (jobs.share_milli == GPU_MILLI)
        & (jobs.devices_each > 0)
        & (jobs.servers_ask == 0)
        & (jobs.preemptible > 0)
        & (jobs.workers_ask == jobs.workers_ref)
    )
    members: dict[tuple[int, int], dict[tuple[str, int | None, bytes], list[int]]] = {}
    for position, row in enumerate(rows.tolist()):
        if able[row]:
            spec = jobs.spec(row)
            size = (int(jobs.workers_ask[row]), int(jobs.devices_each[row]))
            alike = members.setdefault(size, {})
            alike.setdefault((spec.model, spec.batch_size, throughput[position].tobytes()), []).append(position)
    return {size: [np.array(m, np.int64) for m in alike.values()] for size, alike in members.items()}


def _gain(pair: FloatArray, alone_a: FloatArray, alone_b: FloatArray) -> FloatArray:
    """Sum of the parts of their speeds that both keep, by type; 0 where one of them cannot run."""
    both = (pair > 0.0).all(axis=1) & (alone_a > 0.0) & (alone_b > 0.0)
    kept = pair[:, 0] / np.where(both, alone_a, 1.0) + pair[:, 1] / np.where(both, alone_b, 1.0)
    return np.where(both, kept, 0.0)


def _combinations(members_p: IntArray, members_q: IntArray, same: bool) -> tuple[IntArray, IntArray]:
    if same:
        first, second = np.triu_indices(len(members_p), 1)
        return members_p[first], members_p[second]
    return np.repeat(members_p, len(members_q)), np.tile(members_q, len(members_p))


def _collected(found: list[tuple[float, IntArray, IntArray, FloatArray]]) -> Pairs:
    total = sum(len(item[1]) for item in found)
    if total > PAIRS_MAX:
        best_first = sorted(range(len(found)), key=lambda k: (-found[k][0], k))
        kept, count = [], 0
        for k in best_first:
            if kept and count + len(found[k][1]) > PAIRS_MAX:
                break
            kept.append(k)
            count += len(found[k][1])
        found = [found[k] for k in sorted(kept)]
    jobs = np.concatenate([np.stack([first, second], axis=1) for _, first, second, _ in found])
    speed = np.concatenate([np.broadcast_to(pair, (len(first), *pair.shape)) for _, first, _, pair in found])
    return Pairs(jobs, np.ascontiguousarray(speed))


def blind_pairs(problem: AllocationProblem, pairs: Pairs, alone: FloatArray) -> Pairs:
    """Pairs as a policy sees them that is blind to types: on every type on which the pair works, each job keeps
    the part of its (blind) speed `alone` that it keeps on average over those types."""
    first, second = pairs.jobs[:, 0], pairs.jobs[:, 1]
    works: BoolArray = (pairs.throughput > 0.0).all(axis=2) & problem.usable[first] & problem.usable[second]
    count = np.maximum(works.sum(axis=1), 1)
    speed = np.zeros_like(pairs.throughput)
    for side, job in enumerate((first, second)):
        true_alone = np.where(works, problem.throughput[job], 1.0)
        kept = np.where(works, pairs.throughput[:, :, side] / true_alone, 0.0).sum(axis=1) / count
        speed[:, :, side] = np.where(works, alone[job] * kept[:, None], 0.0)
    return Pairs(pairs.jobs, speed)


def usable_pairs(problem: AllocationProblem, pairs: Pairs) -> Pairs:
    """Pairs with no speed on types that one of their jobs cannot use."""
    usable = problem.usable[pairs.jobs[:, 0]] & problem.usable[pairs.jobs[:, 1]]
    return Pairs(pairs.jobs, np.where(usable[:, :, None], pairs.throughput, 0.0))
