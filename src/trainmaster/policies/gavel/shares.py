"""Time shares of the jobs that are present: the snapshot as an allocation problem, solved and written down."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from trainmaster.model.placement import Strategy
from trainmaster.model.snapshot import Snapshot
from trainmaster.model.units import MS_PER_S
from trainmaster.policies.gavel.artifact.tie_breaks import (
    LINEAR,
    finish_time_share,
    linear_share,
    makespan_share,
    spread_over_types,
)
from trainmaster.policies.gavel.objectives import NO_PAIRS, allocate
from trainmaster.policies.gavel.pair_book import PairBook
from trainmaster.policies.gavel.pairing import possible_pairs
from trainmaster.policies.gavel.problem import AllocationProblem, Entity, Pairs, Status
from trainmaster.policies.gavel.round_pass import competitors
from trainmaster.policies.gavel.round_state import RoundState, round_ms, speeds_of

if TYPE_CHECKING:
    from trainmaster.policies.gavel.policy import GavelPolicy

Ints = npt.NDArray[np.int64]

QUEUES = frozenset({"gavel-fifo", "gavel-sjf"})


def compute_shares(policy: GavelPolicy, view: Snapshot, state: RoundState, notes: list[str]) -> None:
    """Solve for the shares of the jobs now present and store them."""
    jobs, cluster = view.jobs, view.cluster
    ints, floats = jobs.columns.ints, jobs.columns.floats
    rows, speeds, gpus, left, elapsed_s, slo_s, remaining = competitors(
        jobs.slots, view.now_ms, view.placement == Strategy.COUNT, ints["arrival"], ints["phase"],
        ints["ask_gpu_milli"], ints["submit_ms"], ints["deadline_ms"], ints["as_of_ms"], ints["productive_ms"],
        floats["work_done"], floats["work_total"], floats["rate"], jobs.columns.allowed, jobs.columns.throughput,
        jobs.columns.throughput_spread, cluster.type_of, cluster.gpus,
    )  # fmt: skip
    slots = jobs.slots[rows]
    state.share[:] = 0.0
    state.known[:] = 1.0
    state.speeds[:] = speeds_of(view)
    state.pairs = PairBook.empty(len(view.cluster.types))
    if len(rows) == 0 or not view.up_gpus_by_type.any():
        return
    if policy.allocation == "gavel-ftf":
        done = np.where(state.isolated_rate > 0, state.remaining_before - remaining, 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            state.isolated_s += np.where(state.isolated_rate > 0, done / state.isolated_rate, 0.0)
    entities, entity_of = _entities(view, rows) if policy.allocation == "gavel-hierarchical" else ((), None)
    problem = AllocationProblem(
        throughput=speeds,
        gpus=gpus,
        counts=view.up_gpus_by_type,
        weight=floats["weight"][slots],
        steps_remaining=left,
        elapsed_s=elapsed_s,
        slo_s=slo_s,
        cost_per_hour=np.nan_to_num(cluster.prices, nan=1.0),
        allowed=jobs.columns.allowed[slots],
        isolated_so_far_s=state.isolated_s[rows] if len(state.isolated_s) else np.zeros(len(rows)),
        type_names=cluster.types,
        entities=entities,
        entity_of=entity_of,
        pairs=_pairs(policy, view, rows, notes),
    )
    if (problem.slo_s <= 0).any():  # an SLO that has passed constrains nothing any more
        problem = _without_past_slos(problem)
    options: dict[str, Any] = {"solver": policy.solver}
    if policy.allocation not in ("allox", "gandiva", "isolated"):  # those know no blind form
        options["aware"] = policy.aware
    if policy.allocation not in NO_PAIRS:
        options["space_sharing"] = problem.pairs is not None
    published = policy.mechanism == "original" and problem.pairs is None
    share = (
        linear_share(problem, policy.allocation, policy.aware) if published and policy.allocation in LINEAR else None
    )
    if share is None:
        # Not from the prices of the last time: that is quicker, but ends at corners that make jobs move more often.
        result = allocate(problem, policy.allocation, options)
        if result.status != Status.OPTIMAL:
            notes.append(f"{policy.allocation}: {result.status.value}: {result.fallback}")
        share = result.share
        state.pairs = PairBook.of_result(view, rows, problem.pairs, result, round_ms(view) / MS_PER_S / 2.0)
        if published and policy.allocation == "gavel-makespan":
            share = makespan_share(problem, policy.aware, result)
        elif published and policy.allocation == "gavel-ftf":
            share = finish_time_share(problem, policy.aware, result)
        elif not (published or policy.aware or policy.allocation in QUEUES) and problem.pairs is None:
            share = spread_over_types(problem, result)
    state.share[rows] = share
    if policy.allocation == "gavel-ftf":
        state.isolated_rate[:] = 0.0
        state.isolated_rate[rows] = (problem.isolated_share * np.where(problem.usable, problem.throughput, 0.0)).sum(
            axis=1
        )
        state.remaining_before[:] = np.nan_to_num(remaining)


def _pairs(policy: GavelPolicy, view: Snapshot, rows: Ints, notes: list[str]) -> Pairs | None:
    if not policy.shares:
        return None
    pairs, known = possible_pairs(view, rows, speeds_of(view))
    if known is False and policy.space_sharing:
        notes.append(f"{policy.allocation}: no speeds of jobs that share GPUs are known; each runs alone")
    return pairs


def _without_past_slos(problem: AllocationProblem) -> AllocationProblem:
    return replace(problem, slo_s=np.where(problem.slo_s > 0, problem.slo_s, np.nan))


def _entities(view: Snapshot, rows: Ints) -> tuple[tuple[Entity, ...], Ints]:
    """Teams from the jobs' entity names; `a/b/c` nests. Weights come from the view (default 1)."""
    names: list[str] = []
    index: dict[str, int] = {}
    made: list[Entity] = []

    def intern(name: str) -> int:
        if name not in index:
            parent = name.rpartition("/")[0]
            above = intern(parent) if parent else None
            index[name] = len(made)
            names.append(name)
            made.append(Entity(name, view.entity_weights.get(name, 1.0), "fairness", above))
        return index[name]

    known = view.jobs.entities
    of = [intern(known[e] or "default") for e in view.jobs.entity[rows].tolist()]
    return tuple(made), np.array(of, np.int64)
