"""Allocation policies by name: one call from a problem and options to time shares."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from trainmaster.model.errors import InputError
from trainmaster.policies.gavel import allox, filling, finish_time, levels, queues, sums
from trainmaster.policies.gavel.pairing import blind_pairs
from trainmaster.policies.gavel.problem import AllocationProblem, AllocationResult, FloatArray
from trainmaster.policies.gavel.solve import SOLVERS

POLICIES = (
    "gavel-max-min",
    "gavel-ftf",
    "gavel-makespan",
    "gavel-throughput",
    "gavel-cost",
    "gavel-cost-slo",
    "gavel-water-filling",
    "gavel-hierarchical",
    "gavel-fifo",
    "gavel-sjf",
    "allox",
    "gandiva",
    "isolated",
)
NO_PAIRS = frozenset({"gavel-fifo", "gavel-sjf", "allox", "isolated"})
_EQUAL_TYPES = frozenset({"gavel-max-min", "gavel-water-filling", "gavel-hierarchical"})
"""Their blind form takes every usable type for one step per second."""
Option = str | bool | float | int


def allocate(
    problem: AllocationProblem,
    policy: str,
    options: Mapping[str, Option] | None = None,
    warm: FloatArray | None = None,
) -> AllocationResult:
    """Time shares of `policy`. Options: `aware` (true), `space_sharing` (false), `solver` (auto).

    `warm` is `AllocationResult.prices` of an earlier solve by the same policy on the same types: it
    shortens the search and does not change the optimum.
    """
    if warm is not None and warm.shape[1:] != problem.counts.shape:
        warm = None
    chosen = dict(options or {})
    aware = _flag(chosen, policy, "aware", True)
    sharing = _flag(chosen, policy, "space_sharing", policy == "gandiva")
    solver = str(chosen.pop("solver", "auto"))
    if policy not in POLICIES:
        raise InputError(f"unknown allocation policy {policy!r}", expected="one of " + ", ".join(POLICIES))
    if solver not in SOLVERS:
        raise InputError(f"unknown solver {solver!r} for {policy}", expected="one of " + ", ".join(SOLVERS))
    if chosen:
        name = sorted(chosen)[0]
        raise InputError(f"unknown option {name!r} for {policy}", expected="aware, space_sharing or solver")
    if sharing and policy in NO_PAIRS:
        raise InputError(f"{policy} cannot share GPUs", remedy="Leave out space_sharing")
    pairs = problem.pairs if sharing else None
    if pairs is not None and not aware:
        blind = np.where(problem.usable, 1.0, 0.0) if policy in _EQUAL_TYPES else levels.reference_throughput(problem)
        pairs = blind_pairs(problem, pairs, blind)
    match policy:
        case "gavel-max-min":
            return levels.max_min(problem, aware, pairs, solver, warm)
        case "gavel-ftf":
            return finish_time.finish_time_fairness(problem, aware, pairs, solver, warm)
        case "gavel-makespan":
            return levels.makespan(problem, aware, pairs, solver, warm)
        case "gavel-throughput":
            return sums.total_throughput(problem, aware, pairs, solver, warm)
        case "gavel-cost":
            return sums.throughput_per_cost(problem, aware, pairs, solver, warm)
        case "gavel-cost-slo":
            return sums.throughput_per_cost_with_slo(problem, aware, pairs, solver, warm)
        case "gavel-water-filling":
            return filling.water_filling(problem, aware, pairs, solver, hierarchical=False)
        case "gavel-hierarchical":
            return filling.water_filling(problem, aware, pairs, solver, hierarchical=True)
        case "gavel-fifo":
            return queues.fifo(problem, aware)
        case "gavel-sjf":
            return queues.shortest_first(problem, aware)
        case "allox":
            return allox.allox(problem)
        case "gandiva":
            return queues.gandiva(problem, pairs)
        case _:
            return queues.isolated(problem)


def _flag(options: dict[str, Option], policy: str, name: str, default: bool) -> bool:
    value = options.pop(name, default)
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise InputError(f"option {name} of {policy} is {value!r}", expected="true or false")
