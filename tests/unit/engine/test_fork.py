"""A fork is the same engine again, and neither sees what becomes of the other."""

from __future__ import annotations

import numpy as np
import pytest

from trainmaster.engine import queries
from trainmaster.engine.engine import Engine, Settings
from trainmaster.engine.fork import fork
from trainmaster.engine.persistence import stored_state_of
from trainmaster.estimate.declared import DeclaredSpeeds
from trainmaster.model import event as ev
from trainmaster.model.cluster import parse_cluster
from trainmaster.model.command import Launch
from trainmaster.model.job import JobId, JobSpec
from trainmaster.policies.registry import create


def busy_engine(policy: str) -> Engine:
    """Jobs run, wait, hold each other up and are held back; a node is used by others, one is down."""
    engine = Engine(parse_cluster("v100=16x4,k80=8x4"), create(policy), DeclaredSpeeds(), Settings(round_ms=60_000))
    rng = np.random.Generator(np.random.PCG64(3))
    specs = [
        JobSpec(JobId(f"j{k}"), 0, workers_min=1, workers_max=(most := int(rng.choice([1, 2, 6]))), workers_ref=most,
                work_total=float(rng.lognormal(6, 1)), steps_per_s={"v100": 1.0, "k80": 0.3}, entity=f"team-{k % 3}",
                after=(JobId("j0"),) if k == 7 else ())
        for k in range(90)
    ]  # fmt: skip
    events = (ev.EntityChanged("team-1", 2.0, 5_000, "fifo"), ev.NodeUsed(2, 6, 0, 0))
    commands = engine.step(0, *events, *(ev.JobSubmitted(spec) for spec in specs))
    launched = [c for c in commands if isinstance(c, Launch)]
    engine.step(5_000, *(ev.Started(c.job_id, c.generation, 0.0, 5_000) for c in launched[:-1]))
    engine.step(9_000, ev.NodeLost(0, 4_000, confirmed=False), ev.JobPaused(JobId("j60")))
    return engine


@pytest.mark.parametrize("policy", ["fifo", "tiresias", "gavel-max-min"])
def test_a_fork_is_the_same_engine(policy: str) -> None:
    engine = busy_engine(policy)
    copy = fork(engine, queries.n_active(engine))
    assert repr(stored_state_of(copy)) == repr(stored_state_of(engine))
    assert copy.next_wake_ms == engine.next_wake_ms
    assert copy.n_waiting == engine.n_waiting


@pytest.mark.parametrize("policy", ["fifo", "tiresias", "gavel-max-min"])
def test_what_becomes_of_a_fork_does_not_touch_the_engine(policy: str) -> None:
    engine = busy_engine(policy)
    copy, before = fork(engine, queries.n_active(engine)), repr(stored_state_of(engine))
    events = (
        *(ev.JobCancelled(spec.id) for spec in queries.active_specs(engine)[::3]),
        *(ev.JobSubmitted(JobSpec(JobId(f"new{k}"), 9_000, work_total=5.0, entity="new")) for k in range(200)),
        ev.NodeUsed(1, 3, 0, 0),
        ev.EntityChanged("team-2", quota_milli=1_000),
    )
    ahead = [repr(command) for command in copy.step(60_000, *events)]
    assert repr(stored_state_of(engine)) == before
    assert [repr(command) for command in engine.step(60_000, *events)] == ahead
    assert repr(stored_state_of(engine)) == repr(stored_state_of(copy))
