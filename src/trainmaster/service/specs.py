"""From a request to the job that the engine takes: sizes, work, speeds, wishes. What cannot be is refused here."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np

from trainmaster.core.cluster_arrays import ClusterArrays
from trainmaster.core.placement import Placer
from trainmaster.model.cluster import Cluster
from trainmaster.model.errors import InputError
from trainmaster.model.job import NO_DEMAND, DeadlineKind, Demand, JobId, JobSpec
from trainmaster.model.ledger import Ledger
from trainmaster.model.placement import Strategy
from trainmaster.model.units import GPU_MILLI, MS_PER_S, NEVER_MS, ms_from_s
from trainmaster.model.utility import parse_utility
from trainmaster.wire.api import JobRequest

MAX_TEXT = 131_072
"""The operating system takes no longer argument or variable."""
MAX_ENVIRONMENT = 1_000
MAX_DEADLINE_S = 1e9
MAX_KNOWN_SHAPES = 10_000
_LIKE_AN_ID = re.compile(r"^job-\d+$")
_IN_PAYLOAD = ("command", "server_command", "env", "workdir")


def check_request(request: JobRequest) -> None:
    """What the schema cannot say: texts that a process can take, a utility that is one, sizes that make sense."""
    for where, text in _texts(request):
        if "\0" in text:
            raise InputError("holds a NUL character", "text that a process can take", column=where)
        if any("\ud800" <= letter <= "\udfff" for letter in text):
            raise InputError("holds half a character", "well-formed text", column=where)
        if len(text) > MAX_TEXT:
            raise InputError(f"has {len(text)} characters", f"at most {MAX_TEXT}", column=where)
    if request.name is not None and _LIKE_AN_ID.match(request.name):
        raise InputError(f"'{request.name}' looks like an id", "another name", column="name")
    if not request.command[0]:
        raise InputError("names no program", "a program and its arguments", column="command")
    if request.server_command is not None and not (request.server_command and request.server_command[0]):
        raise InputError("names no program", "a program and its arguments", column="server_command")
    if len(request.env) > MAX_ENVIRONMENT:
        raise InputError(f"has {len(request.env)} variables", f"at most {MAX_ENVIRONMENT}", column="env")
    for name in request.env:
        if not name or "=" in name:
            raise InputError(f"'{name}' is no name of a variable", "names without '='", column="env")
        if name.startswith("TRAINMASTER_"):
            raise InputError(f"'{name}' is set by Trainmaster", "other names", column="env")
    if request.workdir is not None and not request.workdir.startswith("/"):
        raise InputError(f"'{request.workdir}' is no absolute path", "a path from the root", column="workdir")
    if request.workers.min < 1:
        raise InputError(f"{request.workers.min} workers", "at least 1", column="workers.min")
    if request.utility is not None:
        parse_utility(request.utility)
    if request.deadline_s is not None and request.deadline_s > MAX_DEADLINE_S:
        raise InputError(f"{request.deadline_s:g} s", f"at most {MAX_DEADLINE_S:g}", column="deadline_s")


def _texts(request: JobRequest) -> Iterator[tuple[str, str]]:
    for where in ("command", "server_command", "gpu_types", "after"):
        for text in getattr(request, where) or ():
            yield where, text
    for name, value in request.env.items():
        yield "env", name
        yield "env", value
    for name in request.steps_per_s:
        yield "steps_per_s", name
    for where in ("workdir", "model", "request_id"):
        if getattr(request, where):
            yield where, getattr(request, where)


def spec_of(
    request: JobRequest,
    job_id: str,
    cluster: Cluster,
    now_ms: int,
    *,
    after: tuple[str, ...] = (),
    user: str = "",
    array_index: int | None = None,
    array_of: str | None = None,
) -> JobSpec:
    """The job of a checked request."""
    name = request.name or ""
    if array_index is not None and name:
        name = f"{name}-{array_index}"
    speeds, spread = dict(request.steps_per_s), {}
    if not speeds and request.model:
        speeds, spread = _catalogued(request, cluster)
    deadline_ms, kind = NEVER_MS, DeadlineKind.NONE
    if request.deadline_s is not None:
        deadline_ms = now_ms + ms_from_s(request.deadline_s)
        kind = DeadlineKind.HARD if request.deadline_kind == "hard" else DeadlineKind.SOFT
    return JobSpec(
        id=JobId(job_id),
        submit_ms=now_ms,
        name=name,
        workers_min=request.workers.min,
        workers_max=request.workers.max,
        workers_ref=request.workers.max,
        servers_min=request.servers.min,
        servers_max=request.servers.max,
        servers_ref=request.servers.max,
        worker=_demand(request),
        server=NO_DEMAND,
        gpu_types=tuple(request.gpu_types),
        work_total=request.steps,
        steps_per_s=speeds,
        steps_per_s_spread=spread,
        weight=request.weight,
        priority=request.priority,
        entity=request.entity or "",
        deadline_ms=deadline_ms,
        deadline_kind=kind,
        utility=request.utility,
        budget=request.budget,
        model=request.model,
        batch_size=request.batch_size,
        epochs_total=request.epochs,
        max_attempts=request.max_attempts,
        preemptible=request.preemptible,
        after=tuple(JobId(job_id) for job_id in after),
        payload=_payload(request, user, array_index, array_of),
    )


def _payload(request: JobRequest, user: str, array_index: int | None, array_of: str | None) -> dict[str, Any]:
    data = request.model_dump(mode="json", exclude_defaults=True)
    return {
        "command": list(request.command),
        "server_command": None if request.server_command is None else list(request.server_command),
        "env": dict(request.env),
        "workdir": request.workdir,
        "array_index": array_index,
        "array": array_of,
        "user": user,
        "wishes": {key: value for key, value in data.items() if key not in _IN_PAYLOAD},
    }


def request_of(spec: JobSpec) -> dict[str, Any]:
    """The request a job was made from, as JSON data, with the range it was last resized to."""
    payload = spec.payload
    given = {key: payload[key] for key in _IN_PAYLOAD if payload.get(key) is not None}
    workers = {"min": spec.workers_min, "max": spec.workers_max}
    wishes = payload["wishes"] if "wishes" in payload else _wishes_of(spec)
    return {**_DEFAULTS, **wishes, **given, "workers": workers}


def _wishes_of(spec: JobSpec) -> dict[str, Any]:
    """Of a job that was not made from a request: a TrainingJob, or a gang of other pods."""
    timed = spec.deadline_kind != DeadlineKind.NONE
    return {
        "servers": {"min": spec.servers_min, "max": spec.servers_max},
        "gpus_per_worker": spec.worker.gpu_milli / GPU_MILLI,
        "cpus_per_worker": spec.worker.cpu_milli / 1000,
        "memory_mib_per_worker": spec.worker.mem_mib,
        "gpu_types": list(spec.gpu_types),
        "model": spec.model,
        "batch_size": spec.batch_size,
        "steps": spec.work_total,
        "epochs": spec.epochs_total,
        "steps_per_s": dict(spec.steps_per_s),
        "deadline_s": (spec.deadline_ms - spec.submit_ms) / MS_PER_S if timed else None,
        "deadline_kind": spec.deadline_kind.name.lower() if timed else "hard",
        "utility": None if spec.utility is None else dict(spec.utility),
        "weight": spec.weight,
        "priority": spec.priority,
        "entity": spec.entity or None,
        "budget": spec.budget,
        "max_attempts": spec.max_attempts,
        "preemptible": spec.preemptible,
    }


_DEFAULTS = JobRequest(command=["-"]).model_dump(mode="json")


def _demand(request: JobRequest) -> Demand:
    gpu_milli = round(request.gpus_per_worker * GPU_MILLI)
    if gpu_milli > GPU_MILLI and gpu_milli % GPU_MILLI:
        raise InputError(
            f"{request.gpus_per_worker:g} GPUs a worker", "whole GPUs, or a fraction of one", column="gpus_per_worker"
        )
    if request.gpus_per_worker > 0 and gpu_milli == 0:
        raise InputError(f"{request.gpus_per_worker:g} GPUs a worker", "0, or 0.001 and more", column="gpus_per_worker")
    if request.cpus_per_worker > 1e6:
        raise InputError(f"{request.cpus_per_worker:g} CPUs a worker", "at most 1000000", column="cpus_per_worker")
    return Demand(gpu_milli, math.ceil(request.cpus_per_worker * 1000), request.memory_mib_per_worker)


@lru_cache(maxsize=1)
def _catalogue() -> Any:
    from trainmaster.estimate.catalogue import load_catalogue

    return load_catalogue("builtin")


def _catalogued(request: JobRequest, cluster: Cluster) -> tuple[dict[str, float], dict[str, float]]:
    """Speeds of a known model at its largest size; empty when the catalogue does not know it on these types."""
    gpus = max(1, round(request.workers.max * request.gpus_per_worker))
    catalogue = _catalogue()
    here: dict[str, float] = {}
    spread: dict[str, float] = {}
    for name in cluster.types:
        speed = catalogue.steps_per_s(request.model, gpus, name, batch_size=request.batch_size)
        if speed:
            here[name] = speed
            apart = catalogue.steps_per_s(request.model, gpus, name, spread=True, batch_size=request.batch_size)
            if apart is not None:
                spread[name] = apart
    return here, spread


class Fitting:
    """Refuses what a cluster could not run even if it were empty: it would wait for ever, and others behind it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._known: dict[tuple[int, Demand, int, int], bool] = {}

    def check(self, spec: JobSpec, workers_min: int | None = None) -> None:
        """`workers_min`: another smallest size than the job's own."""
        cluster = self.cluster
        least = spec.workers_min if workers_min is None else workers_min
        kinds = [k for k, name in enumerate(cluster.types) if not spec.gpu_types or name in spec.gpu_types]
        if spec.steps_per_s:
            kinds = [k for k in kinds if spec.steps_per_s.get(cluster.types[k], 0.0) > 0]
        have = f"the cluster has {cluster.describe()}"
        if not kinds:
            wanted = ", ".join(spec.gpu_types or sorted(spec.steps_per_s))
            raise InputError(f"it runs on {wanted}; {have}", "a type that the cluster has", column="gpu_types")
        if not any(self._fits(spec, least, kind) for kind in kinds):
            gpus = least * spec.worker.gpu_milli / GPU_MILLI
            raise InputError(
                f"{least} workers with {gpus:g} GPUs in all never fit: {have}",
                "a job that fits when the cluster is empty",
                "Ask for less, or for another type.",
                column="workers.min",
            )

    def _fits(self, spec: JobSpec, workers: int, kind: int) -> bool:
        key = (workers, spec.worker, spec.servers_min, kind)
        if key not in self._known:
            if len(self._known) > MAX_KNOWN_SHAPES:
                self._known.clear()
            self._known[key] = self._placed(spec, workers, kind)
        return self._known[key]

    def _placed(self, spec: JobSpec, workers: int, kind: int) -> bool:
        cluster, worker = self.cluster, spec.worker
        if worker.gpu_milli and workers * worker.gpu_milli > cluster.total_gpus * GPU_MILLI:
            return False
        everywhere = np.ones(len(cluster.nodes), np.bool_)
        nodes = ClusterArrays(cluster.type_of, cluster.gpus, cluster.rack_of, len(cluster.types), everywhere)
        placer = Placer(int(Strategy.PACK), nodes)
        asked = placer.demand
        asked.workers, asked.devices_each, asked.share = workers, worker.devices, worker.share_milli
        asked.cpu_each, asked.mem_each, asked.servers = worker.cpu_milli, worker.mem_mib, spec.servers_min
        asked.server_cpu, asked.server_mem = spec.server.cpu_milli, spec.server.mem_mib
        placer.open_set(0)
        return placer.place_gang(kind, Ledger.full(cluster))
