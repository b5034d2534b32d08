"""The offline optimum: against enumeration, against another program and solver, and what its proof is worth."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

import numpy as np
import pytest

from support.oracles.admission_enumeration import enumerated, mixed_admission, small_admission
from trainmaster.policies.oasis.instance.formulation import Instance
from trainmaster.policies.oasis.instance.parsing import parse_instance
from trainmaster.policies.oasis.instance.worker_counts import SlotCounts
from trainmaster.policies.oasis.optimum import exact, large_instances
from trainmaster.policies.oasis.optimum.exact import offline_optimum
from trainmaster.policies.oasis.optimum.proof import Priced, Proof, Split, Tried, cases, schedule_errors, upper_bound

CUT_OFF = (45, 65, 153, 156)
"""Seeds of `differing` on which the settings of `test_settings_that_cut_off_schedules_are_noticed` lose a schedule."""


@pytest.mark.parametrize("seed", range(24))
def test_optimum_equals_enumeration(seed: int) -> None:
    raw = small_admission(seed, jobs=3 + seed % 2)
    found = offline_optimum(parse_instance(raw, "x"))
    assert found.status == "optimal"
    assert found.total_utility == pytest.approx(enumerated(raw), rel=1e-6, abs=1e-6)


@pytest.mark.slow
def test_optimum_equals_enumeration_on_more() -> None:
    for seed in range(200):
        raw = small_admission(seed, jobs=3 + seed % 2)
        found = offline_optimum(parse_instance(raw, "x"))
        assert (found.status, found.total_utility) == ("optimal", pytest.approx(enumerated(raw), rel=1e-6, abs=1e-6))


def differing(seeds: Iterable[int]) -> list[int]:
    """Seeds on which the mixed-integer program finds another total than the branch and bound."""
    out = []
    for seed in seeds:
        instance = parse_instance(
            mixed_admission(seed) if seed % 4 < 2 else small_admission(seed // 4, jobs=4 + seed % 5), "x"
        )
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


@pytest.mark.parametrize("seed", CUT_OFF)
def test_enumeration_finds_the_schedules_that_were_cut_off(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """The same settings, against enumeration: less than the best is found, and not called optimal."""
    raw = mixed_admission(seed) if seed % 4 < 2 else small_admission(seed // 4, jobs=4 + seed % 5)
    instance, best = parse_instance(raw, "x"), enumerated(raw)
    assert offline_optimum(instance).total_utility == pytest.approx(best, rel=1e-6)
    wrong = {**large_instances.SETTINGS, "mip_feasibility_tolerance": 1e-9, "presolve": "choose"}
    monkeypatch.setattr(large_instances, "SETTINGS", wrong)
    monkeypatch.setattr("trainmaster.policies.oasis.instance.worker_counts.VECTORS_MAX", 1)
    found = offline_optimum(instance)
    assert found.total_utility < best * (1 - 1e-6)
    assert best <= found.upper_bound * (1 + 1e-9)
    assert found.status == "limit"


def one_instance() -> tuple[Instance, SlotCounts]:
    instance = parse_instance(small_admission(4, jobs=8), "x")
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


@pytest.mark.parametrize("fault", ["worse schedules", "no schedules", "weaker proof"])
def test_a_search_that_goes_wrong_does_not_say_optimal(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    instance, _ = one_instance()
    run, schedules = exact._Search.run, exact._Search.schedules
    if fault == "worse schedules":
        monkeypatch.setattr(exact._Search, "schedules", lambda search: dict(list(schedules(search).items())[1:]))
    elif fault == "no schedules":
        monkeypatch.setattr(exact._Search, "schedules", lambda _: {})
    else:
        zeros = np.zeros((len(instance.jobs), instance.horizon))
        monkeypatch.setattr(exact._Search, "run", lambda search, nodes: (run(search, nodes), Priced(zeros))[1])
    found = offline_optimum(instance)
    assert found.status == "limit"
    assert found.upper_bound > found.total_utility * (1 + 1e-6)


def test_a_bound_below_a_schedule_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "upper_bound", lambda *_: 1.0)
    with pytest.raises(AssertionError, match="above its bound"):
        offline_optimum(one_instance()[0])


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
