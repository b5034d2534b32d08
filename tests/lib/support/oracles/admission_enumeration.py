"""The offline optimum of small admission instances by enumeration, and random instances to compare it on.

Reads the raw instance; shares no code with the branch and bound, its proof or the mixed-integer program.
"""

from __future__ import annotations

import itertools
import math
from functools import cache
from typing import Any

import numpy as np

from support.oracles.admission import utility_at
from support.oracles.admission_instances import Tiny, tiny_instance


class TooLarge(Exception):
    """Enumeration would take more steps than allowed."""


def small_admission(seed: int, jobs: int) -> dict[str, Any]:
    return tiny_instance(Tiny(jobs=jobs, shared_share=(0.0, 0.0, 0.5, 1.0)[seed % 4]), 70_000 + seed)


def mixed_admission(seed: int) -> dict[str, Any]:
    """Five jobs, larger than those of `small_admission`, three resources; every second one with round bandwidths."""
    rng = np.random.Generator(np.random.PCG64([seed, 45]))

    def amounts(**ranges: tuple[int, int]) -> dict[str, int]:
        return {name: int(rng.integers(low, high)) for name, (low, high) in ranges.items()}

    servers = [
        {"id": f"w{n}", "role": "worker", "capacity": amounts(gpu=(2, 9), cpu=(8, 33), mem=(16, 129))} for n in (0, 1)
    ]
    servers += [{"id": f"p{n}", "role": "ps", "capacity": amounts(cpu=(5, 17), mem=(16, 65))} for n in (0, 1)]
    jobs = []
    for n in range(5):
        server_rate, worker_rate = float(rng.uniform(5, 20)), float(rng.uniform(0.1, 5))
        if seed % 2:
            server_rate, worker_rate = float(rng.integers(1, 5)) * 10, float(rng.choice([1, 2, 5, 10]))
        jobs.append({
            "id": f"j{n}", "arrival": int(rng.integers(0, 4)), "epochs": int(rng.integers(1, 6)),
            "chunks": int(rng.integers(1, 9)), "minibatches": int(rng.integers(1, 5)),
            "step_slots": float(rng.uniform(0.01, 0.3)), "gradient_mb": float(rng.uniform(0, 0.1)),
            "worker_mb_per_slot": worker_rate, "server_mb_per_slot": server_rate,
            "worker_demand": amounts(gpu=(0, 3), cpu=(1, 6), mem=(2, 17)),
            "server_demand": amounts(cpu=(1, 6), mem=(2, 17)),
            "utility": {
                "kind": "sigmoid", "theta1": float(rng.uniform(1, 100)),
                "theta2": float(rng.choice([0.0, rng.uniform(0.01, 1), rng.uniform(4, 6)])),
                "theta3": float(rng.uniform(1, 5)),
            },
        })  # fmt: skip
    return {"kind": "admission", "horizon": 5, "servers": servers, "jobs": jobs}


def enumerated(raw: dict[str, Any], steps_max: int | None = None) -> float:
    """The best total utility, slot by slot over every state of remaining work; from the raw instance alone.

    Raises `TooLarge` after `steps_max` count vectors and loads of servers looked at.
    """
    steps = 0
    jobs, servers = raw["jobs"], raw["servers"]
    work = tuple(
        max(
            1,
            math.ceil(
                j["epochs"]
                * j["chunks"]
                * j["minibatches"]
                * (j["step_slots"] + 2 * j["gradient_mb"] / j["worker_mb_per_slot"])
                * (1 - 1e-9)
            ),
        )
        for j in jobs
    )

    def spend(count: int) -> None:
        nonlocal steps
        steps += count
        if steps_max is not None and steps > steps_max:
            raise TooLarge

    @cache
    def loads(server: int, left: tuple[int, ...]) -> list[tuple[int, ...]]:
        """What one server can host of what is left, full: workers of each job, then PS of each job."""
        role, capacity = servers[server]["role"], servers[server]["capacity"]
        demands = [j["worker_demand"] if role != "ps" else None for j in jobs]
        demands += [j["server_demand"] if role != "worker" else None for j in jobs]
        out: list[tuple[tuple[int, ...], dict[str, float]]] = [((), dict(capacity))]
        for demand, most in zip(demands, left, strict=True):
            longer = []
            for chosen, free in out:
                for count in range(most + 1 if demand is not None else 1):
                    rest = {r: free[r] - count * (demand or {}).get(r, 0) for r in free}
                    if min(rest.values()) < -1e-9:
                        break
                    longer.append(((*chosen, count), rest))
            out = longer
        spend(len(out))
        some = [(i, demand) for i, demand in enumerate(demands) if demand is not None]
        return [
            chosen
            for chosen, free in out
            if not any(
                chosen[i] < left[i] and all(free[r] - demand.get(r, 0) >= -1e-9 for r in free) for i, demand in some
            )
        ]

    @cache
    def hosted(server: int, left: tuple[int, ...]) -> bool:
        if not any(left):
            return True
        if server == len(servers):
            return False
        return any(
            hosted(server + 1, tuple(a - b for a, b in zip(left, load, strict=True)))
            for load in reversed(loads(server, left))
        )

    @cache
    def fits(counts: tuple[int, ...]) -> bool:
        ps = tuple(
            math.ceil(n * j["worker_mb_per_slot"] / j["server_mb_per_slot"] * (1 - 1e-9))
            for n, j in zip(counts, jobs, strict=True)
        )
        return hosted(0, (*counts, *ps))

    @cache
    def choices(limits: tuple[int, ...]) -> list[tuple[int, ...]]:
        spend(math.prod(n + 1 for n in limits))
        fitting: set[tuple[int, ...]] = set()
        for v in itertools.product(*(range(n + 1) for n in limits)):
            fewer = ((*v[:i], v[i] - 1, *v[i + 1 :]) for i in range(len(v)) if v[i])
            if all(u in fitting for u in fewer) and fits(v):
                fitting.add(v)
        return [
            v
            for v in fitting
            if not any((*v[:i], v[i] + 1, *v[i + 1 :]) in fitting for i in range(len(v)) if v[i] < limits[i])
        ]

    states = {work: 0.0}
    for slot in range(raw["horizon"]):
        following: dict[tuple[int, ...], float] = {}
        for left, total in states.items():
            limits = tuple(min(j["chunks"], n) if j["arrival"] <= slot else 0 for j, n in zip(jobs, left, strict=True))
            vectors = choices(limits)
            spend(len(vectors))
            for counts in vectors:
                rest = tuple(a - b for a, b in zip(left, counts, strict=True))
                gained = sum(
                    utility_at(j["utility"], slot - j["arrival"])
                    for j, a, b in zip(jobs, left, rest, strict=True)
                    if a > 0 and b == 0
                )
                following[rest] = max(following.get(rest, 0.0), total + gained)
        states = following
    return max(states.values())
