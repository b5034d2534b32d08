"""Jobs that wait for others, and teams with quotas: held back before any policy sees them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from trainmaster.engine.engine import Engine, Settings
from trainmaster.engine.persistence import Recorder, job_record, meta_record, restore
from trainmaster.engine.queries import Explainer
from trainmaster.engine.records import Ended
from trainmaster.estimate.declared import DeclaredSpeeds
from trainmaster.model import event as ev
from trainmaster.model.cluster import parse_cluster
from trainmaster.model.command import Launch
from trainmaster.model.job import JobId, JobSpec, Phase
from trainmaster.model.reason_text import sentence
from trainmaster.model.reasons import Why
from trainmaster.policies.fifo import Fifo
from trainmaster.policies.registry import create
from trainmaster.stores.memory import MemoryStore

CLUSTER = parse_cluster("v100=8x8")


def new() -> Engine:
    return Engine(CLUSTER, Fifo(backfill=True), DeclaredSpeeds(), Settings())


def job(name: str, low: int = 1, high: int | None = None, **fields: object) -> JobSpec:
    high = low if high is None else high
    return JobSpec(JobId(name), workers_min=low, workers_max=high, workers_ref=high, work_total=10.0, **fields)  # type: ignore[arg-type]


def submit(engine: Engine, now_ms: int, *specs: JobSpec) -> list[str]:
    return launched(engine.step(now_ms, *(ev.JobSubmitted(spec) for spec in specs)))


def launched(commands: list) -> list[str]:
    return [command.job_id for command in commands if isinstance(command, Launch)]


def finish(engine: Engine, now_ms: int, name: str, code: int = 0) -> list[str]:
    job_index = engine.columns.job_index_of[JobId(name)]
    generation = int(engine.columns.ints["generation"][job_index])
    return launched(engine.step(now_ms, ev.Exited(JobId(name), generation, code, 10.0)))


def why(engine: Engine, name: str) -> Why:
    return engine.why(engine.columns.job_index_of[JobId(name)])


def ends(engine: Engine) -> dict[str, Phase]:
    return {end.spec.id: end.phase for end in engine.drain_ended()}


def test_a_job_waits_for_all_that_it_names() -> None:
    engine = new()
    after = (JobId("a"), JobId("b"))
    assert submit(engine, 0, job("a"), job("b"), job("c", after=after)) == ["a", "b"]
    assert why(engine, "c") == Why.DEPENDENCY
    reason = Explainer(engine).reason("c")
    assert reason is not None
    assert reason.details == {"after": "a, b"}
    assert finish(engine, 1, "a") == []
    assert finish(engine, 2, "b") == ["c"]


def test_what_has_finished_before_is_no_reason_to_wait() -> None:
    engine = new()
    submit(engine, 0, job("a"))
    finish(engine, 1, "a")
    assert submit(engine, 2, job("b", after=(JobId("a"),))) == ["b"]


def test_a_failed_dependency_rejects_all_that_wait_for_it_directly_or_not() -> None:
    engine = new()
    submit(engine, 0, job("a", max_attempts=1), job("b", after=(JobId("a"),)), job("c", after=(JobId("b"),)), job("d"))
    finish(engine, 1, "a", code=1)
    over: dict[str, Ended] = {end.spec.id: end for end in engine.drain_ended()}
    assert {name: end.phase for name, end in over.items()} == {
        "a": Phase.FAILED, "b": Phase.REJECTED, "c": Phase.REJECTED,
    }  # fmt: skip
    assert over["b"].rejection is not None
    assert over["b"].rejection.details == {"after": "a", "which_is": "failed"}
    assert over["c"].rejection is not None
    assert over["c"].rejection.details == {"after": "b", "which_is": "rejected"}


def test_a_paused_job_learns_on_resuming_that_it_waits_in_vain() -> None:
    engine = new()
    submit(engine, 0, job("a"), job("b", after=(JobId("a"),)))
    engine.step(1, ev.JobPaused(JobId("b")))
    engine.step(2, ev.JobCancelled(JobId("a")))
    engine.step(3, ev.Stopped(JobId("a"), 1, 0.0))
    assert ends(engine) == {"a": Phase.CANCELLED}
    engine.step(4, ev.JobResumed(JobId("b")))
    assert ends(engine) == {"b": Phase.REJECTED}


def test_a_quota_releases_in_order_of_arrival() -> None:
    engine = new()
    engine.step(0, ev.EntityChanged("red", 1.0, 4000))
    red: Any = {"entity": "red"}
    assert submit(engine, 1, job("a", 3, **red), job("b", 2, **red), job("c", 1, **red), job("d", 2)) == ["a", "d"]
    assert why(engine, "b") == why(engine, "c") == Why.QUOTA, "c would fit, but b comes first"
    reason = Explainer(engine).reason("b")
    assert reason is not None
    assert reason.details == {"entity": "red", "quota_gpus": 4.0}
    assert finish(engine, 2, "a") == ["b", "c"]


def test_a_job_above_its_teams_quota_keeps_nobody_waiting() -> None:
    engine = new()
    engine.step(0, ev.EntityChanged("red", 1.0, 2000))
    assert submit(engine, 1, job("big", 3, entity="red"), job("small", 1, entity="red")) == ["small"]
    assert launched(engine.step(2, ev.EntityChanged("red", 1.0, 4000))) == ["big"]


def test_an_elastic_job_is_cut_down_to_what_is_left_and_grows_when_there_is_more() -> None:
    engine = new()
    engine.step(0, ev.EntityChanged("red", 1.0, 5000))
    submit(engine, 1, job("a", 2, entity="red"), job("b", 1, 6, entity="red"))
    job_index = engine.columns.job_index_of[JobId("b")]
    assert int(engine.columns.ints["workers_max"][job_index]) == 3
    finish(engine, 2, "a")
    assert int(engine.columns.ints["workers_max"][job_index]) == 5
    engine.step(3, ev.EntityChanged("red", 1.0, None))
    assert int(engine.columns.ints["workers_max"][job_index]) == 6


def test_a_lowered_quota_holds_back_what_waits_and_lets_run_what_runs() -> None:
    engine = new()
    red: Any = {"entity": "red"}
    engine.step(0, ev.EntityChanged("red", 1.0, 16000))
    assert submit(engine, 1, job("a", 6, **red), job("b", 6, **red)) == ["a"]
    assert why(engine, "b") != Why.QUOTA
    assert engine.step(2, ev.EntityChanged("red", 1.0, 7000)) == []
    assert why(engine, "b") == Why.QUOTA
    assert finish(engine, 3, "a") == ["b"]


def test_weights_and_policies_of_teams_reach_the_policy() -> None:
    engine = new()
    engine.step(0, ev.EntityChanged("red", 3.0, None, "fifo"))
    view = engine.snapshot()
    assert (view.entity_weights, view.entity_policies) == ({"red": 3.0}, {"red": "fifo"})
    engine.step(1, ev.EntityChanged("red"))
    view = engine.snapshot()
    assert (view.entity_weights, view.entity_policies) == ({}, {})


LACKS = "no node can take a worker; n0: disk=ssd wanted"


@pytest.mark.parametrize("policy", ["fifo", "fifo:elastic=true", "srtf", "gavel-max-min", "deadline", "dorm"])
def test_a_job_that_no_node_can_take_waits_alone(policy: str) -> None:
    """Its demand looks possible to a policy; only the backend knows better."""
    engine = Engine(CLUSTER, create(policy), DeclaredSpeeds(), Settings())
    first = job("first", 8)
    assert engine.step(0, ev.JobSubmitted(first), ev.JobRoomChanged(first.id, LACKS)) == []
    assert submit(engine, 1, job("second", 4)) == ["second"], "nobody waits behind it"
    reason = Explainer(engine).reason("first")
    assert why(engine, "first") == Why.NO_NODE and reason is not None
    assert sentence(reason).startswith(LACKS)
    assert all(spec.id != "first" for spec in map(engine.snapshot().jobs.spec, range(1)))
    engine.step(2, ev.JobRoomChanged(first.id, ""))
    assert why(engine, "first") != Why.NO_NODE
    assert finish(engine, 3, "second") == ["first"] or launched(engine.step(engine.next_wake_ms)) == ["first"]


def test_its_place_among_others_is_that_of_its_arrival() -> None:
    engine = Engine(CLUSTER, Fifo(), DeclaredSpeeds(), Settings())
    submit(engine, 0, job("holds", 8))
    engine.step(1, ev.JobSubmitted(job("first", 8)), ev.JobRoomChanged(JobId("first"), LACKS))
    submit(engine, 2, job("later", 8))
    engine.step(3, ev.JobRoomChanged(JobId("first"), ""))
    assert finish(engine, 4, "holds") == ["first"]


def test_quotas_and_dependencies_go_on_beside_it() -> None:
    engine = new()
    red: Any = {"entity": "red"}
    engine.step(0, ev.EntityChanged("red", 1.0, 4000))
    late = job("late", 2, after=(JobId("a"),), **red)
    engine.step(1, ev.JobSubmitted(job("big", 4, **red)), ev.JobRoomChanged(JobId("big"), LACKS))
    assert submit(engine, 2, job("a", 1, **red)) == ["a"], "it takes nothing of the quota"
    engine.step(3, ev.JobSubmitted(late), ev.JobRoomChanged(late.id, LACKS))
    assert why(engine, "late") == Why.DEPENDENCY
    assert finish(engine, 4, "a") == [] and why(engine, "late") == Why.NO_NODE
    assert launched(engine.step(5, ev.JobRoomChanged(late.id, ""))) == ["late"]
    assert engine.step(6, ev.JobRoomChanged(JobId("big"), "")) == [] and why(engine, "big") == Why.QUOTA
    assert finish(engine, 7, "late") == ["big"]


def test_what_runs_goes_on_and_a_pause_changes_nothing() -> None:
    engine = new()
    submit(engine, 0, job("a"))
    engine.step(1, ev.Started(JobId("a"), 1, 0.0, 1))
    assert engine.step(2, ev.JobRoomChanged(JobId("a"), LACKS)) == []
    engine.step(3, ev.JobPaused(JobId("a")))
    engine.step(4, ev.Stopped(JobId("a"), 1, 0.0))
    assert launched(engine.step(5, ev.JobResumed(JobId("a")))) == [] and why(engine, "a") == Why.NO_NODE
    assert launched(engine.step(6, ev.JobRoomChanged(JobId("a"), ""))) == ["a"]


_ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.integers(1, 4), st.integers(0, 3), st.sampled_from(["", "red", "blue"])),
        st.tuples(st.just("finish"), st.integers(0, 11), st.integers(0, 1), st.just("")),
        st.tuples(st.just("quota"), st.integers(0, 8), st.just(0), st.sampled_from(["red", "blue"])),
        st.tuples(st.sampled_from(["pause", "resume", "cancel"]), st.integers(0, 11), st.just(0), st.just("")),
        st.tuples(st.just("range"), st.integers(0, 11), st.integers(1, 4), st.just("")),
        st.tuples(st.just("room"), st.integers(0, 11), st.just(0), st.sampled_from(["", "no such node"])),
    ),
    max_size=40,
)


@examples(max_examples=100, deadline=None, derandomize=True)
@example(actions=[("submit", 1, 0, ""), ("submit", 4, 0, ""), ("submit", 1, 3, "red"), ("quota", 0, 0, "red")])
@given(actions=_ACTIONS)
def test_never_early_never_over_quota_and_the_same_after_a_restart(actions: list[tuple[str, int, int, str]]) -> None:
    engine, store = new(), MemoryStore()
    recorder = Recorder.of_new(engine)
    finished: set[str] = set()
    lowered: set[str] = set()
    submitted: list[JobSpec] = []
    for now_ms, (kind, number, more, entity) in enumerate(actions, 1):
        name = JobId(f"job-{number}")
        event: ev.Event
        if kind == "submit":
            if len(submitted) >= 12:
                continue
            after = tuple(spec.id for spec in submitted[-more:]) if more and more < 3 else ()
            spec = job(f"job-{len(submitted)}", number, number + more, entity=entity, after=after, max_attempts=1)
            submitted.append(spec)
            event = ev.JobSubmitted(spec)
        elif kind == "quota":
            before = engine.quotas.get(entity)
            if before is None or number * 1000 < before:
                lowered.add(entity)
            event = ev.EntityChanged(entity, 1.0, number * 1000)
        elif kind == "room":
            event = ev.JobRoomChanged(name, entity)
        elif kind == "range":
            event = ev.JobRangeChanged(name, more, more + 1)
        elif kind == "finish":
            job_index = engine.columns.job_index_of.get(name)
            if job_index is None:
                continue
            event = ev.Exited(name, int(engine.columns.ints["generation"][job_index]), more, 10.0)
        else:
            event = {"pause": ev.JobPaused, "resume": ev.JobResumed, "cancel": ev.JobCancelled}[kind](name)
        twin = restore(store.load(), CLUSTER, Fifo(backfill=True), DeclaredSpeeds(), engine.settings)
        commands = engine.step(now_ms, event)
        assert engine.plans_refused == 0, engine.notes
        over = engine.drain_ended()
        finished |= {end.spec.id for end in over if end.phase == Phase.FINISHED}
        for command in commands:
            if isinstance(command, Launch):
                assert set(command.spec.after) <= finished, f"{command.job_id} starts too early"
                assert engine.columns.job_index_of[command.job_id] not in engine.no_room, "no node can take it"
        for team in ("red", "blue"):
            used = sum(
                held.gpu_milli
                for job_index, held in engine.held.items()
                if engine.columns.spec(job_index).entity == team
            )
            if team in engine.quotas and team not in lowered:
                assert used <= engine.quotas[team]
        if len(store.load().jobs) or store.load().meta:
            assert twin.step(now_ms, event) == commands
            assert _records(twin) == _records(engine)
        store.commit(recorder.changes(over))


def _records(engine: Engine) -> str:
    job_indices = engine.columns.job_index_of
    return json.dumps(
        [{name: job_record(engine, job_indices[name]) for name in sorted(job_indices)}, meta_record(engine)],
        sort_keys=True,
    )


def test_a_quota_that_goes_does_not_release_what_waits_for_others() -> None:
    engine = new()
    engine.step(0, ev.EntityChanged("red", 1.0, 4000))
    submit(engine, 1, job("a"), job("b", 1, 2, entity="red", after=(JobId("a"),)))
    engine.step(2, ev.JobRangeChanged(JobId("b"), 1, 3))
    assert engine.step(3, ev.EntityChanged("red", 1.0, None)) == []
    assert why(engine, "b") == Why.DEPENDENCY


def test_processes_that_may_live_on_count_against_the_quota() -> None:
    engine = new()
    engine.step(0, ev.EntityChanged("red", 1.0, 4000))
    submit(engine, 1, job("a", 1, 3, entity="red"))
    engine.step(2, ev.Started(JobId("a"), 1, 0.0, 2))
    engine.step(3, ev.NodeLost(0, 3, False))
    engine.step(4, ev.JobRangeChanged(JobId("a"), 1, 1))
    engine.step(5, ev.NodeJoined(0))
    assert submit(engine, 6, job("b", 2, entity="red")) == []
    assert why(engine, "b") == Why.QUOTA
