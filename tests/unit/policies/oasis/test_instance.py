"""`solve_instance`: the result's contract, bad instances, explanations of rejections, determinism."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from support.oracles.admission import check_admission
from support.oracles.admission_instances import PaperLike, Tiny, paper_like_instance, tiny_instance
from trainmaster.model.errors import InputError
from trainmaster.policies.oasis.instance.solve import POLICIES, solve_instance


def job(name: str = "a", **changes: Any) -> dict[str, Any]:
    return {
        "id": name, "arrival": 0, "epochs": 2, "chunks": 2, "minibatches": 1, "step_slots": 1.0,
        "gradient_mb": 0, "worker_mb_per_slot": 10, "server_mb_per_slot": 20,
        "worker_demand": {"gpu": 1}, "server_demand": {"cpu": 1},
        "utility": {"kind": "linear", "start": 10, "slope": 1},
    } | changes  # fmt: skip


def instance(*jobs: dict[str, Any], horizon: Any = 6) -> dict[str, Any]:
    servers = [
        {"id": "w", "role": "worker", "capacity": {"gpu": 2}},
        {"id": "p", "role": "ps", "capacity": {"cpu": 2}},
    ]
    return {"kind": "admission", "horizon": horizon, "servers": servers, "jobs": list(jobs or [job()])}


@pytest.mark.parametrize("policy", POLICIES)
def test_result_has_the_contract_keys(policy: str) -> None:
    options = {} if policy in ("oasis", "optimal") else {"workers": 2}
    result = solve_instance(instance(), policy, {} if policy == "dorm" else options, "x")
    assert {"total_utility", "jobs", "bound_alpha", "solve_cpu_s"} <= set(result)
    outcome = result["jobs"]["a"]
    # 4 worker-slots with 2 workers: slots 0 and 1, completion 1, f(1) = 9.
    # One PS serves two workers (10 + 10 <= 20).
    assert (outcome["admitted"], outcome["completion"], result["total_utility"]) == (True, 1, 9.0)
    assert outcome["workers"] == [[0, "w", 2], [1, "w", 2]]
    assert outcome["servers"] == [[0, "p", 1], [1, "p", 1]]
    assert check_admission(instance(), result) == []
    json.dumps(result, allow_nan=False)


BAD: list[tuple[dict[str, Any], str, str]] = [
    (
        instance(job(utility={"kind": "linear", "start": 1, "slope": -1})),
        "jobs[0].utility.slope",
        "increases",
    ),
    (instance(job(worker_mb_per_slot=0)), "jobs[0].worker_mb_per_slot", "> 0"),
    (instance(job(server_mb_per_slot=0)), "jobs[0].server_mb_per_slot", "> 0"),
    (instance(job(worker_mb_per_slot=30)), "jobs[0].worker_mb_per_slot", "more than a parameter server"),
    (instance(job(worker_demand={"gpu": 3})), "jobs[0].worker_demand", "larger than every server"),
    (instance(job(server_demand={"gpu": 1})), "jobs[0].server_demand", "larger than every server"),
    (instance(job(arrival=6)), "jobs[0].arrival", "horizon"),
    (instance(job(arrival=-1)), "jobs[0].arrival", "whole number"),
    (instance(horizon=0), "horizon", "whole number"),
    (instance(horizon=-3), "horizon", "whole number"),
    (instance(horizon=2.5), "horizon", "whole number"),
    (instance(job(epochs=float("nan"))), "jobs[0].epochs", "finite"),
    (instance(job(step_slots=0)), "jobs[0].step_slots", "work"),
    (instance(job(chunks=0)), "jobs[0].chunks", "whole number"),
    (instance(job(), job()), "jobs[1].id", "twice"),
    (instance(job(id="")), "jobs[0].id", "text"),
    (instance(job(utility=None)), "jobs[0].utility", "object"),
    (instance(job(worker_demand=[1])), "jobs[0].worker_demand", "object"),
    ({**instance(), "servers": []}, "servers", "list"),
    ({**instance(), "servers": [{"id": "w", "role": "gpu", "capacity": {}}]}, "servers[0].role", "role"),
    ({**instance(), "jobs": 7}, "jobs", "list"),
    ({**instance(), "kind": "allocation"}, "kind", "admission"),
]


@pytest.mark.parametrize(("bad", "column", "words"), BAD, ids=[f"{column}-{n}" for n, (_, column, _) in enumerate(BAD)])
def test_bad_instances_are_named(bad: dict[str, Any], column: str, words: str) -> None:
    for policy in POLICIES:
        with pytest.raises(InputError) as caught:
            solve_instance(bad, policy, {}, "bad.json")
        assert caught.value.column == column
        assert caught.value.file == "bad.json"
        assert words in str(caught.value)


@pytest.mark.parametrize(
    ("policy", "options"),
    [("oasis", {"spread": 1}), ("oasis", {"constants": "guess"}), ("oasis", {"scale": "x"}),
     ("drf", {"theta1": 1}),
     ("fifo", {"workers": 1.5}), ("oasis", {"constants": "declared"}), ("gavel", {})],
)  # fmt: skip
def test_bad_options(policy: str, options: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        solve_instance(instance(), policy, options, "x")


def test_rejections_say_what_would_have_helped() -> None:
    late = job("late", epochs=100)
    result = solve_instance(instance(late), "oasis", {}, "x")
    assert result["jobs"]["late"]["rejection"]["reason"] == "horizon"
    assert result["jobs"]["late"]["payoff"] is None
    # "big" fills every slot of the horizon, so nothing is left for "next".
    big = job("big", epochs=6, utility={"kind": "constant", "value": 100})
    result = solve_instance(instance(big, job("next")), "oasis", {}, "x")
    assert result["jobs"]["next"]["rejection"]["reason"] == "capacity"


def test_price_rejection_can_be_verified() -> None:
    """Scaling prices by just under the told factor admits; by just over it still rejects; so does the
    grace.
    """
    found = 0
    for seed in range(60):
        raw = tiny_instance(Tiny(jobs=8), seed)
        result = solve_instance(raw, "oasis", {"constants": "oracle"}, "x")
        rejected = [
            (name, outcome) for name, outcome in result["jobs"].items()
            if not outcome["admitted"] and outcome["rejection"]["reason"] == "price"
        ]  # fmt: skip
        for name, outcome in rejected[:1]:
            told = outcome["rejection"]
            assert outcome["payoff"] <= 0 < told["price_factor"] <= 1
            # Only the first rejected job sees the same commitments when its own utility is changed.
            declared = {**copy.deepcopy(raw), "population": copy.deepcopy(raw["jobs"])}
            own = next(j for j in declared["jobs"] if j["id"] == name)
            for factor, admitted in ((0.999, False), (1.001, True)):
                own["utility"]["theta1"] = (
                    next(j for j in raw["jobs"] if j["id"] == name)["utility"]["theta1"]
                    / told["price_factor"] * factor
                )  # fmt: skip
                again = solve_instance(declared, "oasis", {"constants": "declared"}, "x")
                assert again["jobs"][name]["admitted"] is admitted
            own["utility"]["theta1"] = next(j for j in raw["jobs"] if j["id"] == name)["utility"]["theta1"]
            if told["grace_slots"] is not None and own["utility"]["theta3"] + told["grace_slots"] < 50:
                own["utility"]["theta3"] += told["grace_slots"]
                again = solve_instance(declared, "oasis", {"constants": "declared"}, "x")
                assert again["jobs"][name]["admitted"]
            found += 1
    assert found >= 5


def test_history_never_peeks() -> None:
    """Jobs that arrive later change nothing about the decisions before them."""
    raw = paper_like_instance(PaperLike(jobs=30, horizon=40, worker_servers=8, ps_servers=8), 3)
    whole = solve_instance(raw, "oasis", {}, "x")["jobs"]
    first = {**raw, "jobs": raw["jobs"][:15]}
    assert solve_instance(first, "oasis", {}, "x")["jobs"] == {j["id"]: whole[j["id"]] for j in first["jobs"]}


@pytest.mark.parametrize("policy", POLICIES)
def test_same_input_same_result(policy: str) -> None:
    raw = tiny_instance(Tiny(shared_share=0.5), 5)
    first, second = (solve_instance(copy.deepcopy(raw), policy, {}, "x", cpu_clock=lambda: 0.0) for _ in range(2))
    assert json.dumps(first) == json.dumps(second)
