"""The jobs of a run as the core's columns: for the engine that will meet them, and for the world that knows how they
behave."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from trainmaster.core.arrays import Floats, Ints
from trainmaster.core.sim.arrivals import Arrivals
from trainmaster.engine.engine import Engine
from trainmaster.engine.ports import Estimator
from trainmaster.estimate.declared import DeclaredSpeeds
from trainmaster.model.job import JobSpec
from trainmaster.model.job_table import JobColumns
from trainmaster.model.units import GPU_MILLI
from trainmaster.sim.backend import SimulatedBackend
from trainmaster.sim.job_list import JobList
from trainmaster.sim.truth import Truth


class Coming:
    """Jobs to come, and which teams are known when (`entities_known[k]`: once job k has arrived)."""

    def __init__(self, jobs: JobList, engine: Engine, named: bool) -> None:
        self.jobs = jobs
        columns, types = engine.columns, engine.cluster.types
        if named:
            nothing = np.zeros((len(jobs), len(types)))
            self.arrivals = Arrivals(jobs.submit_ms, {}, {}, nothing, nothing, nothing > 0)
            return
        entity = jobs.ints(lambda s: columns.intern_entity(s.entity))
        self.entities = columns.entities
        self.entities_known = np.maximum.accumulate(entity) + 1 if len(jobs) else entity
        speed, spread = _speeds(jobs, types, engine.estimator)
        self.arrivals = Arrivals(
            jobs.submit_ms,
            _int_columns(jobs, columns) | {"entity": entity},
            _float_columns(jobs),
            speed,
            spread,
            _allowed(jobs, types, speed),
        )

    def name_teams(self, engine: Engine) -> None:
        """Show the names of those teams alone of which a job has come."""
        known = self.entities_known[self.arrivals.next - 1] if self.arrivals.next else 0
        engine.columns.entities = self.entities[:known]


def _interned(jobs: JobList, objects: Callable[[JobSpec], Any], intern: Callable[[JobSpec], int]) -> Ints:
    """`intern(spec)` of each job, asked once for each object: the same one is mostly shared by many."""
    known: dict[int, int] = {}

    def index(spec: JobSpec) -> int:
        which = id(objects(spec))
        if which not in known:
            known[which] = intern(spec)
        return known[which]

    return jobs.ints(index)


def _int_columns(jobs: JobList, columns: JobColumns) -> dict[str, Ints]:
    low, high = jobs.ints(attrgetter("workers_min")), jobs.ints(attrgetter("workers_max"))
    servers_low, servers_high = jobs.ints(attrgetter("servers_min")), jobs.ints(attrgetter("servers_max"))
    ref, servers_ref = jobs.ints(attrgetter("workers_ref")), jobs.ints(attrgetter("servers_ref"))
    gpu_milli = jobs.ints(attrgetter("worker.gpu_milli"))
    ask = np.minimum(np.maximum(ref, low), high)
    return {
        "workers_min": low,
        "workers_max": high,
        "servers_min": servers_low,
        "servers_max": servers_high,
        "workers_ref": ref,
        "servers_ref": servers_ref,
        "devices_each": -(-gpu_milli // GPU_MILLI),
        "share_milli": np.minimum(gpu_milli, GPU_MILLI),
        "worker_gpu_milli": gpu_milli,
        "worker_cpu_milli": jobs.ints(attrgetter("worker.cpu_milli")),
        "worker_mem_mib": jobs.ints(attrgetter("worker.mem_mib")),
        "server_cpu_milli": jobs.ints(attrgetter("server.cpu_milli")),
        "server_mem_mib": jobs.ints(attrgetter("server.mem_mib")),
        "priority": jobs.ints(attrgetter("priority")),
        "deadline_ms": jobs.deadline_ms,
        "deadline_kind": jobs.ints(attrgetter("deadline_kind")),
        "preemptible": jobs.ints(attrgetter("preemptible")),
        "curve": _interned(jobs, attrgetter("scaling"), lambda s: columns.intern_curve(s.scaling)),
        "workers_ask": ask,
        "servers_ask": np.minimum(np.maximum(servers_ref, servers_low), servers_high),
        "ask_gpu_milli": ask * gpu_milli,
        "max_attempts": jobs.ints(attrgetter("max_attempts")),
        "node_set": _interned(jobs, attrgetter("node_set"), lambda s: columns.intern_node_set(s.node_set)),
        "elastic": ((low != high) | (servers_low != servers_high)).astype(np.int64),
    }


def _float_columns(jobs: JobList) -> dict[str, Floats]:
    return {
        "work_total": jobs.work_total,
        "weight": jobs.floats(attrgetter("weight")),
        "budget": jobs.floats(lambda s: math.nan if s.budget is None else s.budget),
    }


def _speeds(jobs: JobList, types: Sequence[str], estimator: Estimator) -> tuple[Floats, Floats]:
    """As the estimator profiles each job."""
    if isinstance(estimator, DeclaredSpeeds):
        rows, found = by_declared_speed(jobs, lambda spec: estimator.profile(spec, types))
    else:
        rows, found = np.arange(len(jobs)), [estimator.profile(spec, types) for spec in jobs]
    shape = (-1, len(types))
    here, spread = (np.array([profile[k] for profile in found]).reshape(shape) for k in (0, 1))
    return np.ascontiguousarray(here[rows]), np.ascontiguousarray(spread[rows])


def by_declared_speed(jobs: JobList, value: Callable[[JobSpec], Any]) -> tuple[Ints, list[Any]]:
    """A value for each job, computed once for jobs that declare the same speeds: where each finds its own, and the
    values."""
    index: dict[tuple[int, int], int] = {}
    found: list[Any] = []

    def row(spec: JobSpec) -> int:
        here, spread = spec.steps_per_s, spec.steps_per_s_spread
        key = (id(here) if here else 0, id(spread) if spread else 0)
        if key not in index:
            index[key] = len(found)
            found.append(value(spec))
        return index[key]

    return jobs.ints(row), found


def _allowed(jobs: JobList, types: Sequence[str], speed: Floats) -> npt.NDArray[np.bool_]:
    allowed = speed > 0
    accepts = [[not spec.gpu_types or name in spec.gpu_types for name in types] for spec in jobs.templates]
    return allowed & np.array(accepts, np.bool_).reshape(-1, len(types))[jobs.kind]


def enter_world(backend: SimulatedBackend, jobs: JobList, work_total: Floats, rates: Floats) -> None:
    """Tell the world of all jobs; a job's number is its place in the list. `rates`: as `core.sim.jobs` has them."""
    rows, truth, n = backend.core.jobs, backend.truth, len(jobs)
    rows.reserve(n)
    rows.n = n
    backend.introduce(jobs, jobs.id_list)
    curves = backend._curves
    for column, values in (
        (rows.work_total, work_total),
        (rows.share_asked, np.minimum(jobs.ints(attrgetter("worker.gpu_milli")), GPU_MILLI)),
        (rows.workers_ref, jobs.ints(attrgetter("workers_ref"))),
        (rows.servers_ref, jobs.ints(attrgetter("servers_ref"))),
        (rows.curve, jobs.ints(lambda s: curves.setdefault((s.scaling, s.workers_ref, s.servers_ref), len(curves)))),
    ):
        np.asarray(column)[:n] = values
    if truth.options.noise:
        np.asarray(rows.key)[:n] = np.fromiter(map(truth.key_of, jobs.id_list), np.int64, n)
    if truth.options.sensitivity_variation:
        np.asarray(rows.sensitivity)[:n] = jobs.floats(lambda spec: truth.sensitivity(spec.model))
    np.asarray(rows.speed)[:n] = rates


def true_rates(jobs: JobList, truth: Truth) -> Floats:
    """By job and type on one node, then by type on several."""
    place, found = by_declared_speed(jobs, truth.reference_rates)
    return np.array(found)[place] if found else np.zeros((0, 2 * len(truth.cluster.types)))
