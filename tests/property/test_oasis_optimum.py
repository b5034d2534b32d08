"""OASiS, baselines and the offline optimum on random small instances, checked by the independent verifier."""

from __future__ import annotations

import copy
import math
import statistics
from typing import Any

import numpy as np
import pytest

from support.oracles.admission import check_admission
from support.oracles.admission_instances import PaperLike, Tiny, paper_like_instance, tiny_instance
from trainmaster.policies.oasis.instance.solve import solve_instance

PAPER = {"rule": "paper", "constants": "oracle"}
BASELINES = ("rrh", "dorm", "fifo", "drf")


def small(seed: int) -> dict[str, Any]:
    shared = (0.0, 0.0, 0.5, 1.0)[seed % 4]
    return tiny_instance(Tiny(jobs=4 + seed % 5, shared_share=shared), 50_000 + seed)


def compare(seeds: range, policies: dict[str, tuple[str, dict[str, Any]]]) -> dict[str, list[float]]:
    """Ratios optimum / policy; asserts feasibility, the optimum's bound, and 2 alpha where there is one."""
    ratios: dict[str, list[float]] = {name: [] for name in policies}
    for seed in seeds:
        raw = small(seed)
        optimum = solve_instance(raw, "optimal", {}, "x")
        assert optimum["status"] == "optimal"
        assert check_admission(raw, optimum) == []
        best = optimum["total_utility"]
        for name, (policy, options) in policies.items():
            result = solve_instance(raw, policy, options, "x")
            assert check_admission(raw, result) == [], (seed, name)
            assert result["total_utility"] <= best * (1 + 1e-6) + 1e-6, (seed, name)
            if result["bound_alpha"] is not None:
                assert result["total_utility"] >= best / (2 * result["bound_alpha"]) - 1e-6, (seed, name)
            if best > 1e-3:
                ratios[name].append(best / max(result["total_utility"], 1e-9))
    return ratios


def test_every_policy_is_feasible_and_below_the_optimum() -> None:
    policies = {"oasis": ("oasis", {}), "paper": ("oasis", PAPER)} | {name: (name, {}) for name in BASELINES}
    compare(range(40), policies)


@pytest.mark.slow
def test_five_hundred_random_instances() -> None:
    oracle = {"constants": "oracle"}
    ratios = compare(range(500), {"history": ("oasis", {}), "oracle": ("oasis", oracle), "paper": ("oasis", PAPER)})
    mean = {name: statistics.mean(values) for name, values in ratios.items()}
    print(
        {name: round(value, 4) for name, value in mean.items()},
        {n: round(max(v), 2) for n, v in ratios.items()},
    )
    assert mean["paper"] <= 1.3
    assert mean["history"] < mean["paper"]
    assert mean["oracle"] < mean["paper"]


def test_optimum_against_enumeration_of_two_jobs() -> None:
    """Two jobs that want the same single GPU: the better order by hand."""

    def job(name: str, work: int, start: float, slope: float) -> dict[str, Any]:
        return {
            "id": name, "arrival": 0, "epochs": work, "chunks": 1, "minibatches": 1, "step_slots": 1,
            "gradient_mb": 0, "worker_mb_per_slot": 1, "server_mb_per_slot": 1, "worker_demand": {"gpu": 1},
            "server_demand": {"cpu": 1}, "utility": {"kind": "linear", "start": start, "slope": slope},
        }  # fmt: skip

    servers = [
        {"id": "w", "role": "worker", "capacity": {"gpu": 1}},
        {"id": "p", "role": "ps", "capacity": {"cpu": 1}},
    ]
    raw = {
        "kind": "admission",
        "horizon": 5,
        "servers": servers,
        "jobs": [job("a", 3, 10, 1), job("b", 2, 10, 3)],
    }
    # b first: b ends in slot 1 (7), a in slot 4 (6): 13. a first: a ends in slot 2 (8), b in slot 4 (0): 8.
    assert solve_instance(raw, "optimal", {}, "x")["total_utility"] == pytest.approx(13)


@pytest.mark.parametrize("fault", ["capacity", "work", "workers", "bandwidth", "ps", "completion", "utility", "early"])
def test_verifier_sees_every_kind_of_fault(fault: str) -> None:
    raw = tiny_instance(Tiny(), 1)
    result = solve_instance(raw, "oasis", {}, "x")
    name = next(key for key, outcome in result["jobs"].items() if outcome["admitted"])
    bad, changed = copy.deepcopy(raw), copy.deepcopy(result)
    own, outcome = next(j for j in bad["jobs"] if j["id"] == name), changed["jobs"][name]
    if fault == "capacity":
        for server in bad["servers"]:
            server["capacity"]["cpu"] = 0.5
    elif fault == "work":
        own["epochs"] *= 10
    elif fault == "workers":
        own["chunks"], own["epochs"] = 0, own["epochs"]
    elif fault == "bandwidth":
        own["server_mb_per_slot"] = own["worker_mb_per_slot"] / 1000
    elif fault == "ps":
        outcome["servers"][0][2] += 50
    elif fault == "completion":
        outcome["completion"] += 1
    elif fault == "utility":
        changed["total_utility"] += 1
    else:
        own["arrival"] = outcome["workers"][0][0] + 1
    assert check_admission(raw, result) == []
    assert check_admission(bad, changed) != []


@pytest.mark.slow
def test_ahead_of_every_baseline_when_resources_are_scarce() -> None:
    """A small paper-like cluster over several seeds: the paired lead over each baseline is positive with
    its interval.
    """
    config = PaperLike(jobs=40, horizon=40, worker_servers=12, ps_servers=12)
    leads: dict[str, list[float]] = {name: [] for name in BASELINES}
    for seed in range(6):
        raw = paper_like_instance(config, seed)
        own = solve_instance(raw, "oasis", {}, "x")
        assert check_admission(raw, own) == []
        for name in BASELINES:
            other = solve_instance(raw, name, {}, "x")
            assert check_admission(raw, other) == []
            leads[name].append(own["total_utility"] - other["total_utility"])
    for name, values in leads.items():
        half = 2.57 * np.std(values, ddof=1) / math.sqrt(len(values))  # Student, 5 degrees of freedom, 95 %
        assert statistics.mean(values) - half > 0, (name, values)
