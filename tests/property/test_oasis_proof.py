"""The offline optimum: against enumeration, against another program and solver, and what its proof is worth."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np
import pytest

from support.oracles.admission import utility_at
from support.oracles.admission_instances import Tiny, tiny_instance
from trainmaster.policies.oasis.instance.formulation import Instance
from trainmaster.policies.oasis.instance.parsing import parse_instance
from trainmaster.policies.oasis.instance.worker_counts import SlotCounts
from trainmaster.policies.oasis.optimum import large_instances
from trainmaster.policies.oasis.optimum.exact import offline_optimum
from trainmaster.policies.oasis.optimum.proof import Priced, Proof, Split, Tried, cases, schedule_errors, upper_bound

CUT_OFF = (45, 65, 153, 156)
"""Seeds of `differing` on which the settings of `test_settings_that_cut_off_schedules_are_noticed` lose a schedule."""


def small(seed: int, jobs: int) -> dict[str, Any]:
    return tiny_instance(Tiny(jobs=jobs, shared_share=(0.0, 0.0, 0.5, 1.0)[seed % 4]), 70_000 + seed)


def mixed(seed: int) -> dict[str, Any]:
    """Five jobs with more workers and work than `small`, three resources; every second one with round bandwidths."""
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


def enumerated(raw: dict[str, Any]) -> float:
    """The best total utility, slot by slot over every state of remaining work; from the raw instance alone."""
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

    @cache
    def loads(server: int, left: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Everything that one server can host of what is left: workers of each job, then PS of each job."""
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
        return [chosen for chosen, _ in out]

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
        fitting = {v for v in itertools.product(*(range(n + 1) for n in limits)) if fits(v)}
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
            for counts in choices(limits):
                rest = tuple(a - b for a, b in zip(left, counts, strict=True))
                gained = sum(
                    utility_at(j["utility"], slot - j["arrival"])
                    for j, a, b in zip(jobs, left, rest, strict=True)
                    if a > 0 and b == 0
                )
                following[rest] = max(following.get(rest, 0.0), total + gained)
        states = following
    return max(states.values())


@pytest.mark.parametrize("seed", [seed for seed in range(24) if seed not in (11, 19)])
def test_optimum_equals_enumeration(seed: int) -> None:
    """Two seeds are left to the slow test: enumeration takes them a minute."""
    raw = small(seed, jobs=3 + seed % 2)
    found = offline_optimum(parse_instance(raw, "x"))
    assert found.status == "optimal"
    assert found.total_utility == pytest.approx(enumerated(raw), rel=1e-6, abs=1e-6)


@pytest.mark.slow
def test_optimum_equals_enumeration_on_more() -> None:
    for seed in range(200):
        raw = small(seed, jobs=3 + seed % 2)
        found = offline_optimum(parse_instance(raw, "x"))
        assert (found.status, found.total_utility) == ("optimal", pytest.approx(enumerated(raw), rel=1e-6, abs=1e-6))


