"""Jobs that may use certain nodes only: honoured by every policy, told anew, kept over a restart."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trainmaster.engine.engine import Engine
from trainmaster.engine.persistence import restore, stored_state_of
from trainmaster.engine.queries import Explainer
from trainmaster.engine.records import Settings
from trainmaster.estimate.declared import DeclaredSpeeds
from trainmaster.model import event as ev
from trainmaster.model.command import Launch
from trainmaster.model.job import JobId
from trainmaster.policies.registry import create, entries
from trainmaster.testing.builders import a_cluster, a_job


def an_engine(policy: str = "fifo") -> Engine:
    return Engine(a_cluster("v100=16x4"), create(policy), DeclaredSpeeds(), Settings())


def nodes_of(commands: list, job_id: str) -> set[int]:
    return {
        part.node
        for command in commands
        if isinstance(command, Launch) and command.job_id == job_id
        for part in command.allocation.parts
    }


@pytest.mark.parametrize("policy", [entry.name for entry in entries()])
def test_every_policy_stays_within_the_set(policy: str) -> None:
    engine = an_engine(policy)
    job = replace(a_job("a", gpus=4, seconds=60.0), node_set="east")
    free = a_job("b", gpus=4, seconds=60.0)
    commands = engine.step(0, ev.NodeSet("east", frozenset({2, 3})), ev.JobSubmitted(job), ev.JobSubmitted(free))
    now_ms = 0
    for _ in range(50):
        if nodes_of(commands, "a") and nodes_of(commands, "b"):
            break
        now_ms = max(now_ms + 1, min(engine.next_wake_ms, now_ms + 400_000))
        commands += engine.step(now_ms, ev.Woken())
    assert engine.plans_refused == 0, engine.notes
    assert nodes_of(commands, "a") <= {2, 3}
    ended = {end.spec.id for end in engine.drain_ended()}
    assert nodes_of(commands, "a") or "a" in ended


def test_a_set_without_nodes_lets_the_job_wait_and_a_change_starts_it() -> None:
    engine = an_engine()
    engine.step(0, ev.NodeSet("east", frozenset()), ev.JobSubmitted(replace(a_job("a", gpus=2), node_set="east")))
    reason = Explainer(engine).reason("a")
    assert reason is not None
    assert nodes_of(engine.step(1, ev.NodeSet("east", frozenset({1}))), "a") == {1}


def test_who_waits_for_certain_nodes_holds_up_only_those_who_want_the_same() -> None:
    engine = an_engine()
    jobs = [
        replace(a_job("nowhere"), node_set="none"), replace(a_job("runs", gpus=4), node_set="east"),
        replace(a_job("waits"), node_set="east"), replace(a_job("west"), node_set="west"), a_job("any"),
    ]  # fmt: skip
    sets = [ev.NodeSet("none", frozenset()), ev.NodeSet("east", frozenset({0})), ev.NodeSet("west", frozenset({1}))]
    commands = engine.step(0, *sets, *map(ev.JobSubmitted, jobs))
    assert {command.job_id for command in commands} == {"runs", "west"}
    reasons = [Explainer(engine).reason(name) for name in ("nowhere", "waits", "any")]
    told = [(reason.why.name, reason.behind) for reason in reasons if reason is not None]
    assert told == [("NO_NODE", None), ("CAPACITY", None), ("BEHIND", "waits")]


def test_what_runs_stays_where_it_is() -> None:
    engine = an_engine()
    commands = engine.step(
        0, ev.NodeSet("east", frozenset({1})), ev.JobSubmitted(replace(a_job("a", gpus=2), node_set="east"))
    )
    assert nodes_of(commands, "a") == {1}
    engine.step(1, ev.Started(JobId("a"), 1, 0.0, 1))
    assert engine.step(2, ev.NodeSet("east", frozenset({3}))) == []


def test_sets_survive_a_restart() -> None:
    engine = an_engine()
    engine.step(0, ev.NodeSet("east", frozenset({3})))
    again = restore(stored_state_of(engine), engine.cluster, create("fifo"), DeclaredSpeeds(), Settings())
    commands = again.step(1, ev.JobSubmitted(replace(a_job("a", gpus=2), node_set="east")))
    assert nodes_of(commands, "a") == {3}


def test_new_nodes_come_while_jobs_run() -> None:
    engine = an_engine()
    engine.step(0, ev.JobSubmitted(a_job("a", gpus=16)))
    engine.step(1, ev.Started(JobId("a"), 1, 0.0, 1), ev.JobSubmitted(a_job("b", gpus=4)))
    larger = a_cluster("v100=20x4")
    assert [node.id for node in larger.nodes[:4]] == [node.id for node in engine.cluster.nodes]
    commands = engine.step(2, ev.ClusterGrew(larger))
    assert nodes_of(commands, "b") == {4}


@pytest.mark.parametrize("policy", [entry.name for entry in entries()])
def test_every_policy_goes_on_with_new_nodes(policy: str) -> None:
    engine = an_engine(policy)
    specs = [a_job(f"j{k}", gpus=4, seconds=600.0) for k in range(8)]
    commands = engine.step(0, *(ev.JobSubmitted(spec) for spec in specs))
    now_ms = 0
    running: dict[str, int] = {}
    for turn in range(40):
        reports: list[ev.Event] = []
        for command in commands:
            if isinstance(command, Launch):
                running[command.job_id] = command.generation
                reports.append(ev.Started(command.job_id, command.generation, 0.0, now_ms))
            elif type(command).__name__ == "Stop":
                running.pop(command.job_id, None)
                reports.append(ev.Stopped(command.job_id, command.generation, 0.0))
            else:
                reports.append(ev.Resized(command.job_id, command.generation, command.seq, 0.0, now_ms))
        if turn == 5:
            reports.append(ev.ClusterGrew(a_cluster("v100=32x4")))
        now_ms = max(now_ms + 1, min(engine.next_wake_ms, now_ms + 60_000))
        commands = engine.step(now_ms, *reports)
    assert engine.plans_refused == 0, engine.notes
    ended = {end.spec.id for end in engine.drain_ended()}
    assert len(running) + len(ended) >= 5, (running, ended)
