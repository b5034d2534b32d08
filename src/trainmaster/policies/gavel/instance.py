"""Allocation instances: the JSON of `trainmaster solve`, checked, solved and rendered."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from trainmaster.model.errors import InputError
from trainmaster.model.foreign import is_finite
from trainmaster.policies.gavel.objectives import Option, allocate
from trainmaster.policies.gavel.problem import (
    TEAM_POLICIES,
    AllocationProblem,
    AllocationResult,
    Entity,
    Pairs,
    Status,
    make_problem,
)


class _Reader:
    """Reads values out of the JSON and names the path of whatever is wrong."""

    def __init__(self, source: str) -> None:
        self.source = source

    def fail(self, path: str, what: str, expected: str, remedy: str = "") -> InputError:
        return InputError(what, expected, remedy, file=self.source or None, column=path)

    def mapping(self, value: Any, path: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self.fail(path, f"is {_short(value)}", "an object")
        return value

    def rows(self, value: Any, path: str) -> list[Any]:
        if not isinstance(value, list):
            raise self.fail(path, f"is {_short(value)}", "a list")
        return value

    def number(
        self,
        value: Any,
        path: str,
        *,
        above: float | None = None,
        at_least: float | None = None,
        what: str = "a number",
    ) -> float:
        if not is_finite(value):
            raise self.fail(path, f"is {_short(value)}", what)
        if above is not None and not value > above:
            raise self.fail(path, f"is {value:g}", f"{what} above {above:g}")
        if at_least is not None and value < at_least:
            raise self.fail(path, f"is {value:g}", f"{what} of at least {at_least:g}")
        return float(value)

    def whole(self, value: Any, path: str, at_least: int) -> float:
        gpus = self.number(value, path, at_least=at_least, what="a whole number of GPUs")
        if gpus != int(gpus):
            raise self.fail(path, f"is {gpus:g}", "a whole number of GPUs")
        return gpus

    def one_of(self, name: str, types: list[str], path: str) -> int:
        if name not in types:
            raise self.fail(path, "is an unknown accelerator type", "one of " + ", ".join(types))
        return types.index(name)

    def name(self, value: Any, path: str) -> str:
        if not isinstance(value, str | int) or isinstance(value, bool) or value == "":
            raise self.fail(path, f"is {_short(value)}", "a non-empty name")
        return str(value)

    def known(self, row: Mapping[str, Any], allowed: tuple[str, ...], path: str) -> None:
        for key in row:
            if key not in allowed:
                raise self.fail(f"{path}.{key}", "is not a known key", "one of " + ", ".join(allowed))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


_NUMBERS: dict[str, tuple[float, dict[str, Any]]] = {
    "weight": (1, {"above": 0}), "steps_remaining": (1, {"above": 0}),
    "elapsed_s": (0, {"at_least": 0}), "isolated_so_far_s": (0, {"at_least": 0}),
}  # fmt: skip
"""What may be said of a job in numbers: the default and the bounds."""


def read_instance(instance: Any, source: str = "") -> tuple[AllocationProblem, list[str]]:
    """Check an allocation instance; returns the problem and the job ids in its order."""
    read = _Reader(source)
    top = read.mapping(instance, "$")
    if top.get("kind", "allocation") != "allocation":
        raise read.fail("kind", f"is {_short(top['kind'])}", "'allocation' for this policy")
    read.known(top, ("kind", "accelerators", "jobs", "pairs", "entities", "name", "comment"), "$")
    types, counts, costs = _read_accelerators(read, top.get("accelerators"))
    entities, entity_index = _read_entities(read, top.get("entities"))
    rows = read.rows(top.get("jobs"), "jobs")
    ids: list[str] = []
    index: dict[str, int] = {}
    columns: dict[str, list[float]] = {name: [] for name in ("gpus", "slo_s", *_NUMBERS)}
    throughput = np.zeros((len(rows), len(types)))
    allowed = np.zeros((len(rows), len(types)), dtype=bool)
    home = np.full(len(rows), -1, dtype=np.int64)
    for m, row in enumerate(rows):
        path = f"jobs[{m}]"
        job = read.mapping(row, path)
        read.known(job, ("id", "throughput", "entity", *columns), path)
        if "id" not in job:
            raise read.fail(f"{path}.id", "is missing", "a name for the job")
        job_id = read.name(job["id"], f"{path}.id")
        if job_id in index:
            what = f"is {job_id!r} again (first at jobs[{index[job_id]}])"
            raise read.fail(f"{path}.id", what, "ids without repeats")
        index[job_id] = m
        ids.append(job_id)
        columns["gpus"].append(read.whole(job.get("gpus", 1), f"{path}.gpus", 1))
        for name, (default, bounds) in _NUMBERS.items():
            columns[name].append(read.number(job.get(name, default), f"{path}.{name}", **bounds))
        slo = job.get("slo_s")
        columns["slo_s"].append(math.nan if slo is None else read.number(slo, f"{path}.slo_s", above=0))
        if "throughput" not in job:
            raise read.fail(f"{path}.throughput", "is missing", "steps per second on each type", "Add a speed per type")
        _read_speeds(read, job["throughput"], f"{path}.throughput", types, throughput[m], allowed[m])
        entity = job.get("entity")
        if entity is not None:
            name = read.name(entity, f"{path}.entity")
            if name not in entity_index:
                raise read.fail(f"{path}.entity", f"is {name!r}, which is not defined", "an id of entities")
            home[m] = entity_index[name]
    pairs = _read_pairs(read, top.get("pairs"), index, types, np.array(columns["gpus"]))
    problem = make_problem(
        throughput,
        counts,
        cost_per_hour=costs,
        allowed=allowed,
        type_names=tuple(types),
        pairs=pairs,
        entities=entities,
        entity_of=home,
        **columns,
    )
    return problem, ids


def _read_accelerators(read: _Reader, value: Any) -> tuple[list[str], list[float], list[float]]:
    table = read.mapping(value, "accelerators")
    if not table:
        raise read.fail("accelerators", "is empty", "at least one accelerator type")
    counts: list[float] = []
    costs: list[float] = []
    for name in table:
        path = f"accelerators.{name}"
        row = read.mapping(table[name], path)
        read.known(row, ("count", "cost_per_hour"), path)
        counts.append(read.whole(row.get("count"), f"{path}.count", 0))
        costs.append(read.number(row.get("cost_per_hour", 1.0), f"{path}.cost_per_hour", above=0))
    if sum(counts) <= 0:
        raise read.fail("accelerators", "have no GPUs at all", "at least one GPU")
    return list(table), counts, costs


def _read_speeds(read: _Reader, value: Any, path: str, types: list[str], speeds: Any, allowed: Any) -> None:
    """Types that are left out may not be used; a speed of 0 says the job does not run there."""
    table = read.mapping(value, path)
    if not table:
        raise read.fail(path, "is empty", "steps per second on at least one type")
    for name, speed in table.items():
        j = read.one_of(name, types, f"{path}.{name}")
        speeds[j] = read.number(speed, f"{path}.{name}", at_least=0, what="steps per second")
        allowed[j] = True
    if not np.any(speeds > 0):
        raise read.fail(path, "is 0 on every type", "a type on which the job makes progress")


def _read_entities(read: _Reader, value: Any) -> tuple[tuple[Entity, ...], dict[str, int]]:
    rows = [] if value is None else read.rows(value, "entities")
    index: dict[str, int] = {}
    parsed: list[tuple[str, float, str, str | None]] = []
    for k, row in enumerate(rows):
        path = f"entities[{k}]"
        entity = read.mapping(row, path)
        read.known(entity, ("id", "weight", "policy", "parent"), path)
        name = read.name(entity.get("id"), f"{path}.id")
        if name in index:
            raise read.fail(f"{path}.id", f"is {name!r} again", "ids without repeats")
        index[name] = k
        policy = entity.get("policy", "fairness")
        if policy not in TEAM_POLICIES:
            raise read.fail(f"{path}.policy", f"is {_short(policy)}", "fairness or fifo")
        parent = entity.get("parent")
        parsed.append(
            (
                name,
                read.number(entity.get("weight", 1), f"{path}.weight", above=0),
                policy,
                None if parent is None else read.name(parent, f"{path}.parent"),
            )
        )
    entities: list[Entity] = []
    for k, (name, weight, policy, parent) in enumerate(parsed):
        if parent is not None and parent not in index:
            raise read.fail(f"entities[{k}].parent", f"is {parent!r}, which is not defined", "an id of entities")
        entities.append(Entity(name, weight, policy, None if parent is None else index[parent]))
    for k in range(len(entities)):
        seen = {k}
        above = entities[k].parent
        while above is not None:
            if above in seen:
                raise read.fail(f"entities[{k}].parent", "leads back to the entity itself", "a tree without cycles")
            seen.add(above)
            above = entities[above].parent
    return tuple(entities), index


def _read_pairs(read: _Reader, value: Any, index: dict[str, int], types: list[str], gpus: Any) -> Pairs | None:
    rows = [] if value is None else read.rows(value, "pairs")
    if not rows:
        return None
    jobs = np.zeros((len(rows), 2), dtype=np.int64)
    speeds = np.zeros((len(rows), len(types), 2))
    seen: dict[tuple[int, int], int] = {}
    for k, row in enumerate(rows):
        path = f"pairs[{k}]"
        pair = read.mapping(row, path)
        read.known(pair, ("jobs", "throughput"), path)
        members = read.rows(pair.get("jobs"), f"{path}.jobs")
        if len(members) != 2:
            raise read.fail(f"{path}.jobs", f"has {len(members)} jobs", "two different jobs")
        for side, member in enumerate(members):
            name = read.name(member, f"{path}.jobs[{side}]")
            if name not in index:
                raise read.fail(f"{path}.jobs[{side}]", f"job {name!r} not found", "ids of jobs")
            jobs[k, side] = index[name]
        low, high = sorted((int(jobs[k, 0]), int(jobs[k, 1])))
        if low == high:
            raise read.fail(f"{path}.jobs", "names one job twice", "two different jobs")
        if (low, high) in seen:
            raise read.fail(f"{path}.jobs", f"repeats pairs[{seen[low, high]}]", "each pair once")
        seen[low, high] = k
        if gpus[low] != gpus[high]:
            raise read.fail(
                f"{path}.jobs",
                f"joins gangs of {gpus[jobs[k, 0]]:g} and {gpus[jobs[k, 1]]:g} GPUs",
                "two jobs with equal gpus",
                "Jobs can share GPUs only when their gangs are equal; leave this pair out",
            )
        table = read.mapping(pair.get("throughput"), f"{path}.throughput")
        for name, both in table.items():
            where = f"{path}.throughput.{name}"
            j, values = read.one_of(name, types, where), read.rows(both, where)
            if len(values) != 2:
                raise read.fail(where, f"has {len(values)} values", "one speed for each of the two jobs")
            for side in (0, 1):
                speeds[k, j, side] = read.number(values[side], f"{where}[{side}]", at_least=0, what="steps per second")
    return Pairs(jobs, speeds)


def solve_instance(
    instance: Any,
    policy: str,
    options: Mapping[str, Option] | None = None,
    source: str = "",
    cpu_clock: Callable[[], float] = time.process_time,
) -> dict[str, Any]:
    """Check `instance`, solve it by `policy`, and return the JSON of the contract."""
    problem, ids = read_instance(instance, source)
    began = cpu_clock()
    if problem.job_count == 0:
        empty = np.zeros((0, len(problem.counts)))
        result = AllocationResult(Status.OPTIMAL, 0.0, empty, np.zeros(0), normalized=np.zeros(0), gap=0.0)
    else:
        result = allocate(problem, policy, options)
    return render_result(problem, ids, policy, result, cpu_clock() - began)


def render_result(
    problem: AllocationProblem, ids: list[str], policy: str, result: AllocationResult, solve_cpu_s: float
) -> dict[str, Any]:
    """Zero shares are left out; every job has an entry. Numbers that are not finite become null."""
    types = problem.type_names
    allocation = {
        job: {types[j]: float(result.share[m, j]) for j in np.flatnonzero(result.share[m] > 0.0)}
        for m, job in enumerate(ids)
    }
    if result.pair_share is not None and problem.pairs is not None:
        for k in np.flatnonzero((result.pair_share > 0.0).any(axis=1)):
            a, b = problem.pairs.jobs[k]
            row = result.pair_share[k]
            allocation[f"{ids[a]}+{ids[b]}"] = {types[j]: float(row[j]) for j in np.flatnonzero(row > 0.0)}
    out: dict[str, Any] = {
        "policy": policy,
        "status": result.status.value,
        "objective": result.objective if math.isfinite(result.objective) else None,
        "allocation": allocation,
        "throughput": {job: float(result.throughput[m]) for m, job in enumerate(ids)},
        "solve_cpu_s": solve_cpu_s,
        "solver": result.solver,
        "gap": result.gap if math.isfinite(result.gap) else None,
        "iterations": result.iterations,
    }
    if result.normalized is not None:
        out["normalized"] = {job: float(result.normalized[m]) for m, job in enumerate(ids)}
    if result.fallback:
        out["fallback"] = result.fallback
    if len(result.late_jobs):
        out["late_jobs"] = [ids[m] for m in result.late_jobs]
    return out
