"""FIFO or fairness inside a team: the same division in a simulation, in the engine and in `solve`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trainmaster.model.errors import InputError
from trainmaster.model.job import JobId
from trainmaster.policies.gavel.instance import solve_instance
from trainmaster.policies.registry import create
from trainmaster.sim.experiment import Experiment, prepare, run
from trainmaster.testing.builders import a_job, a_view

TRACE = """job_id,submit_s,gpus,duration_s,vc
r0,0,1,7200,red
r1,0,1,7200,red
r2,0,1,7200,red
b0,0,1,7200,blue
"""


def finish_s(folder: Path, policy: str, teams: str = "") -> dict[str, float]:
    """When each of three jobs of team red ends that share one of two GPUs."""
    (folder / "trace.csv").write_text(TRACE)
    (folder / "cluster.yaml").write_text(f"nodes: [{{accelerator: v100, gpus: 2}}]\n{teams}")
    wanted = Experiment(str(folder / "trace.csv"), policy, str(folder / "cluster.yaml"), round_s=60)
    jobs = run(prepare(wanted)).jobs
    return dict(zip(jobs["job_id"], jobs["finish_s"], strict=True))


def test_fifo_inside_a_team_in_a_simulation(tmp_path: Path) -> None:
    never = "gavel-hierarchical:patience_s=0"
    fair = finish_s(tmp_path, never)
    fifo = finish_s(tmp_path, never, "teams: {red: {policy: fifo}}\n")
    assert fair == finish_s(tmp_path, never, "teams: {red: {weight: 1}}\n")
    assert fair["r0"] > 14_000, "the three take turns on one GPU"
    assert fifo["r0"] == pytest.approx(7200, abs=120), "the first is served first"
    assert fifo["r1"] >= fifo["r0"] + 7200, "and who comes next has waited"
    assert finish_s(tmp_path, f"{never},inside=fifo") == fifo, "of teams of which it is not said"
    said = "teams: {red: {policy: fairness}}\n"
    assert finish_s(tmp_path, f"{never},inside=fifo", said) == fair


def test_weights_of_teams_in_a_simulation(tmp_path: Path) -> None:
    heavy = finish_s(tmp_path, "gavel-hierarchical", "teams: {blue: {weight: 1}, red: {weight: 100}}\n")
    assert heavy["b0"] > finish_s(tmp_path, "gavel-hierarchical")["b0"] + 600


@pytest.mark.parametrize("inside", ["fairness", "fifo"])
def test_shares_are_those_of_solve(inside: str) -> None:
    """A team with weight 2 and three jobs, one with a single job, on two GPUs."""
    jobs = [a_job(f"r{k}", submit_s=k, entity="red") for k in range(3)] + [a_job("b0", submit_s=3, entity="blue")]
    view = a_view(
        jobs, "v100=2", now_s=10, row_order=[2, 3, 0, 1],
        entity_weights={"red": 2.0}, entity_policies={"red": inside},
    )  # fmt: skip
    memo = create("gavel-hierarchical").decide(view).memo
    shares = dict(zip(view.jobs.ids, memo.columns["share"][:, 0].tolist(), strict=True))
    instance: dict[str, Any] = {
        "kind": "allocation",
        "accelerators": {"v100": {"count": 2}},
        "jobs": [{"id": job.id, "throughput": {"v100": 1.0}, "entity": job.entity} for job in jobs],
        "entities": [{"id": "red", "weight": 2, "policy": inside}, {"id": "blue"}],
    }
    solved = solve_instance(instance, "gavel-hierarchical")["allocation"]
    assert shares == pytest.approx({job: share.get("v100", 0.0) for job, share in solved.items()}, rel=1e-6, abs=1e-9)
    assert shares[JobId("r2")] == pytest.approx(4 / 9 if inside == "fairness" else 0.0, abs=1e-6)


def test_the_shares_follow_when_a_team_changes() -> None:
    """Not after the half hour that new shares otherwise wait."""
    jobs = [a_job(f"r{k}", submit_s=k, entity="red") for k in range(3)]
    policy = create("gavel-hierarchical")
    memo = policy.decide(a_view(jobs, "v100=1", now_s=10)).memo
    told = a_view(jobs, "v100=1", now_s=400, entity_policies={"red": "fifo"}, memo=memo)
    assert policy.decide(told).memo.columns["share"][:, 0] == pytest.approx([1.0, 0.0, 0.0])
    same = a_view(jobs, "v100=1", now_s=400, memo=memo)
    assert policy.decide(same).memo.columns["share"][:, 0] == pytest.approx([1 / 3] * 3)


@pytest.mark.parametrize("teams", ["[red]", "{red: 2}", "{red: {policy: srtf}}", "{red: {weight: 0}}"])
def test_what_is_wrong_with_a_team(tmp_path: Path, teams: str) -> None:
    with pytest.raises(InputError, match="invalid team"):
        finish_s(tmp_path, "fifo", f"teams: {teams}\n")


def test_an_unknown_policy_inside_teams() -> None:
    with pytest.raises(InputError, match="fairness or fifo"):
        create("gavel-hierarchical:inside=srtf")
