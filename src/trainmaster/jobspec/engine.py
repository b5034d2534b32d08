"""Job fields as the engine's `JobSpec`, and back.

Fields that both have under one name are copied; the others are named here. What the engine does not know travels in the
payload.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from trainmaster.jobspec.model import CHANGEABLE, JobFields, JobRequest
from trainmaster.model.errors import InputError
from trainmaster.model.job import NO_DEMAND, DeadlineKind, Demand, JobId, JobSpec
from trainmaster.model.scaling import LINEAR, Scaling, amdahl
from trainmaster.model.units import GPU_MILLI, MS_PER_S, NEVER_MS, ms_from_s
from trainmaster.model.utility import parse_utility

_TRANSLATED = {
    "workers",
    "servers",
    "gpus_per_worker",
    "scaling",
    "steps",
    "epochs",
    "deadline_s",
    "deadline_kind",
    "after",
    "preemptible",
}
COPIED = sorted({item.name for item in dataclasses.fields(JobSpec)} & set(JobFields.model_fields) - _TRANSLATED)
OPEN_SIZE = "open_size"
"""In the payload of a job with a deadline and without a size: if it turns out to be elastic, it may have any."""
WORK_TOLD = "work_told"
"""In the payload of a job whose amount of work it has told itself."""
_IN_PAYLOAD = ("command", "server_command", "env", "workdir")
_DEFAULTS = JobRequest(command=["-"]).model_dump(mode="json")


def to_engine(
    fields: JobFields,
    job_id: str,
    submit_ms: int,
    *,
    name: str,
    worker: Demand,
    server: Demand = NO_DEMAND,
    after: tuple[str, ...] = (),
    payload: dict[str, Any],
    **more: Any,
) -> JobSpec:
    """`after`: ids of the jobs that `fields` names; `more`: further fields of `JobSpec`, such as measured speeds."""
    if fields.utility is not None:
        parse_utility(fields.utility)
    copied: dict[str, Any] = {key: getattr(fields, key) for key in COPIED}
    copied = {**copied, "gpu_types": tuple(fields.gpu_types), "entity": fields.entity or "", **more}
    copied["scaling"] = scaling_of(fields.scaling)
    if fed := workers_per_server(fields):
        copied["scaling"] = replace(copied["scaling"], workers_per_server=fed)
    deadline_ms, deadline_kind = deadline_of(fields, submit_ms)
    return JobSpec(
        id=JobId(job_id),
        submit_ms=submit_ms,
        name=name,
        workers_min=fields.workers.min,
        workers_max=fields.workers.max,
        workers_ref=fields.workers.max,
        servers_min=fields.servers.min,
        servers_max=fields.servers.max,
        servers_ref=fields.servers.max,
        worker=worker,
        server=server,
        work_total=fields.steps,
        epochs_total=fields.epochs,
        deadline_ms=deadline_ms,
        deadline_kind=deadline_kind,
        preemptible=preemptible_of(fields),
        after=tuple(JobId(job) for job in after),
        payload={**payload, OPEN_SIZE: True} if size_is_open(fields) else payload,
        **copied,
    )


def size_is_open(fields: JobFields) -> bool:
    """A deadline and no size: how many workers it takes is for the scheduler to find."""
    return fields.deadline_s is not None and "workers" not in fields.model_fields_set


def scaling_of(declared: Mapping[str, float]) -> Scaling:
    if not declared:
        return LINEAR
    if "serial" in declared:
        return amdahl(declared["serial"])
    if any(key.isdigit() for key in declared):
        return Scaling(points=tuple(sorted((int(size), speed) for size, speed in declared.items())))
    terms: dict[str, Any] = {"a": 0.0, **declared}
    return Scaling(**terms)


def _declared(scaling: Scaling) -> dict[str, float]:
    if replace(scaling, workers_per_server=0.0) == LINEAR:
        return {}
    if scaling.points:
        return {str(size): speed for size, speed in scaling.points}
    return {term: value for term in "abcdefg" if (value := getattr(scaling, term))}


def workers_per_server(fields: JobFields) -> float:
    """How many workers the bandwidth of a server feeds; 0: nobody said."""
    worker, server = fields.worker_mbps, fields.server_mbps
    if worker is None or server is None:
        if worker is None and server is None:
            return 0.0
        missing = "worker_mbps" if worker is None else "server_mbps"
        raise InputError("is missing", "bandwidth of both roles, or of neither", column=missing)
    if server < worker:
        what = f"{server:g} Mbit/s of a server feed no worker of {worker:g}"
        raise InputError(what, "at least worker_mbps", column="server_mbps")
    if not fields.servers.max:
        raise InputError("a job without parameter servers states bandwidths", "servers, or neither", column="servers")
    if fields.workers.min * worker > fields.servers.max * server * (1 + 1e-9):
        raise InputError(
            f"{fields.servers.max} servers of {server:g} Mbit/s cannot feed {fields.workers.min} workers of {worker:g}",
            f"at least {math.ceil(fields.workers.min * worker / server)} servers",
            column="servers.max",
        )
    return server / worker


def deadline_of(fields: JobFields, submit_ms: int) -> tuple[int, DeadlineKind]:
    if fields.deadline_s is None:
        return NEVER_MS, DeadlineKind.NONE
    return submit_ms + ms_from_s(fields.deadline_s), DeadlineKind[fields.deadline_kind.upper()]


def preemptible_of(fields: JobFields) -> bool:
    """Elastic gangs hand their state over and save it; of another command nobody knows unless it says so."""
    if fields.preemptible is not None:
        return fields.preemptible
    return any(size.min != size.max for size in (fields.workers, fields.servers))


def demand_of(request: JobRequest) -> Demand:
    gpu_milli = round(request.gpus_per_worker * GPU_MILLI)
    return Demand(gpu_milli, math.ceil(request.cpus_per_worker * 1000), request.memory_mib_per_worker)


def server_demand_of(request: JobRequest) -> Demand:
    """Kept by a job without servers that says what they would need: it may be given some later."""
    if not request.servers.max and not request.model_fields_set & {"cpus_per_server", "memory_mib_per_server"}:
        return NO_DEMAND
    return Demand(0, math.ceil(request.cpus_per_server * 1000), request.memory_mib_per_server)


def payload_of(request: JobRequest, user: str, array_index: int | None, array_of: str | None) -> dict[str, Any]:
    """What starts the processes, and the request as it was."""
    data = request.model_dump(mode="json", exclude_defaults=True)
    return {
        **{key: getattr(request, key) for key in _IN_PAYLOAD},
        "array_index": array_index,
        "array": array_of,
        "user": user,
        "wishes": {key: value for key, value in data.items() if key not in _IN_PAYLOAD},
    }


def unknown_to_engine(fields: JobFields) -> dict[str, Any]:
    """Fields that were given and that `JobSpec` has no place for."""
    return fields.model_dump(
        mode="json", exclude_defaults=True, include=set(JobFields.model_fields) - _TRANSLATED - set(COPIED) | {"after"}
    )


def given(spec: JobSpec, field: str) -> Any:
    """A field of the request that a job was made from and that `JobSpec` has no place for; else its default."""
    told = spec.payload.get("wishes") or spec.payload.get("fields") or {}
    return told.get(field, _DEFAULTS[field])


def request_of(spec: JobSpec) -> dict[str, Any]:
    """The request a job was made from, as JSON data, with what was changed since.

    Jobs that were not made from a request (TrainingJobs, gangs of other pods) are described by what the engine knows.
    """
    payload = spec.payload
    command = {key: payload[key] for key in _IN_PAYLOAD if payload.get(key) is not None}
    ranges = {
        "workers": {"min": spec.workers_min, "max": spec.workers_max},
        "servers": {"min": spec.servers_min, "max": spec.servers_max},
    }
    known = _known(spec)
    changed = {key: known[key] for key in (*CHANGEABLE, "preemptible") if key in known}
    told = {**payload["wishes"], **changed} if "wishes" in payload else known
    return {**_DEFAULTS, **told, **command, **ranges}


def _known(spec: JobSpec) -> dict[str, Any]:
    timed = spec.deadline_kind != DeadlineKind.NONE
    copied = {key: getattr(spec, key) for key in COPIED}
    return {
        **copied,
        "gpu_types": list(spec.gpu_types),
        "steps_per_s": dict(spec.steps_per_s),
        "scaling": _declared(spec.scaling),
        "entity": spec.entity or None,
        "utility": None if spec.utility is None else dict(spec.utility),
        "gpus_per_worker": spec.worker.gpu_milli / GPU_MILLI,
        "cpus_per_worker": spec.worker.cpu_milli / 1000,
        "memory_mib_per_worker": spec.worker.mem_mib,
        "cpus_per_server": spec.server.cpu_milli / 1000,
        "memory_mib_per_server": spec.server.mem_mib,
        "steps": spec.work_total,
        "epochs": spec.epochs_total,
        "preemptible": spec.preemptible,
        "deadline_s": (spec.deadline_ms - spec.submit_ms) / MS_PER_S if timed else None,
        "deadline_kind": spec.deadline_kind.name.lower() if timed else "hard",
        **spec.payload.get("fields", {}),
    }
