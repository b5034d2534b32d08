"""Dorm's program: counts keep every bound, and the dive loses little against branch and bound."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from support.oracles.admission_instances import PaperLike, paper_like_instance
from trainmaster.policies.oasis import dorm_program
from trainmaster.policies.oasis.dorm_program import Division, divide
from trainmaster.policies.oasis.instance.parsing import parse_instance

THETA1, THETA2 = 0.1, 0.2


def _division(seed: int) -> Division:
    rng = np.random.Generator(np.random.PCG64(seed))
    raw = paper_like_instance(PaperLike(jobs=12, horizon=20, worker_servers=12, ps_servers=8), seed)
    problem = parse_instance(raw, "test")
    jobs, cluster = problem.arrivals(), problem.cluster
    return Division(
        capacity=cluster.capacity,
        hosts=np.array([cluster.hosts_workers, cluster.hosts_ps]),
        worker=np.array([job.worker_demand for job in jobs]),
        ps=np.array([job.server_demand for job in jobs]),
        ps_per_worker=np.array([job.worker_mb_per_slot / job.server_mb_per_slot for job in jobs]),
        now=rng.integers(0, 4, len(jobs)),
        least=np.ones(len(jobs), np.int64),
        most=np.array([min(job.chunks, 12) for job in jobs]),
    )


def _program(d: Division) -> dorm_program.DormProgram:
    return dorm_program._program(d, np.asarray(d.fair().share), THETA1, THETA2)


@pytest.mark.parametrize("seed", range(6))
def test_counts_keep_every_bound(seed: int) -> None:
    d = _division(seed)
    counts = np.array(divide(d, THETA1, THETA2))
    assert ((d.least <= counts) & (counts <= d.most)).all()
    for demand, role, per_worker in ((d.worker, 0, 1.0), (d.ps, 1, d.ps_per_worker)):
        taken = (counts * per_worker) @ demand
        assert (taken <= d.capacity[d.hosts[role]].sum(axis=0) * (1 + 1e-9)).all()
    program = _program(d)
    if dorm_program._dive(program) is not None or dorm_program._branch_and_bound(program) is not None:
        running = (d.now > 0) & (d.now <= d.most)
        assert (running & (counts != d.now)).sum() <= math.ceil(THETA2 * running.sum())
        assert np.abs(program.share * counts - program.fair).sum() <= program.loss_max + 1e-9


def test_points_outside_the_bounds_are_not_taken() -> None:
    """Our own check sees each bound broken, whatever the solver says of a point."""
    program = _program(_division(0))
    counts = dorm_program._dive(program)
    assert counts is not None
    for broken in (
        replace(program, limit=program.limit * 1e-3),
        replace(program, loss_max=-1.0),
        replace(program, most=counts - 1),
        replace(program, least=counts + 1),
        replace(program, now=counts + 1, adjusted_max=0),
    ):
        assert not dorm_program._keeps_bounds(broken, counts)


def test_the_dive_comes_near_to_branch_and_bound() -> None:
    reached = []
    for seed in range(6):
        program = _program(_division(seed))
        counts, best = dorm_program._dive(program), dorm_program._branch_and_bound(program)
        if counts is not None and best is not None:
            reached.append(float(program.worth @ counts) / float(program.worth @ best))
    assert len(reached) >= 3
    assert np.mean(reached) >= 0.95, reached
