"""Dorm's program: counts keep every bound, and the dive loses little against branch and bound."""

from __future__ import annotations

import math

import numpy as np
import pytest

from support.admission_instances import PaperLike, paper_like_instance
from trainmaster.policies.oasis import dorm_program
from trainmaster.policies.oasis.dorm_program import Share, dorm_counts
from trainmaster.policies.oasis.parsing import parse_instance

THETA1, THETA2 = 0.1, 0.2


def _shares(seed: int) -> tuple[list[Share], dorm_program.Cluster]:
    rng = np.random.Generator(np.random.PCG64(seed))
    raw = paper_like_instance(PaperLike(jobs=12, horizon=20, worker_servers=12, ps_servers=8), seed)
    problem = parse_instance(raw, "test")
    shares = [Share(job, int(rng.integers(0, 4)), 1, min(job.chunks, 12), 0.05) for job in problem.arrivals()]
    return shares, problem.cluster


@pytest.mark.parametrize("seed", range(6))
def test_counts_keep_every_bound(seed: int) -> None:
    shares, cluster = _shares(seed)
    counts = dorm_counts(shares, cluster, THETA1, THETA2)
    if counts is None:
        assert dorm_program._branch_and_bound(dorm_program._program(shares, cluster, THETA1, THETA2)) is None
        return
    assert all(s.least <= n <= s.most for s, n in zip(shares, counts, strict=True))
    adjusted = [s.now != n for s, n in zip(shares, counts, strict=True) if s.now]
    assert sum(adjusted) <= math.ceil(THETA2 * len(adjusted))
    for r in range(len(cluster.resources)):
        taken = sum(n * s.job.worker_demand[r] for s, n in zip(shares, counts, strict=True))
        assert taken <= cluster.capacity[cluster.hosts_workers, r].sum() * (1 + 1e-9)


def test_the_dive_comes_near_to_branch_and_bound() -> None:
    reached, dived = [], 0
    for seed in range(6):
        program = dorm_program._program(*_shares(seed), THETA1, THETA2)
        counts, best = dorm_program._dive(program), dorm_program._branch_and_bound(program)
        if counts is not None and best is not None:
            dived += 1
            reached.append(float(program.worth @ np.array(counts)) / float(program.worth @ np.array(best)))
    assert dived >= 3
    assert np.mean(reached) >= 0.95, reached
