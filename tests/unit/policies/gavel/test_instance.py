"""Allocation instances: the worked example, the result format, and every kind of bad input."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest

from trainmaster.model.errors import InputError
from trainmaster.policies.gavel.instance import solve_instance
from trainmaster.policies.gavel.objectives import POLICIES


def instance() -> dict[str, Any]:
    """The worked example of the paper's talk: three jobs, one V100, one K80."""
    speeds = {"a": (40.0, 10.0), "b": (12.0, 4.0), "c": (100.0, 50.0)}
    return {
        "kind": "allocation",
        "accelerators": {
            "v100": {"count": 1, "cost_per_hour": 2.48},
            "k80": {"count": 1, "cost_per_hour": 0.45},
        },
        "jobs": [{"id": k, "throughput": {"v100": v, "k80": w}} for k, (v, w) in speeds.items()],
    }


@pytest.mark.parametrize("solver", ["auto", "prices", "highs"])
def test_worked_example(solver: str) -> None:
    """The talk normalises by equal shares of a third of both GPUs each, two thirds of what prop_m counts."""
    result = solve_instance(instance(), "gavel-max-min", {"solver": solver}, cpu_clock=lambda: 0.0)
    assert result["objective"] * 1.5 == pytest.approx(12.0 / 11.0, rel=1e-8)
    assert result["allocation"]["a"]["v100"] == pytest.approx(5 / 11, abs=1e-6)
    assert result["allocation"]["c"]["k80"] == pytest.approx(10 / 11, abs=1e-6)
    assert result["status"] == "optimal"
    assert result["gap"] <= 1e-8
    assert result["solve_cpu_s"] == 0.0


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_answers_in_the_contract(policy: str) -> None:
    result = solve_instance(instance(), policy)
    assert {"policy", "status", "objective", "allocation", "throughput", "solve_cpu_s"} <= set(result)
    for shares in result["allocation"].values():
        assert sum(shares.values()) <= 1 + 1e-9
    assert solve_instance({**instance(), "jobs": []}, policy)["allocation"] == {}


def put(path: list[Any], value: Any) -> dict[str, Any]:
    out = copy.deepcopy(instance())
    where: Any = out
    for key in path[:-1]:
        where = where[key]
    where[path[-1]] = value
    return out


BAD = [
    (["jobs", 0, "throughput", "v100"], -1.0, "jobs[0].throughput.v100"),
    (["jobs", 0, "throughput", "v100"], math.nan, "jobs[0].throughput.v100"),
    (["jobs", 0, "throughput", "v100"], "fast", "jobs[0].throughput.v100"),
    (["jobs", 0, "throughput"], {}, "jobs[0].throughput"),
    (["jobs", 0, "throughput"], {"v100": 0, "k80": 0}, "jobs[0].throughput"),
    (["jobs", 0, "throughput", "a100"], 1.0, "jobs[0].throughput.a100"),
    (["jobs", 1, "id"], "a", "jobs[1].id"),
    (["jobs", 1, "gpus"], 0, "jobs[1].gpus"),
    (["jobs", 1, "gpus"], 1.5, "jobs[1].gpus"),
    (["jobs", 1, "weight"], 0, "jobs[1].weight"),
    (["jobs", 1, "steps_remaining"], math.inf, "jobs[1].steps_remaining"),
    (["jobs", 1, "slo_s"], -5, "jobs[1].slo_s"),
    (["jobs", 1, "entity"], "nobody", "jobs[1].entity"),
    (["jobs", 1, "speed"], 3, "jobs[1].speed"),
    (["jobs"], None, "jobs"),
    (["accelerators"], {}, "accelerators"),
    (["accelerators", "v100", "count"], -1, "accelerators.v100.count"),
    (["accelerators", "v100", "cost_per_hour"], 0, "accelerators.v100.cost_per_hour"),
    (["entities"], [{"id": "x", "parent": "y"}, {"id": "y", "parent": "x"}], "entities[0].parent"),
    (["entities"], [{"id": "x", "policy": "random"}], "entities[0].policy"),
    (["pairs"], [{"jobs": ["a", "z"], "throughput": {}}], "pairs[0].jobs[1]"),
    (["pairs"], [{"jobs": ["a", "b"], "throughput": {"v100": [1]}}], "pairs[0].throughput.v100"),
    (["kind"], "admission", "kind"),
]


@pytest.mark.parametrize(("path", "value", "where"), BAD)
def test_bad_instances_name_the_place(path: list[Any], value: Any, where: str) -> None:
    with pytest.raises(InputError) as error:
        solve_instance(put(path, value), "gavel-max-min", source="x.json")
    assert error.value.column == where
    assert error.value.expected


def test_missing_throughput() -> None:
    broken = instance()
    del broken["jobs"][2]["throughput"]
    with pytest.raises(InputError, match="missing"):
        solve_instance(broken, "gavel-max-min")


def test_pairs_need_equal_gangs() -> None:
    broken = put(["jobs", 0, "gpus"], 2)
    broken["pairs"] = [{"jobs": ["a", "b"], "throughput": {"v100": [20, 6]}}]
    with pytest.raises(InputError, match="gangs of 2 and 1"):
        solve_instance(broken, "gavel-max-min", {"space_sharing": True})


def test_options_are_checked() -> None:
    for options in ({"solver": "magic"}, {"aware": "maybe"}, {"colour": 1}):
        with pytest.raises(InputError):
            solve_instance(instance(), "gavel-max-min", options)
    with pytest.raises(InputError, match="cannot share"):
        solve_instance(instance(), "gavel-fifo", {"space_sharing": True})


def test_infeasible_slo_is_a_named_outcome() -> None:
    asked = put(["jobs", 0, "slo_s"], 1.0)
    asked["jobs"][0]["steps_remaining"] = 1000
    result = solve_instance(asked, "gavel-cost-slo")
    assert result["status"] == "infeasible_slo"
    assert result["late_jobs"] == ["a"]
    assert result["objective"] == pytest.approx(solve_instance(instance(), "gavel-cost")["objective"])


def test_pair_shares_have_a_joint_key() -> None:
    packed = instance()
    packed["pairs"] = [{"jobs": ["a", "b"], "throughput": {"v100": [39, 11.5], "k80": [9.8, 3.9]}}]
    alone = solve_instance(packed, "gavel-max-min")["objective"]
    together = solve_instance(packed, "gavel-max-min", {"space_sharing": True})
    assert together["allocation"]["a+b"]
    assert together["objective"] > alone * 1.1


def test_nested_entities_divide_by_weight() -> None:
    """Two organisations 2:1, the first split 1:1 into teams of one and two jobs; identical single-type
    jobs."""
    jobs = [("p", "team1"), ("q", "team2"), ("r", "team2"), ("s", "other")]
    nested = {
        "accelerators": {"v100": {"count": 1}},
        "jobs": [{"id": k, "throughput": {"v100": 1.0}, "entity": e} for k, e in jobs],
        "entities": [
            {"id": "org", "weight": 2},
            {"id": "other", "weight": 1},
            {"id": "team1", "parent": "org"},
            {"id": "team2", "parent": "org"},
        ],
    }
    result = solve_instance(nested, "gavel-hierarchical")
    expected = {"p": 1 / 3, "q": 1 / 6, "r": 1 / 6, "s": 1 / 3}
    for job, share in expected.items():
        assert result["allocation"][job]["v100"] == pytest.approx(share, rel=1e-7)
