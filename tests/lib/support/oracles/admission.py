"""An independent check of admission results, written from the formulation alone: constraints 1-6 and the
utility.

It reads the raw instance and the raw result and shares no code with the solvers, not even the utility
functions.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

TOLERANCE = 1e-6


def check_admission(instance: Mapping[str, Any], result: Mapping[str, Any]) -> list[str]:
    """Every violation found, as text; an empty list is a pass."""
    faults: list[str] = []
    servers = {server["id"]: server for server in instance["servers"]}
    taken: dict[tuple[int, str], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    total = 0.0
    if set(result["jobs"]) != {job["id"] for job in instance["jobs"]}:
        faults.append("the result's jobs are not the instance's jobs")
    for job in instance["jobs"]:
        outcome = result["jobs"][job["id"]]
        faults += _check_job(job, outcome, servers, int(instance["horizon"]))
        if outcome["admitted"]:
            total += utility_at(job["utility"], outcome["completion"] - job["arrival"])
        for rows, demand in (
            (outcome["workers"], job["worker_demand"]),
            (outcome["servers"], job["server_demand"]),
        ):
            for slot, server, count in rows:
                for resource, amount in demand.items():
                    taken[slot, server][resource] += count * amount
    for (slot, server), amounts in sorted(taken.items()):
        for resource, amount in sorted(amounts.items()):
            capacity = servers[server]["capacity"].get(resource, 0.0) if server in servers else 0.0
            if amount > capacity * (1 + TOLERANCE) + 1e-9:
                faults.append(f"(3) slot {slot}, {server}: {resource} {amount:g} of {capacity:g}")
    if not math.isclose(total, result["total_utility"], rel_tol=1e-9, abs_tol=1e-9):
        faults.append(f"objective: reported {result['total_utility']!r}, recomputed {total!r}")
    return faults


def _check_job(
    job: Mapping[str, Any], outcome: Mapping[str, Any], servers: Mapping[str, Any], horizon: int
) -> list[str]:
    name = job["id"]
    faults: list[str] = []
    workers: dict[int, int] = defaultdict(int)
    ps: dict[int, int] = defaultdict(int)
    for rows, count_by_slot, roles in (
        (outcome["workers"], workers, ("worker", "both")),
        (outcome["servers"], ps, ("ps", "both")),
    ):
        for slot, server, count in rows:
            if server not in servers or servers[server]["role"] not in roles:
                faults.append(f"{name}: server {server} may not host this role")
            if not isinstance(count, int) or count <= 0:
                faults.append(f"{name}: count {count!r} in slot {slot}")
            if not job["arrival"] <= slot < horizon:
                faults.append(f"(2) {name}: slot {slot} outside {job['arrival']}..{horizon - 1}")
            count_by_slot[slot] += count
    if not outcome["admitted"]:
        if workers or ps or outcome["completion"] is not None:
            faults.append(f"{name}: not admitted, yet scheduled")
        return faults
    work = job["epochs"] * job["chunks"] * job["minibatches"] * (
        job["step_slots"] + 2 * job["gradient_mb"] / job["worker_mb_per_slot"]
    )  # fmt: skip
    if sum(workers.values()) < work * (1 - TOLERANCE):
        faults.append(f"(1) {name}: {sum(workers.values())} worker-slots of {work:g}")
    for slot in sorted(set(workers) | set(ps)):
        if workers[slot] > job["chunks"]:
            faults.append(f"(2) {name}: {workers[slot]} workers in slot {slot}, at most {job['chunks']}")
        sent, accepted = workers[slot] * job["worker_mb_per_slot"], ps[slot] * job["server_mb_per_slot"]
        if sent > accepted * (1 + TOLERANCE):
            faults.append(f"(4) {name}: slot {slot} sends {sent:g}, servers take {accepted:g}")
        if ps[slot] > workers[slot]:
            faults.append(f"(5) {name}: slot {slot} has {ps[slot]} servers for {workers[slot]} workers")
    last = max((slot for slot, count in workers.items() if count > 0), default=None)
    if outcome["completion"] != last:
        faults.append(f"(6) {name}: completion {outcome['completion']}, last slot with a worker {last}")
    return faults


def utility_at(utility: Mapping[str, Any], age: float) -> float:
    """f(age), straight from the JSON description."""
    kind = utility["kind"]
    if kind == "sigmoid":
        exponent = utility["theta2"] * (age - utility["theta3"])
        return utility["theta1"] / (1 + math.exp(exponent)) if exponent < 700 else 0.0
    if kind == "linear":
        return max(0.0, utility["start"] - utility["slope"] * age)
    if kind == "constant":
        return utility["value"]
    if kind == "step":
        return next((value for time, value in utility["steps"] if age <= time), utility.get("after", 0.0))
    points = utility["points"]
    if age <= points[0][0]:
        return points[0][1]
    for (t0, v0), (t1, v1) in pairwise(points):
        if age <= t1:
            return v0 + (v1 - v0) * (age - t0) / (t1 - t0)
    return points[-1][1]
