"""The jobs of a run as columns: for the engine that will meet them, and for the world that knows how they behave."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from trainmaster.core.arrivals import Arrivals
from trainmaster.engine.core import Engine
from trainmaster.engine.ports import Estimator
from trainmaster.estimate.declared import DeclaredSpeeds
from trainmaster.model.job import JobSpec
from trainmaster.model.table import JobColumns
from trainmaster.model.units import GPU_MILLI
from trainmaster.sim.backend import SimulatedBackend
from trainmaster.sim.truth import Truth

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class Coming:
    """What is to come, and which teams are known when (`entities_known[k]`: once job k has arrived)."""

    def __init__(self, specs: Sequence[JobSpec], engine: Engine, named: bool) -> None:
        self.specs = specs
        columns, types = engine.columns, engine.cluster.types
        submit_ms = _ints(specs, attrgetter("submit_ms"))
        if named:
            nothing = np.zeros((len(specs), len(types)))
            self.arrivals = Arrivals(submit_ms, {}, {}, nothing, nothing, nothing > 0)
            return
        columns.spec_source = specs
        entity = _ints(specs, lambda s: columns.intern_entity(s.entity))
        self.entities, self.entities_known = (
            columns.entities,
            np.maximum.accumulate(entity) + 1 if len(specs) else entity,
        )
        speed, spread = _speeds(specs, types, engine.estimator)
        self.arrivals = Arrivals(
            submit_ms, _int_columns(specs, columns) | {"entity": entity}, _float_columns(specs), speed, spread,
            _allowed(specs, types, speed),
        )  # fmt: skip

    def name_teams(self, engine: Engine) -> None:
        """Show the names of those teams alone of which a job has come."""
        known = self.entities_known[self.arrivals.next - 1] if self.arrivals.next else 0
        engine.columns.entities = self.entities[:known]


def _ints(specs: Sequence[JobSpec], value: Callable[[JobSpec], Any]) -> Ints:
    return np.fromiter(map(value, specs), np.int64, len(specs))


def _interned(specs: Sequence[JobSpec], objects: Callable[[JobSpec], Any], intern: Callable[[JobSpec], int]) -> Ints:
    """`intern(spec)` of each job, asked once for each object: the same one is mostly shared by many."""
    known: dict[int, int] = {}
    out = np.empty(len(specs), np.int64)
    for k, (spec, which) in enumerate(zip(specs, map(objects, specs), strict=True)):
        index = known.get(id(which), -1)
        if index < 0:
            index = known[id(which)] = intern(spec)
        out[k] = index
    return out


def _int_columns(specs: Sequence[JobSpec], columns: JobColumns) -> dict[str, Ints]:
    low, high = _ints(specs, attrgetter("workers_min")), _ints(specs, attrgetter("workers_max"))
    servers_low, servers_high = _ints(specs, attrgetter("servers_min")), _ints(specs, attrgetter("servers_max"))
    ref, servers_ref = _ints(specs, attrgetter("workers_ref")), _ints(specs, attrgetter("servers_ref"))
    gpu_milli = _ints(specs, attrgetter("worker.gpu_milli"))
    ask = np.minimum(np.maximum(ref, low), high)
    return {
        "workers_min": low, "workers_max": high, "servers_min": servers_low, "servers_max": servers_high,
        "workers_ref": ref, "servers_ref": servers_ref, "devices_each": -(-gpu_milli // GPU_MILLI),
        "share_milli": np.minimum(gpu_milli, GPU_MILLI), "worker_gpu_milli": gpu_milli,
        "worker_cpu_milli": _ints(specs, attrgetter("worker.cpu_milli")),
        "worker_mem_mib": _ints(specs, attrgetter("worker.mem_mib")),
        "server_cpu_milli": _ints(specs, attrgetter("server.cpu_milli")),
        "server_mem_mib": _ints(specs, attrgetter("server.mem_mib")),
        "priority": _ints(specs, attrgetter("priority")), "deadline_ms": _ints(specs, attrgetter("deadline_ms")),
        "deadline_kind": _ints(specs, attrgetter("deadline_kind")),
        "preemptible": _ints(specs, attrgetter("preemptible")),
        "curve": _interned(specs, attrgetter("scaling"), lambda s: columns.intern_curve(s.scaling)), "workers_ask": ask,
        "servers_ask": np.minimum(np.maximum(servers_ref, servers_low), servers_high),
        "ask_gpu_milli": ask * gpu_milli, "max_attempts": _ints(specs, attrgetter("max_attempts")),
        "node_set": _interned(specs, attrgetter("node_set"), lambda s: columns.intern_node_set(s.node_set)),
        "elastic": ((low != high) | (servers_low != servers_high)).astype(np.int64),
    }  # fmt: skip


def total_work(specs: Sequence[JobSpec]) -> Floats:
    return np.fromiter((math.nan if s.work_total is None else s.work_total for s in specs), np.float64, len(specs))


def _float_columns(specs: Sequence[JobSpec]) -> dict[str, Floats]:
    n, nan = len(specs), math.nan
    return {
        "work_total": total_work(specs),
        "weight": np.fromiter((s.weight for s in specs), np.float64, n),
        "budget": np.fromiter((nan if s.budget is None else s.budget for s in specs), np.float64, n),
    }


def _speeds(specs: Sequence[JobSpec], types: Sequence[str], estimator: Estimator) -> tuple[Floats, Floats]:
    """As the estimator profiles each job."""
    rows, found = by_declared_speed(
        specs, lambda spec: estimator.profile(spec, types), isinstance(estimator, DeclaredSpeeds)
    )
    shape = (-1, len(types))
    here, spread = (np.array([profile[k] for profile in found]).reshape(shape) for k in (0, 1))
    return np.ascontiguousarray(here[rows]), np.ascontiguousarray(spread[rows])


def by_declared_speed(
    specs: Sequence[JobSpec], value: Callable[[JobSpec], Any], depends_on_it_alone: bool = True
) -> tuple[Ints, list[Any]]:
    """A value for each job, computed once for jobs that declare the same speeds: where each finds its own, and the
    values."""
    index: dict[tuple[int, int], int] = {}
    rows, found = np.empty(len(specs), np.int64), []
    for k, spec in enumerate(specs):
        here, spread = spec.steps_per_s, spec.steps_per_s_spread
        key = (id(here) if here else 0, id(spread) if spread else 0) if depends_on_it_alone else (k, -1)
        row = index.get(key, -1)
        if row < 0:
            row = index[key] = len(found)
            found.append(value(spec))
        rows[k] = row
    return rows, found


def _allowed(specs: Sequence[JobSpec], types: Sequence[str], speed: Floats) -> npt.NDArray[np.bool_]:
    allowed = speed > 0
    if not any(map(attrgetter("gpu_types"), specs)):
        return allowed
    for k, spec in enumerate(specs):
        if spec.gpu_types:
            allowed[k] &= np.array([name in spec.gpu_types for name in types], np.bool_)
    return allowed


def enter_world(backend: SimulatedBackend, specs: Sequence[JobSpec], work_total: Floats, rates: Floats) -> None:
    """Tell the world of all jobs; a job's number is its place in the list. `rates`: as `core.sim_jobs` has them."""
    jobs, truth = backend.core.jobs, backend.truth
    n = len(specs)
    jobs.reserve(n)
    jobs.n = n
    backend.ids = [spec.id for spec in specs]
    backend.specs = list(specs)
    backend._number_of = {job_id: number for number, job_id in enumerate(backend.ids)}
    curves = backend._curves
    for column, values in (
        (jobs.work_total, work_total),
        (jobs.share_asked, np.minimum(_ints(specs, attrgetter("worker.gpu_milli")), GPU_MILLI)),
        (jobs.workers_ref, _ints(specs, attrgetter("workers_ref"))),
        (jobs.servers_ref, _ints(specs, attrgetter("servers_ref"))),
        (jobs.curve, _ints(specs, lambda s: curves.setdefault((s.scaling, s.workers_ref, s.servers_ref), len(curves)))),
    ):
        np.asarray(column)[:n] = values
    if truth.options.noise:
        np.asarray(jobs.key)[:n] = _ints(specs, lambda s: truth.key_of(s.id))
    if truth.options.sensitivity_variation:
        np.asarray(jobs.sensitivity)[:n] = [truth.sensitivity(spec.model) for spec in specs]
    np.asarray(jobs.speed)[:n] = rates


def true_rates(specs: Sequence[JobSpec], truth: Truth) -> Floats:
    """By job and type on one node, then by type on several."""
    rows, found = by_declared_speed(specs, truth.reference_rates)
    return np.array(found)[rows] if found else np.zeros((0, 2 * len(truth.cluster.types)))