def differing(seeds: Iterable[int]) -> list[int]:
    """Seeds on which the mixed-integer program finds another total than the branch and bound."""
    out = []
    for seed in seeds:
        instance = parse_instance(mixed(seed) if seed % 4 < 2 else small(seed // 4, jobs=4 + seed % 5), "x")
        found = offline_optimum(instance)
        assert found.status == "optimal", seed
        schedules, bound = large_instances.bounded_optimum(instance, 100_000)
        assert schedule_errors(instance, schedules) == []
        assert bound >= found.total_utility * (1 - 1e-9)
        total = sum(
            job.utility.value(schedules[job.id].completion - job.arrival)
            for job in instance.jobs
            if job.id in schedules
        )
        assert total <= found.upper_bound * (1 + 1e-6) + 1e-6
        if not math.isclose(total, found.total_utility, rel_tol=1e-6, abs_tol=1e-6):
            out.append(seed)
    return out


def test_optimum_equals_that_of_the_mixed_integer_program() -> None:
    assert differing([*range(24), *CUT_OFF]) == []


@pytest.mark.slow
def test_optimum_equals_that_of_the_mixed_integer_program_on_two_thousand() -> None:
    assert differing(range(2000)) == []


def test_settings_that_cut_off_schedules_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a tolerance of 1e-9 and presolve HiGHS calls worse schedules optimal: the comparison above sees it."""
    wrong = {**large_instances.SETTINGS, "mip_feasibility_tolerance": 1e-9, "presolve": "choose"}
    monkeypatch.setattr(large_instances, "SETTINGS", wrong)
    assert differing(CUT_OFF) == list(CUT_OFF)


def one_instance() -> tuple[Instance, SlotCounts]:
    instance = parse_instance(small(4, jobs=8), "x")
    counts = SlotCounts.of(instance.cluster, instance.jobs)
    assert counts is not None
    return instance, counts


def test_a_proof_bounds_every_schedule_and_its_parts_are_needed() -> None:
    instance, counts = one_instance()
    found = offline_optimum(instance)
    assert found.proof is not None and cases(found.proof) > 1
    assert upper_bound(instance, counts, found.proof) == found.upper_bound <= found.total_utility * (1 + 1e-7)

    def without_splits(proof: Proof) -> Proof:
        return without_splits(proof.high) if isinstance(proof, Split) else proof

    def with_other_prices(proof: Proof) -> Proof:
        if isinstance(proof, Split):
            return dataclasses.replace(proof, low=with_other_prices(proof.low), high=with_other_prices(proof.high))
        return Priced(proof.prices * 0.5) if isinstance(proof, Priced) else proof

    # Whatever the prices, a bound holds; it proves the optimum only with the right ones.
    for weaker in (without_splits(found.proof), with_other_prices(found.proof)):
        assert upper_bound(instance, counts, weaker) > found.total_utility * (1 + 1e-7)
    for wrong in (Priced(-np.ones((len(instance.jobs), instance.horizon))), Tried()):
        with pytest.raises(ValueError, match="invalid proof"):
            upper_bound(instance, counts, wrong)


def test_a_search_cut_short_does_not_say_optimal() -> None:
    instance, _ = one_instance()
    found = offline_optimum(instance, nodes_max=2)
    assert found.status == "limit"
    assert found.upper_bound > offline_optimum(instance).total_utility
    assert found.gap > 1e-7


def test_an_instance_too_large_has_a_bound_and_no_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    instance, _ = one_instance()
    best = offline_optimum(instance).total_utility
    monkeypatch.setattr("trainmaster.policies.oasis.instance.worker_counts.VECTORS_MAX", 10)
    found = offline_optimum(instance)
    assert (found.status, found.proof) == ("limit", None)
    assert found.total_utility <= best * (1 + 1e-9) <= found.upper_bound * (1 + 2e-9)


@pytest.mark.parametrize("fault", [1, 2, 3, 4])
def test_schedules_are_checked_against_each_constraint(fault: int) -> None:
    instance, _ = one_instance()
    schedules = dict(offline_optimum(instance).schedules)
    assert schedule_errors(instance, schedules) == []
    name = next(iter(schedules))
    own = schedules[name]
    slot, server, _ = own.workers[0]
    if fault == 1:
        schedules[name] = dataclasses.replace(own, workers=own.workers[1:])
    elif fault == 2:
        schedules[name] = dataclasses.replace(own, workers=((slot, server, 99), *own.workers[1:]))
    elif fault == 3:
        ps = int(np.flatnonzero(~instance.cluster.hosts_workers)[0])
        schedules[name] = dataclasses.replace(own, workers=((slot, ps, 1), *own.workers))
    else:
        schedules[name] = dataclasses.replace(own, servers=())
    assert any(error.startswith(f"({fault})") for error in schedule_errors(instance, schedules))
