"""A hand-driven engine for tests: events in, commands out, with a policy that does what it is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from trainmaster.engine.engine import Engine, Settings
from trainmaster.estimate.declared import DeclaredSpeeds
from trainmaster.model import event as ev
from trainmaster.model.cluster import Cluster, Node, cluster_of
from trainmaster.model.command import Command
from trainmaster.model.job import JobId, JobSpec, Phase
from trainmaster.model.plan import Plan
from trainmaster.model.plan_builder import PlanBuilder
from trainmaster.model.snapshot import Snapshot
from trainmaster.policies.fifo import Fifo

TWO_NODES = cluster_of([Node("n0", "v100", 2), Node("n1", "v100", 2)])


@dataclass
class Told:
    """A policy that places what waits unless it is told something else for the next decision."""

    next: Callable[[Snapshot, PlanBuilder], Plan | None] | None = None
    views: list[Snapshot] = field(default_factory=list)

    def decide(self, view: Snapshot) -> Plan:
        self.views.append(view)
        if self.next is not None:
            builder = view.draft()
            chosen, self.next = self.next, None
            return chosen(view, builder) or builder.plan()
        return Fifo(backfill=True).decide(view)


def new_engine(cluster: Cluster = TWO_NODES, **settings: Any) -> tuple[Engine, Told]:
    policy = Told()
    return Engine(cluster, policy, DeclaredSpeeds(), Settings(**settings)), policy


def job(name: str = "a", workers: int = 1, **fields: Any) -> JobSpec:
    sizes = {"workers_min": workers, "workers_max": workers, "workers_ref": workers}
    return JobSpec(JobId(name), work_total=100.0, **{**sizes, **fields})


def phase_of(engine: Engine, name: str) -> Phase:
    return Phase(int(engine.columns.ints["phase"][engine.columns.job_index_of[JobId(name)]]))


def only(commands: list[Command]) -> Command:
    assert len(commands) == 1, commands
    return commands[0]


def running(engine: Engine, spec: JobSpec, now_ms: int = 0) -> Command:
    """Submit a job and let it start; returns its launch."""
    launch = only(engine.step(now_ms, ev.JobSubmitted(spec)))
    engine.step(now_ms, ev.Started(spec.id, launch.generation, 0.0, now_ms))
    assert phase_of(engine, spec.id) == Phase.RUNNING
    return launch
