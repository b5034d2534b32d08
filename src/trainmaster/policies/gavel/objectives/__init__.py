"""Allocation objectives by name: one call from a problem and options to time shares X."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from trainmaster.model.errors import InputError
from trainmaster.policies.gavel.objectives.allox import allox
from trainmaster.policies.gavel.objectives.finish_time import finish_time_fairness
from trainmaster.policies.gavel.objectives.max_min import makespan, max_min
from trainmaster.policies.gavel.objectives.queues import fifo, gandiva, isolated, shortest_first
from trainmaster.policies.gavel.objectives.total import (
    throughput_per_cost,
    throughput_per_cost_with_slo,
    total_throughput,
)
from trainmaster.policies.gavel.objectives.water_filling import hierarchical, water_filling
from trainmaster.policies.gavel.pairing import blind_pairs, usable_pairs
from trainmaster.policies.gavel.problem import AllocationProblem, AllocationResult, Pairs
from trainmaster.policies.gavel.solver import SOLVERS

Option = str | bool | float | int
Objective = Callable[[AllocationProblem, bool, Pairs | None, str], AllocationResult]

OBJECTIVES: dict[str, Objective] = {
    "gavel-max-min": max_min,
    "gavel-ftf": finish_time_fairness,
    "gavel-makespan": makespan,
    "gavel-throughput": total_throughput,
    "gavel-cost": throughput_per_cost,
    "gavel-cost-slo": throughput_per_cost_with_slo,
    "gavel-water-filling": water_filling,
    "gavel-hierarchical": hierarchical,
    "gavel-fifo": fifo,
    "gavel-sjf": shortest_first,
    "allox": allox,
    "gandiva": gandiva,
    "isolated": isolated,
}
POLICIES = tuple(OBJECTIVES)
NO_PAIRS = frozenset({"gavel-fifo", "gavel-sjf", "allox", "isolated"})
_EQUAL_TYPES = frozenset({"gavel-max-min", "gavel-water-filling", "gavel-hierarchical"})
"""Their blind form takes every usable type for one step per second."""


def allocate(problem: AllocationProblem, policy: str, options: Mapping[str, Option] | None = None) -> AllocationResult:
    """Time shares of `policy`. Options: `aware` (true), `space_sharing` (false), `solver` (auto)."""
    chosen = dict(options or {})
    aware = _flag(chosen, policy, "aware", True)
    sharing = _flag(chosen, policy, "space_sharing", policy == "gandiva")
    solver = str(chosen.pop("solver", "auto"))
    if policy not in OBJECTIVES:
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
        alone = np.where(problem.usable, 1.0, 0.0) if policy in _EQUAL_TYPES else problem.seen_by(aware=False)
        pairs = blind_pairs(problem, pairs, alone)
    elif pairs is not None:
        pairs = usable_pairs(problem, pairs)
    return OBJECTIVES[policy](problem, aware, pairs, solver)


def _flag(options: dict[str, Option], policy: str, name: str, default: bool) -> bool:
    value = options.pop(name, default)
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise InputError(f"option {name} of {policy} is {value!r}", expected="true or false")
