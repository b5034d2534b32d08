"""Admission instances from JSON: every fault becomes an `InputError` that names the JSON path."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from trainmaster.model.errors import InputError
from trainmaster.model.foreign import is_finite
from trainmaster.model.utility import parse_utility
from trainmaster.policies.oasis.instance.formulation import (
    RELATIVE_TOLERANCE,
    AdmissionJob,
    Cluster,
    Instance,
    Role,
    Server,
)

# Beyond these the tables would not fit into memory; they are far above any use of the formulation.
HORIZON_MAX = 100_000
CHUNKS_MAX = 100_000


def parse_instance(raw: Any, source: str) -> Instance:
    """The instance a JSON object describes; `source` is the file named in errors."""
    if not isinstance(raw, Mapping):
        raise InputError(f"the instance is a {type(raw).__name__}", "a JSON object", file=source)
    kind = raw.get("kind")
    if kind != "admission":
        raise InputError(f"the instance's kind is {kind!r}", '"admission"', file=source, column="kind")
    reader = _Reader(source)
    horizon = reader.whole(raw, "horizon", "", least=1, most=HORIZON_MAX)
    raw_servers = reader.list_of(raw, "servers", "")
    raw_jobs = reader.list_of(raw, "jobs", "", may_be_empty=True)
    resources = _resource_names(raw_servers, raw_jobs, reader)
    servers = [_server(item, resources, reader, f"servers[{n}]") for n, item in enumerate(raw_servers)]
    reader.unique([server.id for server in servers], "servers")
    cluster = Cluster(resources, tuple(servers))
    return Instance(horizon, cluster, tuple(parse_jobs(raw_jobs, cluster, horizon, source, "jobs")))


def parse_jobs(raw: Any, cluster: Cluster, horizon: int, source: str, path: str) -> list[AdmissionJob]:
    """A list of jobs for a given cluster; resources the cluster lacks may be named with demand 0 only."""
    reader = _Reader(source)
    items = reader.list_of({path: raw}, path, "", may_be_empty=True)
    jobs = [_job(item, cluster, horizon, reader, f"{path}[{n}]") for n, item in enumerate(items)]
    reader.unique([job.id for job in jobs], path)
    return jobs


def _resource_names(servers: Sequence[Any], jobs: Sequence[Any], reader: _Reader) -> tuple[str, ...]:
    names: set[str] = set()
    for n, server in enumerate(servers):
        names.update(reader.mapping(server, "capacity", f"servers[{n}]"))
    for n, job in enumerate(jobs):
        names.update(reader.mapping(job, "worker_demand", f"jobs[{n}]"))
        names.update(reader.mapping(job, "server_demand", f"jobs[{n}]"))
    return tuple(sorted(names))


def _server(raw: Any, resources: tuple[str, ...], reader: _Reader, path: str) -> Server:
    role = raw.get("role", "both")
    if role not in tuple(Role):
        raise reader.error(f"a server's role is {role!r}", "worker | ps | both", f"{path}.role")
    capacity = reader.mapping(raw, "capacity", path)
    amounts = tuple(reader.number(capacity, name, f"{path}.capacity", default=0.0) for name in resources)
    return Server(reader.name(raw, "id", path), Role(role), amounts)


def _job(raw: Any, cluster: Cluster, horizon: int, reader: _Reader, path: str) -> AdmissionJob:
    worker = reader.mapping(raw, "worker_demand", path)
    ps = reader.mapping(raw, "server_demand", path)
    for demand, key in ((worker, "worker_demand"), (ps, "server_demand")):
        for name in sorted(set(demand) - set(cluster.resources)):
            if reader.number(demand, name, f"{path}.{key}") > 0:
                raise reader.error(f"no server has the resource '{name}'", "a resource of some server", f"{path}.{key}")
    job = AdmissionJob(
        id=reader.name(raw, "id", path),
        arrival=reader.whole(raw, "arrival", path, least=0),
        epochs=reader.number(raw, "epochs", path, above=0.0),
        chunks=reader.whole(raw, "chunks", path, least=1, most=CHUNKS_MAX),
        minibatches=reader.number(raw, "minibatches", path, above=0.0),
        step_slots=reader.number(raw, "step_slots", path),
        gradient_mb=reader.number(raw, "gradient_mb", path),
        worker_mb_per_slot=reader.number(raw, "worker_mb_per_slot", path, above=0.0),
        server_mb_per_slot=reader.number(raw, "server_mb_per_slot", path, above=0.0),
        worker_demand=tuple(reader.number(worker, r, f"{path}.worker_demand", default=0.0) for r in cluster.resources),
        server_demand=tuple(reader.number(ps, r, f"{path}.server_demand", default=0.0) for r in cluster.resources),
        utility=parse_utility(raw.get("utility"), file=reader.source, column=f"{path}.utility"),
    )
    _check_job(job, cluster, horizon, reader, path)
    return job


def _check_job(job: AdmissionJob, cluster: Cluster, horizon: int, reader: _Reader, path: str) -> None:
    if job.arrival >= horizon:
        raise reader.error(
            f"job '{job.id}' arrives in slot {job.arrival}, but the horizon ends after slot {horizon - 1}",
            f"an arrival from 0 to {horizon - 1}",
            f"{path}.arrival",
            "Extend the horizon or leave the job out",
        )
    if job.worker_mb_per_slot > job.server_mb_per_slot * (1 + RELATIVE_TOLERANCE):
        raise reader.error(
            f"a worker of job '{job.id}' sends {job.worker_mb_per_slot:g} MB per slot, more than a "
            f"parameter server takes ({job.server_mb_per_slot:g}), so it can never run",
            "worker_mb_per_slot <= server_mb_per_slot",
            f"{path}.worker_mb_per_slot",
        )
    if not (job.work > 0 and math.isfinite(job.work)):
        raise reader.error(
            f"job '{job.id}' has {job.work:g} worker-slots of work", "work above 0", f"{path}.step_slots"
        )
    for demand, hosts, what, key in (
        (job.worker_demand, cluster.hosts_workers, "worker", "worker_demand"),
        (job.server_demand, cluster.hosts_ps, "parameter server", "server_demand"),
    ):
        fits = (cluster.capacity * (1 + RELATIVE_TOLERANCE) >= demand).all(axis=1) & hosts
        if not fits.any():
            wanted = ", ".join(f"{r}={d:g}" for r, d in zip(cluster.resources, demand, strict=True) if d > 0)
            raise reader.error(
                f"one {what} of job '{job.id}' ({wanted}) is larger than every server that may host it",
                "a demand that fits on at least one server of that role",
                f"{path}.{key}",
                "Lower the demand or add a larger server",
            )


class _Reader:
    """Typed access to JSON values; `path` is the JSON path of the object that holds the key."""

    def __init__(self, source: str) -> None:
        self.source = source

    def error(self, what: str, expected: str, path: str, remedy: str = "") -> InputError:
        return InputError(what, expected, remedy, self.source, column=path)

    def list_of(self, raw: Any, key: str, path: str, *, may_be_empty: bool = False) -> Sequence[Mapping[str, Any]]:
        value = raw.get(key)
        here = f"{path}.{key}" if path else key
        if not isinstance(value, list | tuple) or not (value or may_be_empty):
            raise self.error(f"'{key}' is {_shown(value)}", "a list of objects", here)
        for n, item in enumerate(value):
            if not isinstance(item, Mapping):
                raise self.error(f"an entry of '{key}' is {_shown(item)}", "an object", f"{here}[{n}]")
        return value

    def mapping(self, raw: Any, key: str, path: str) -> Mapping[str, Any]:
        value = raw.get(key)
        if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
            raise self.error(f"'{key}' is {_shown(value)}", "an object of resource: amount", f"{path}.{key}")
        return value

    def name(self, raw: Mapping[str, Any], key: str, path: str) -> str:
        value = raw.get(key)
        if not isinstance(value, str) or not value:
            raise self.error(f"'{key}' is {_shown(value)}", "a non-empty text", f"{path}.{key}")
        return value

    def number(
        self,
        raw: Mapping[str, Any],
        key: str,
        path: str,
        *,
        above: float | None = None,
        default: float | None = None,
    ) -> float:
        value = raw.get(key, default)
        here = f"{path}.{key}" if path else key
        expected = f"a finite number > {above:g}" if above is not None else "a finite number >= 0"
        if not is_finite(value):
            raise self.error(f"'{key}' is {_shown(value)}", expected, here)
        if value < 0 or (above is not None and value <= above):
            raise self.error(f"'{key}' is {value:g}", expected, here)
        return float(value)

    def whole(self, raw: Mapping[str, Any], key: str, path: str, *, least: int, most: int | None = None) -> int:
        value = raw.get(key)
        here = f"{path}.{key}" if path else key
        expected = f"a whole number from {least} to {most}" if most is not None else f"a whole number >= {least}"
        whole = isinstance(value, int | float) and not isinstance(value, bool) and float(value).is_integer()
        if not whole or value < least or (most is not None and value > most):  # type: ignore[operator]
            raise self.error(f"'{key}' is {_shown(value)}", expected, here)
        return int(value)  # type: ignore[arg-type]

    def unique(self, ids: list[str], path: str) -> None:
        first: dict[str, int] = {}
        for n, name in enumerate(ids):
            if name in first:
                what = f"the id '{name}' occurs twice, in {path}[{first[name]}] and {path}[{n}]"
                raise self.error(what, "distinct ids", f"{path}[{n}].id")
            first[name] = n


def _shown(value: Any) -> str:
    if value is None:
        return "missing"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
