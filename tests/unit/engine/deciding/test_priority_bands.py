"""Priority bands: who goes first, who is preempted and when, what is reserved, and what jobs are told."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
from harness import TWO_NODES, Told, job, phase_of, running

from trainmaster.engine.engine import Engine, Settings
from trainmaster.engine.queries import Explainer
from trainmaster.estimate.declared import DeclaredSpeeds
from trainmaster.model import event as ev
from trainmaster.model.cluster import Node, cluster_of
from trainmaster.model.command import Command, Launch, Resize, Stop
from trainmaster.model.job import JobId, Phase
from trainmaster.model.plan import Plan
from trainmaster.model.policy import PolicyTraits
from trainmaster.model.policy_state import PolicyState
from trainmaster.model.reason_text import sentence
from trainmaster.model.reasons import Why
from trainmaster.model.snapshot import Snapshot
from trainmaster.policies.registry import create

MIN_RUN_MS = Settings().min_run_ms


def engine_of(policy: str, nodes: Any = TWO_NODES, **settings: Any) -> Engine:
    return Engine(nodes, create(policy), DeclaredSpeeds(), Settings(**settings))


def kinds(commands: list[Command]) -> list[tuple[str, str]]:
    return [(type(command).__name__, command.job_id) for command in commands]


def start(engine: Engine, now_ms: int, *names: str) -> None:
    for name in names:
        generation = int(engine.columns.ints["generation"][engine.columns.job_index_of[JobId(name)]])
        engine.step(now_ms, ev.Started(JobId(name), generation, 0.0, now_ms))


def why(engine: Engine, name: str) -> Why:
    return engine.why(engine.columns.job_index_of[JobId(name)])


@pytest.mark.parametrize("policy", ["fifo", "srtf", "las", "gavel-max-min", "oasis", "das"])
def test_the_higher_priority_starts_first_whatever_the_policy(policy: str) -> None:
    engine = engine_of(policy)
    commands = engine.step(
        0, *(ev.JobSubmitted(job(name, 2)) for name in "abc"), ev.JobSubmitted(job("d", 4, priority=1))
    )
    assert kinds(commands) == [("Launch", "d")]


def test_a_lower_band_is_preempted_after_its_minimum_run_time_and_not_before() -> None:
    engine = engine_of("fifo")
    running(engine, job("low", 4))
    assert engine.step(1_000, ev.JobSubmitted(job("high", 2, priority=5))) == []
    assert engine.wake_at_ms == MIN_RUN_MS
    assert engine.step(MIN_RUN_MS - 1, ev.Woken()) == []
    assert kinds(engine.step(MIN_RUN_MS, ev.Woken())) == [("Stop", "low")]
    launch = engine.step(MIN_RUN_MS + 10, ev.Stopped(JobId("low"), 1, 50.0))
    assert kinds(launch) == [("Launch", "high")], "what is left is too small for the other, which waits"
    assert why(engine, "low") == Why.PRIORITY


def test_a_job_that_may_not_be_preempted_ends_first_and_no_other_of_its_band_takes_its_place() -> None:
    engine = engine_of("fifo")
    running(engine, job("low", 2, preemptible=False))
    start(
        engine, 0, *(command.job_id for command in engine.step(0, ev.JobSubmitted(job("other", 2, preemptible=False))))
    )
    assert engine.step(10 * MIN_RUN_MS, ev.JobSubmitted(job("high", 4, priority=1))) == []
    assert engine.step(10 * MIN_RUN_MS + 1, ev.JobSubmitted(job("small"))) == []
    assert engine.step(10 * MIN_RUN_MS + 2, ev.Exited(JobId("low"), 1, 0, 100.0)) == [], "its place is reserved"
    assert why(engine, "small") == Why.PRIORITY
    assert "high of priority 1 comes first" in sentence(Explainer(engine).reason("small"))
    commands = engine.step(10 * MIN_RUN_MS + 3, ev.Exited(JobId("other"), 1, 0, 100.0))
    assert kinds(commands) == [("Launch", "high")]


def test_only_the_nodes_that_the_higher_job_would_use_are_reserved() -> None:
    nodes = cluster_of([Node("v", "v100", 2), Node("k", "k80", 2)])
    engine = engine_of("fifo:backfill=true", nodes)
    running(engine, job("low", 1, preemptible=False, gpu_types=("v100",)))
    high = ev.JobSubmitted(job("high", 2, priority=1, gpu_types=("v100",)))
    assert engine.step(1, high) == []
    assert engine.step(2, ev.JobSubmitted(job("there", gpu_types=("v100",)))) == []
    assert kinds(engine.step(3, ev.JobSubmitted(job("elsewhere")))) == [("Launch", "elsewhere")]


def test_free_devices_are_taken_before_any_are_taken_from_others_and_no_more_than_needed() -> None:
    engine = engine_of("fifo")
    for name in ("a", "b", "c"):
        running(engine, job(name))
    assert kinds(engine.step(MIN_RUN_MS, ev.JobSubmitted(job("free", priority=1)))) == [("Launch", "free")]
    start(engine, MIN_RUN_MS, "free")
    assert kinds(engine.step(MIN_RUN_MS, ev.JobSubmitted(job("one", priority=1)))) == [("Stop", "c")]


def test_the_lowest_band_yields_first_and_then_who_has_run_least() -> None:
    engine = engine_of("fifo")
    for at, (name, priority) in enumerate([("a", 1), ("b", 0), ("c", 0), ("d", 1)]):
        running(engine, job(name, priority=priority), now_ms=at)
    stops = engine.step(MIN_RUN_MS + 10, ev.JobSubmitted(job("high", priority=2)))
    assert kinds(stops) == [("Stop", "c")]
    assert kinds(engine.step(MIN_RUN_MS + 10, ev.JobSubmitted(job("more", priority=2)))) == [("Stop", "b")]


def test_a_gang_that_would_not_fit_anyway_preempts_nobody_and_holds_nothing_back() -> None:
    engine = engine_of("fifo")
    running(engine, job("top", 2, priority=1))
    running(engine, job("low"))
    assert engine.step(MIN_RUN_MS, ev.JobSubmitted(job("large", 4, priority=1))) == []
    assert why(engine, "large") == Why.CAPACITY
    assert kinds(engine.step(MIN_RUN_MS, ev.JobSubmitted(job("small")))) == [("Launch", "small")]


def test_equal_priorities_are_no_bands_whatever_the_number() -> None:
    engine, policy = seeing()
    engine.step(0, ev.JobSubmitted(job("a", priority=7)), ev.JobSubmitted(job("b", priority=7)))
    assert [ids for ids, _ in policy.seen] == [["a", "b"]]


def test_a_change_of_priority_takes_effect_at_once() -> None:
    engine = engine_of("fifo")
    running(engine, job("a", 4))
    engine.step(0, ev.JobSubmitted(job("b", 4)), ev.JobSubmitted(job("c", 4)))
    assert engine.step(MIN_RUN_MS, ev.JobTermsChanged(JobId("c"), priority=3)) == [
        Stop(JobId("a"), 1, 2, "preempted"),
    ]


def test_a_python_policy_sees_its_band_and_what_is_left() -> None:
    engine, policy = seeing()
    running(engine, job("high", 2, priority=1))
    policy.seen.clear()
    engine.step(0, ev.JobSubmitted(job("low")))
    assert policy.seen == [(["high"], [2.0]), (["low"], [2.0])]
    assert phase_of(engine, "low") == Phase.LAUNCHING


class Seeing(Told):
    """Notes which jobs it is shown, and how many GPUs are free."""

    seen: ClassVar[list[tuple[list[str], list[float]]]]

    def decide(self, view: Snapshot) -> Plan:
        self.seen.append((list(view.jobs.ids), view.free_gpus_by_type.tolist()))
        return super().decide(view)


def seeing(policy_class: type[Seeing] = Seeing) -> tuple[Engine, Seeing]:
    policy = policy_class()
    policy.seen = []  # type: ignore[misc]
    return Engine(TWO_NODES, policy, DeclaredSpeeds(), Settings()), policy


class Counting(Told):
    """Remembers how often it was asked, and counts for each job."""

    def decide(self, view: Snapshot) -> Plan:
        plan = super().decide(view)
        seen = view.memo.columns.get("seen", np.zeros(len(view.jobs)))
        asked = {"asked": view.memo.values.get("asked", 0) + 1, "of": view.jobs.ids}
        return Plan(view.version, plan.changes, plan.why, memo=PolicyState(asked, {"seen": seen + 1.0}))


def test_each_band_has_a_memory_of_its_own_and_the_last_one_keeps_its() -> None:
    engine = Engine(TWO_NODES, Counting(), DeclaredSpeeds(), Settings())
    running(engine, job("a", 2))
    assert engine.memo_values["asked"] == 1
    running(engine, job("b", 2, priority=1))
    bands = engine.memo_values["priority_bands"]
    assert {band: (memory["asked"], memory["of"]) for band, memory in bands.items()} == {
        "0": (2, ["a"]),
        "1": (1, ["b"]),
    }
    engine.step(3, ev.JobTermsChanged(JobId("b"), weight=2.0))
    assert [engine.memo_values["priority_bands"][band]["asked"] for band in "01"] == [3, 2]
    engine.step(5, ev.Exited(JobId("b"), 1, 0, 100.0))
    assert engine.memo_values["asked"] == 4
    assert engine.columns.memo["seen"][engine.columns.job_index_of[JobId("a")]] == 4.0


def test_a_policy_that_weighs_priorities_itself_sees_all_jobs() -> None:
    class Own(Seeing):
        traits = PolicyTraits(own_priority=True)

    engine, policy = seeing(Own)
    engine.step(0, ev.JobSubmitted(job("a")), ev.JobSubmitted(job("b", priority=1)))
    assert [ids for ids, _ in policy.seen] == [["a", "b"]]


def test_an_elastic_gang_of_a_lower_band_shrinks_instead_of_stopping() -> None:
    engine = engine_of("fifo", cluster_of([Node("n", "v100", 4)]), elastic_fill=True)
    elastic = job("low", workers_min=1, workers_max=4, workers_ref=4)
    running(engine, elastic)
    commands = engine.step(MIN_RUN_MS, ev.JobSubmitted(job("high", 2, priority=1)))
    assert [type(command) for command in commands] == [Resize]
    assert commands[0].allocation.workers == 2  # type: ignore[union-attr]


def test_idle_gpus_beyond_its_wish_are_taken_from_a_higher_band_and_no_more() -> None:
    engine = engine_of("fifo", cluster_of([Node("n", "v100", 4)]), elastic_fill=True)
    high = job("high", workers_min=1, workers_max=4, workers_ref=2, priority=1)
    running(engine, high)
    [grown] = [c for c in engine.step(10, ev.Woken(), ev.JobTermsChanged(high.id, weight=2.0)) if isinstance(c, Resize)]
    engine.step(20, ev.Resized(high.id, 1, grown.seq, 0.0, 20))
    [shrunk] = engine.step(30, ev.JobSubmitted(job("low", 2)))
    assert isinstance(shrunk, Resize)
    assert shrunk.allocation.workers == 2
    assert kinds(engine.step(40, ev.Resized(high.id, 1, shrunk.seq, 0.0, 40))) == [("Launch", "low")]
    assert engine.step(50, ev.JobSubmitted(job("third"))) == []


def test_the_reason_names_the_band_that_has_the_gpus() -> None:
    engine = engine_of("srtf")
    running(engine, job("high", 4, priority=5))
    engine.step(0, ev.JobSubmitted(job("low", 2)))
    reason = Explainer(engine).reason("low")
    assert reason is not None and reason.why == Why.PRIORITY
    assert sentence(reason) == "needs 2 GPUs; jobs of priority 5 come first; held by high (4)"


def test_launches_are_what_the_band_was_given() -> None:
    engine = engine_of("fifo")
    commands = engine.step(0, ev.JobSubmitted(job("a", 4)), ev.JobSubmitted(job("b", 2, priority=-1)))
    assert [command.job_id for command in commands if isinstance(command, Launch)] == ["a"], "below zero is a band too"
