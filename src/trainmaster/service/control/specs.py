"""The engine's job of a request, with speeds from the catalogue; refuses jobs that never fit the cluster."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from trainmaster.jobspec.engine import demand_of, payload_of, server_demand_of, to_engine
from trainmaster.jobspec.model import JobRequest
from trainmaster.model.capacity.feasibility import fits_when_empty
from trainmaster.model.cluster import Cluster
from trainmaster.model.errors import InputError
from trainmaster.model.job import NO_DEMAND, Demand, JobSpec
from trainmaster.model.units import GPU_MILLI, UNLIMITED

MAX_KNOWN_SHAPES = 10_000
MAX_PROCESSES_PER_GPU = 16
"""Processes of one job that take no GPU, or a part of one: servers and small workers."""
MAX_ARRAY_BYTES = 16 << 20
"""Size of all copies of an array together: each copy is stored by itself."""


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
    """The job of a request; the speeds of a known model come from the catalogue."""
    name = request.name or ""
    if array_index is not None and name:
        name = f"{name}-{array_index}"
    speeds = {} if request.steps_per_s or not request.model else _catalogued(request, cluster)
    payload = payload_of(request, user, array_index, array_of)
    worker, server = demand_of(request), server_demand_of(request)
    return to_engine(
        request, job_id, now_ms, name=name, worker=worker, server=server, after=after, payload=payload, **speeds
    )


@lru_cache(maxsize=1)
def _catalogue() -> Any:
    from trainmaster.estimate.catalogue import load_catalogue

    return load_catalogue("builtin")


def _catalogued(request: JobRequest, cluster: Cluster) -> dict[str, Any]:
    """Speeds of a known model at its largest size, by field of `JobSpec`; empty for types the catalogue lacks."""
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
    return {"steps_per_s": here, "steps_per_s_spread": spread}


def check_array(request: JobRequest) -> None:
    """Refuse an array whose copies would fill the store."""
    copies = request.array or 1
    if copies == 1:
        return
    each = len(request.model_dump_json(exclude_defaults=True))
    if copies * each > MAX_ARRAY_BYTES:
        raise InputError(
            f"{copies} copies of {each} bytes each are too large",
            f"at most {MAX_ARRAY_BYTES >> 20} MiB in all, which is {max(MAX_ARRAY_BYTES // each, 1)} copies",
            "Put large data into files and name them in the command.",
            column="array",
        )


def _gpus(milli: int) -> str:
    return f"{milli / GPU_MILLI:g} GPUs"


def _cpus(milli: int) -> str:
    return f"{milli / 1000:g} CPUs"


def _memory(mib: int) -> str:
    return f"{mib} MiB of memory"


class Fitting:
    """Refuses what a cluster could not run even if it were empty: it would wait for ever, and others behind it.

    Where nodes come and go (`follows`), such a job waits alone: a change is taken, and a preview says so."""

    def __init__(self, cluster: Cluster, follows: bool = False) -> None:
        self.cluster = cluster
        self._known: dict[tuple[int, Demand, int, Demand, int], bool] = {}
        self.follows = follows

    def check(self, spec: JobSpec, workers: tuple[int, int] | None = None, machine: Demand | None = None) -> None:
        """`workers`: another range than the job's own; `machine`: what emulated nodes really have."""
        if not self.follows:
            self._check(spec, workers, machine)
        elif workers is None:
            try:
                self._check(spec, workers, machine)
            except InputError as error:
                raise replace(error, remedy="As it is, it would wait until there are nodes that can take it.") from None

    def _check(self, spec: JobSpec, workers: tuple[int, int] | None, machine: Demand | None) -> None:
        workers_min, workers_max = workers or (spec.workers_min, spec.workers_max)
        self._check_processes(spec, workers_max)
        cluster = self.cluster
        least = workers_min
        gpu_types = [k for k, name in enumerate(cluster.types) if not spec.gpu_types or name in spec.gpu_types]
        if spec.steps_per_s:
            gpu_types = [k for k in gpu_types if spec.steps_per_s.get(cluster.types[k], 0.0) > 0]
        have = f"the cluster has {cluster.nodes_text()}"
        if not gpu_types:
            wanted = ", ".join(spec.gpu_types or sorted(spec.steps_per_s))
            raise InputError(f"it runs on {wanted}; {have}", "a type that the cluster has", column="gpu_types")
        unpriced = [cluster.types[k] for k in gpu_types if spec.budget is not None and np.isnan(cluster.prices[k])]
        if unpriced and spec.worker.gpu_milli:
            remedy = "Name types that have one with --gpu-type, or limit the run time with --time."
            raise InputError(f"{', '.join(unpriced)} has no price", "types with a price", remedy, column="budget")
        self._check_member(spec, gpu_types, machine or Demand(UNLIMITED, UNLIMITED, UNLIMITED))
        if not any(self._fits(spec, least, gpu_type) for gpu_type in gpu_types):
            gpus = least * spec.worker.gpu_milli / GPU_MILLI
            servers = f" and {spec.servers_min} servers" if spec.servers_min else ""
            raise InputError(
                f"{least} workers with {gpus:g} GPUs in all{servers} never fit: {have}",
                "a job that fits when the cluster is empty",
                "Ask for less, or for another type. A server has 1 CPU unless --cpus-per-server says otherwise."
                if servers
                else "Ask for less, or for another type.",
                column="workers.min",
            )

    def _check_processes(self, spec: JobSpec, workers_max: int) -> None:
        """What takes no whole GPU is not bounded by GPUs: 300 servers would be 300 processes on one machine."""
        bound = MAX_PROCESSES_PER_GPU * max(self.cluster.total_gpus, 1)
        small = workers_max if spec.worker.gpu_milli < GPU_MILLI else 0
        if small + spec.servers_max > bound:
            what = f"{spec.servers_max} servers" + (f" and {small} workers with less than a GPU" if small else "")
            raise InputError(
                f"{what} are too many: the cluster has {self.cluster.nodes_text()}",
                f"at most {bound} ({MAX_PROCESSES_PER_GPU} for each GPU of the cluster)",
                "Ask for less.",
                column="servers.max" if spec.servers_max > small else "workers.max",
            )

    def _check_member(self, spec: JobSpec, gpu_types: list[int], machine: Demand) -> None:
        """A member that no node could hold is refused with what it asks too much of."""
        nodes = [node for node in self.cluster.nodes if self.cluster.types.index(node.accelerator) in gpu_types]
        worker, server = spec.worker, spec.server if spec.servers_max else NO_DEMAND
        gpu_milli = max(node.gpus for node in nodes) * GPU_MILLI
        cpu_milli = min(max(node.cpu_milli for node in nodes), machine.cpu_milli)
        mem_mib = min(max(node.mem_mib for node in nodes), machine.mem_mib)
        server_cpu = min(max(node.cpu_milli for node in self.cluster.nodes), machine.cpu_milli)
        server_mem = min(max(node.mem_mib for node in self.cluster.nodes), machine.mem_mib)
        for wanted, has, field, text in (
            (worker.gpu_milli, gpu_milli, "gpus_per_worker", _gpus),
            (worker.cpu_milli, cpu_milli, "cpus_per_worker", _cpus),
            (worker.mem_mib, mem_mib, "memory_mib_per_worker", _memory),
            (server.cpu_milli, server_cpu, "cpus_per_server", _cpus),
            (server.mem_mib, server_mem, "memory_mib_per_server", _memory),
        ):
            if wanted > has:
                member = "a server" if field.endswith("server") else "a worker"
                what = f"{member} with {text(wanted)} never fits: the largest node has {text(has)}"
                raise InputError(what, f"at most {text(has)}", column=field)

    def _fits(self, spec: JobSpec, workers: int, gpu_type: int) -> bool:
        key = (workers, spec.worker, spec.servers_min, spec.server, gpu_type)
        if key not in self._known:
            if len(self._known) > MAX_KNOWN_SHAPES:
                self._known.clear()
            self._known[key] = self._placed(spec, workers, gpu_type)
        return self._known[key]

    def _placed(self, spec: JobSpec, workers: int, gpu_type: int) -> bool:
        cluster, worker = self.cluster, spec.worker
        if worker.gpu_milli and workers * worker.gpu_milli > cluster.total_gpus * GPU_MILLI:
            return False
        return fits_when_empty(cluster, spec, workers, gpu_type)
