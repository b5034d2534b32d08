"""Queries: what other packages may ask of an engine, and that asking changes nothing."""

from __future__ import annotations

import copy
from dataclasses import replace

from trainmaster.engine import queries
from trainmaster.engine.engine import Engine, Settings
from trainmaster.engine.persistence import stored_state_of
from trainmaster.engine.queries import Explainer
from trainmaster.estimate.declared import DeclaredSpeeds
from trainmaster.model import event as ev
from trainmaster.model.command import Launch
from trainmaster.model.job import JobId, JobSpec, Phase
from trainmaster.model.reason_text import sentence
from trainmaster.model.reasons import Why
from trainmaster.policies.fifo import Fifo
from trainmaster.testing.builders import a_cluster, a_job


def engine_with(*jobs: JobSpec, cluster: str = "v100=8x8", backfill: bool = True) -> Engine:
    """All submitted at 0; what is launched runs from then on."""
    engine = Engine(a_cluster(cluster), Fifo(backfill=backfill), DeclaredSpeeds(), Settings())
    commands = engine.step(0, *(ev.JobSubmitted(job) for job in jobs))
    launches = [command for command in commands if isinstance(command, Launch)]
    engine.step(0, *(ev.Started(launch.job_id, launch.generation, 0.0, 0) for launch in launches))
    return engine


def test_capacity_names_holders_and_the_smallest_change() -> None:
    types = ("v100", "k80")
    jobs = [a_job(name, gpus=n, types=types) for name, n in (("big", 6), ("small", 1), ("x", 4))]
    reason = Explainer(engine_with(*jobs, cluster="k80=1,v100=8")).reason("x")
    assert reason is not None
    assert (reason.why, reason.needs_gpus) == (Why.CAPACITY, 4)
    assert reason.holders == (("big", 6.0), ("small", 1.0))
    assert reason.missing_gpus == 4 - max(reason.free.values())
    text = sentence(reason)
    assert "needs 4 GPUs" in text
    assert "big (6)" in text
    assert f"short of {reason.missing_gpus:g} GPUs of v100" in text


def test_holders_on_types_that_do_not_help_are_left_out() -> None:
    elsewhere, rival, x = (
        a_job(name, gpus=1, types=types) for name, types in (("e", ("k80",)), ("rival", ("v100",)), ("x", ("v100",)))
    )
    reason = Explainer(engine_with(elsewhere, rival, x, cluster="k80=1,v100=1")).reason("x")
    assert reason is not None
    assert reason.holders == (("rival", 1.0),)
    assert set(reason.free) == {"v100"}


def test_behind_names_the_job_ahead() -> None:
    engine = engine_with(a_job("runs", gpus=4), a_job("first", gpus=6), a_job("second"), backfill=False)
    reason = Explainer(engine).reason("second")
    assert reason is not None
    assert reason.behind == "first"
    assert "behind first" in sentence(reason)


def test_a_running_or_unknown_job_has_no_reason() -> None:
    explainer = Explainer(engine_with(a_job("a")))
    assert explainer.reason("a") is None
    assert explainer.reason("nobody") is None


def test_states_of_running_and_waiting_jobs() -> None:
    engine = engine_with(a_job("a", gpus=6), a_job("b", gpus=4))
    b, a = queries.job_states(engine, ["b", "a"], 5_000)
    assert (a.phase, b.phase) == (Phase.RUNNING, Phase.PENDING)
    assert a.work_done == a.rate * 5.0
    assert a.work_recorded == 0.0
    assert a.occupied == a.allocation is not None
    assert b.allocation is b.occupied is None
    assert queries.queue_positions(engine) == {"b": 1}
    assert queries.phase_counts(engine) == {Phase.RUNNING: 1, Phase.PENDING: 1}
    assert queries.waiting_jobs(engine).ids == ["b"]
    (node,) = queries.node_states(engine)
    assert (node.up, node.free_gpus, node.jobs) == (True, 2.0, ("a",))
    assert queries.nodes_in_use(engine) == {0}


def test_a_paused_job_is_paused_before_its_processes_have_stopped() -> None:
    engine = engine_with(a_job("a"))
    assert not queries.is_paused(engine, "a")
    engine.step(1, ev.JobPaused(JobId("a")))
    assert queries.phase_of(engine, "a") == Phase.STOPPING
    assert queries.is_paused(engine, "a")


def test_teams_are_counted() -> None:
    red = [replace(a_job(name, gpus=6), entity="red") for name in "ab"]
    use = queries.team_use(engine_with(*red))
    assert use["red"] == queries.TeamUse(jobs=2, gpu_milli=6_000)


def test_queries_change_nothing() -> None:
    engine = engine_with(a_job("a", gpus=6), a_job("b", gpus=4))
    before = copy.deepcopy(stored_state_of(engine))
    ids = [spec.id for spec in queries.active_specs(engine)]
    queries.job_states(engine, ids, 60_000)
    queries.status_keys(engine, ids)
    Explainer(engine).reason("b")
    assert stored_state_of(engine) == before


def test_a_job_that_waits_for_another_is_held_up_by_nobody_else() -> None:
    engine = engine_with(a_job("unrelated"), a_job("first"), replace(a_job("x"), after=(JobId("first"),)))
    reason = Explainer(engine).reason("x")
    assert reason is not None
    assert reason.holders == ()
