"""What a service hands to the process that looks ahead: where its store is, and what the store does not hold.

The process reads the jobs from the store itself, so that asking costs the service almost nothing however long
its queue is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from trainmaster.estimate.declared import DeclaredSpeeds
from trainmaster.estimate.likeness import LIKE_IT
from trainmaster.estimate.profiles import JobProfiles
from trainmaster.estimate.speeds.knowledge import Knowledge
from trainmaster.estimate.speeds.learned import MEASURED_SIGMA, LearningEstimator, Speeds, basis_of, workers_per_node
from trainmaster.forecast.arrivals import Arrivals
from trainmaster.forecast.situation import Belief, Costs, Situation, from_json, to_json
from trainmaster.model.cluster import Cluster
from trainmaster.model.codec import spec_from_json, spec_to_json
from trainmaster.model.job import JobSpec
from trainmaster.stores.sqlite import read_active, read_recent

RECENT_JOBS = 200
"""Ended jobs that tell of the pace of arrivals."""


def question(
    situation: Situation,
    database: Path,
    profiles: JobProfiles,
    knowledge: Knowledge,
    newcomers: Sequence[JobSpec] = (),
) -> dict[str, Any]:
    """`situation` without jobs; its beliefs are those about jobs that have measured something. `newcomers` are jobs
    that have not been submitted."""
    return {
        "situation": to_json(situation),
        "database": str(database),
        "book": profiles.to_json(),
        "speeds": knowledge.to_json(),
        "newcomers": [spec_to_json(spec) for spec in newcomers],
    }


def costs_of(profiles: JobProfiles, presumed_ms: int = 0) -> Costs:
    """As measured; a launch takes as long as is presumed until one has been measured."""
    launch_ms = profiles.cost_ms("launch") or presumed_ms
    return Costs(
        launch_ms=launch_ms,
        restart_ms=max(profiles.cost_ms("restart"), launch_ms),
        resize_ms=profiles.cost_ms("resize"),
        stop_ms=profiles.cost_ms("stop"),
        exit_ms=profiles.cost_ms("exit"),
    )


def _estimator(asked: Mapping[str, Any]) -> LearningEstimator:
    known = Knowledge.from_json(asked.get("speeds", {}))
    return LearningEstimator(DeclaredSpeeds(), JobProfiles.from_json(asked["book"]), known)


def newcomers_of(asked: Mapping[str, Any], cluster: Cluster) -> list[JobSpec]:
    """The jobs that are not there yet, as fast as they are believed to be."""
    estimator = _estimator(asked)
    found = []
    for data in asked.get("newcomers", ()):
        spec = spec_from_json(data)
        found_speeds = estimator.speeds(spec, cluster.types, workers_per_node(spec, cluster))
        here, spread = (
            dict(zip(cluster.types, table.tolist(), strict=True)) for table in (found_speeds.here, found_speeds.spread)
        )
        found.append(replace(spec, steps_per_s=_usable(here), steps_per_s_spread=_usable(spread)))
    return found


def _usable(speeds: Mapping[str, float]) -> dict[str, float]:
    return {name: speed for name, speed in speeds.items() if speed > 0}


def belief_of(estimator: LearningEstimator, spec: JobSpec, cluster: Cluster, own: Speeds | None = None) -> Belief:
    """What is expected of a job, and by what; `own`: the speeds that it has measured itself."""
    types = cluster.types
    speeds = own or estimator.speeds(spec, types, workers_per_node(spec, cluster))
    fastest = max(float(speeds.here.max(initial=0.0)), 1e-9)
    table = None if own else (*speeds.here.tolist(), *speeds.spread.tolist())
    if spec.work_total is None:
        work = estimator.expected_work(spec, types, speeds)
        if work is None:
            return Belief(speeds.sigma, speeds=table, known=False)
        # Where the run time is what is known, the speed adds no doubt.
        sigma = MEASURED_SIGMA if work.timed and not own else speeds.sigma
        return Belief(sigma, (work.median, work.sigma), table, work.basis)
    seconds = estimator.profiles.seconds_of(spec, types)
    silent = seconds is not None and seconds.text == LIKE_IT and not (own or speeds.jobs)
    if speeds.known and not silent:
        return Belief(speeds.sigma, None, table, basis_of(speeds))
    if seconds is None:
        return Belief(speeds.sigma, speeds=table, known=False)
    faster = spec.work_total / seconds.median / fastest
    return Belief(seconds.sigma, None, table and tuple(speed * faster for speed in table), basis_of(seconds))


def _own_speeds(record: Mapping[str, Any], sigma: float) -> Speeds:
    """As the engine has them of a job that measures."""
    return Speeds(np.array(record["throughput"]), np.array(record["throughput_spread"]), sigma, known=True)


def situation_of(asked: Mapping[str, Any]) -> Situation:
    """The whole situation, with the store's jobs and a belief about each. Raises `StoreError`, `InputError`."""
    known = from_json(asked["situation"])
    newcomers = [spec_from_json(data) for data in asked.get("newcomers", ())]
    stored_state = read_active(Path(asked["database"]), {name for spec in newcomers for name in spec.after})
    estimator = _estimator(asked)
    profiles = estimator.profiles
    beliefs: dict[str, Belief] = {}
    specs = [spec_from_json(record["spec"]) for record in stored_state.jobs.values()]
    for spec in (*specs, *newcomers):
        measured, record = known.beliefs.get(spec.id), stored_state.jobs.get(spec.id)
        own = None if measured is None or record is None else _own_speeds(record, measured.sigma)
        beliefs[spec.id] = belief_of(estimator, spec, known.cluster, own)
    # A commit later than the question belongs to the image: time does not run backwards.
    now_ms = max(known.now_ms, int((stored_state.meta or {}).get("now_ms", 0)))
    recent = [*specs, *read_recent(Path(asked["database"]), RECENT_JOBS)]
    return replace(
        known,
        now_ms=now_ms,
        stored_state=stored_state,
        beliefs=beliefs,
        costs=costs_of(profiles, known.settings.restart_cost_ms),
        arrivals=Arrivals.recent(recent, now_ms),
    )
