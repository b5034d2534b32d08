"""Advice that users were given and that did not help is not given any more; what helps is."""

from __future__ import annotations

from dataclasses import replace

from trainmaster.engine.engine import Engine, Settings
from trainmaster.engine.queries import Explainer
from trainmaster.estimate.declared import DeclaredSpeeds
from trainmaster.forecast.remedies import LETS_PASS, remedies
from trainmaster.model import event as ev
from trainmaster.model.command import Launch
from trainmaster.model.job import JobId, JobSpec
from trainmaster.policies.registry import create
from trainmaster.testing.builders import a_cluster, a_job


def engine_with(
    *jobs: JobSpec, policy: str = "fifo", cluster: str = "v100:1x8", told: tuple[ev.Event, ...] = ()
) -> Engine:
    engine = Engine(a_cluster(cluster), create(policy), DeclaredSpeeds(), Settings())
    commands = engine.step(0, *told, *(ev.JobSubmitted(job) for job in jobs))
    launches = [command for command in commands if isinstance(command, Launch)]
    engine.step(0, *(ev.Started(launch.job_id, launch.generation, 0.0, 0) for launch in launches))
    return engine


def advice(engine: Engine, job_id: str) -> list[str]:
    return [remedy.text for remedy in remedies(engine, job_id, 1_000)]


def test_a_policy_that_lets_jobs_pass_is_advised_only_where_it_would_start_the_job() -> None:
    room = engine_with(a_job("runs", gpus=6), a_job("first", gpus=4), a_job("x"))
    assert f"use a policy that lets small jobs pass: trainmaster policy {LETS_PASS}" in advice(room, "x")
    assert "pause first, which waits ahead of it" in advice(room, "x")
    full = engine_with(a_job("runs", gpus=8), a_job("first", gpus=4), a_job("x"))
    assert advice(full, "x") == ["wait for runs to end, or pause it"]


def test_nobody_waits_for_other_jobs_of_a_team_whose_quota_can_never_hold_the_job() -> None:
    quota = (ev.EntityChanged("red", quota_milli=2_000),)
    jobs = [replace(a_job(name, gpus=gpus), entity="red") for name, gpus in (("small", 1), ("x", 4))]
    told = advice(engine_with(*jobs, told=quota), "x")
    assert told == ["resize it: there is room for 1 worker now", "raise the quota of red to 5 GPUs"]
    jobs = [replace(a_job(name, gpus=2), entity="red") for name in ("runs", "x")]
    assert "wait for runs to end, or pause it" in advice(engine_with(*jobs, told=quota), "x")


def test_only_jobs_on_nodes_that_the_job_may_use_are_said_to_hold_them() -> None:
    pinned = replace(a_job("x", gpus=4), node_set="mine")
    jobs = [a_job("elsewhere", gpus=4), a_job("rival", gpus=4), pinned]
    engine = engine_with(*jobs, cluster="v100:2x4", told=(ev.NodeSet("mine", frozenset({1})),))
    reason = Explainer(engine).reason("x")
    assert reason is not None
    assert (reason.holders, reason.free) == ((("rival", 4.0),), {"v100": 0.0})
    assert advice(engine, "x")[-1] == "wait for rival to end, or pause it"


def test_jobs_that_would_not_help_are_left_out_of_those_to_wait_for() -> None:
    jobs = [
        a_job("soon", types=("k80",), seconds=5.0),
        a_job("rival", gpus=8, types=("v100",)),
        a_job("x", types=("v100",)),
    ]
    assert advice(engine_with(*jobs, cluster="v100:1x8,k80:1x1"), "x") == ["wait for rival to end, or pause it"]


def test_another_type_is_advised_where_it_is_free() -> None:
    jobs = [a_job("rival", gpus=8, types=("v100",)), a_job("x", gpus=2, types=("v100",))]
    told = "submit it again without --gpu-type v100: other GPUs are free"
    assert told in advice(engine_with(*jobs, cluster="v100:1x8,k80:1x2"), "x")
    assert told not in advice(engine_with(*jobs, cluster="v100:1x8,k80:1x1"), "x")


def test_a_paused_job_is_told_what_it_takes_beside_resuming_it() -> None:
    engine = engine_with(a_job("x", gpus=8))
    engine.step(1, ev.JobPaused(JobId("x")))
    engine.step(2, ev.Stopped(JobId("x"), 1, 0.0))
    assert advice(engine, "x") == ["resume it"]
    launch = engine.step(3, ev.JobSubmitted(a_job("rival", gpus=6)))[0]
    engine.step(4, ev.Started(launch.job_id, launch.generation, 0.0, 4))
    assert "resume it, and wait for rival to end, or pause it" in advice(engine, "x")
    assert "resume it" not in advice(engine, "x")


def test_a_job_that_waits_for_another_and_for_room_is_told_both() -> None:
    jobs = [a_job("first", gpus=2), a_job("rival", gpus=6), replace(a_job("x", gpus=8), after=(JobId("first"),))]
    assert advice(engine_with(*jobs), "x") == ["wait for first, rival to end"]


def test_a_node_that_is_down_is_asked_back_if_that_starts_the_job() -> None:
    engine = engine_with(a_job("runs", gpus=4), cluster="v100:2x4")
    down = next(k for k in (0, 1) if engine.planned.device_milli[k].sum())
    engine.step(1, ev.NodeLost(down, 1, confirmed=True), ev.JobSubmitted(a_job("x", gpus=4)))
    assert f"bring back v100-{down}" in advice(engine, "x")


def test_the_time_for_advice_is_bounded() -> None:
    engine = engine_with(a_job("runs", gpus=8), a_job("x", gpus=4))
    assert remedies(engine, "x", 1_000)
    assert remedies(engine, "x", 1_000, limit_s=0.0) == []
