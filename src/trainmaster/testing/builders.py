"""Readable builders for tests: jobs, clusters and snapshots in one line each.

view = a_view([a_job("a", gpus=2), a_job("b", elastic=(1, 4))], cluster="v100=8x4", running={"a": 2})
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trainmaster.core.engine.engine_core import write_allocation
from trainmaster.estimate.declared import DeclaredSpeeds
from trainmaster.model.allocation import Allocation
from trainmaster.model.capacity.free_resources import FreeCapacity
from trainmaster.model.capacity.packed_allocation import packed_list
from trainmaster.model.cluster import Cluster, Node, cluster_of, parse_cluster
from trainmaster.model.job import NO_DEMAND, Demand, JobId, JobSpec, Phase, PhaseCode
from trainmaster.model.job_table import JobColumns, JobTable
from trainmaster.model.placement import Strategy, parse_strategy
from trainmaster.model.plan import Plan
from trainmaster.model.policy_state import EMPTY_POLICY_STATE, PolicyState
from trainmaster.model.scaling import Measurement
from trainmaster.model.snapshot import Snapshot
from trainmaster.model.units import GPU_MILLI, MS_PER_S


def a_job(
    job_id: str,
    *,
    gpus: float = 1,
    gpus_each: float = 1,
    elastic: tuple[int, int] | None = None,
    servers: tuple[int, int] = (0, 0),
    seconds: float | None = 100.0,
    cpu: float = 0,
    mem_mib: int = 0,
    server_cpu: float = 0,
    server_mem_mib: int = 0,
    types: Sequence[str] = (),
    speeds: Mapping[str, float] | None = None,
    submit_s: float = 0,
    **rest: Any,
) -> JobSpec:
    """A job of `gpus` GPUs in workers of `gpus_each` (below one: a single worker), or an elastic one.

    `seconds` is its run time at the reference size on a type that does one step per second.
    """
    if elastic is None:
        if gpus < 1:
            gpus_each = gpus
        workers = max(1, round(gpus / gpus_each)) if gpus_each else round(gpus)
        elastic = (workers, workers)
    return JobSpec(
        id=JobId(job_id),
        submit_ms=round(submit_s * MS_PER_S),
        workers_min=elastic[0],
        workers_max=elastic[1],
        servers_min=servers[0],
        servers_max=servers[1],
        worker=Demand(round(gpus_each * GPU_MILLI), round(cpu * 1000), mem_mib),
        server=Demand(0, round(server_cpu * 1000), server_mem_mib) if servers[1] else NO_DEMAND,
        workers_ref=rest.pop("workers_ref", elastic[0]),
        servers_ref=rest.pop("servers_ref", max(servers[0], min(servers[1], 1))),
        gpu_types=tuple(types),
        steps_per_s=dict(speeds or {}),
        work_total=seconds,
        **rest,
    )


def a_cluster(described: str | Cluster | Iterable[Node]) -> Cluster:
    """From `v100=8,k80=8x4`, a list of nodes, or a cluster as it is."""
    if isinstance(described, Cluster):
        return described
    return parse_cluster(described) if isinstance(described, str) else cluster_of(described)


def a_node(
    node_id: str,
    gpus: int = 8,
    accelerator: str = "v100",
    *,
    cpu: float = 0,
    mem_mib: int = 0,
    rack: str = "",
) -> Node:
    """A node; CPU and memory of 0 mean "not a constraint"."""
    node = Node(node_id, accelerator, gpus, rack=rack)
    if cpu:
        node = replace(node, cpu_milli=round(cpu * 1000))
    return replace(node, mem_mib=mem_mib) if mem_mib else node


@dataclass(frozen=True)
class Held:
    """How a job of a built snapshot stands: its size, phase, and how long it has been there.

    With an `allocation` it gets exactly that, otherwise it is placed by the view's strategy.
    """

    workers: int | None = None
    servers: int | None = None
    phase: Phase = Phase.RUNNING
    since_s: float = 0.0
    work_done: float = 0.0
    service_gpu_s: float = 0.0
    accelerator: int | None = None
    allocation: Allocation | None = None


Running = Mapping[str, "int | Held"] | Sequence[str]


def a_view(
    jobs: Sequence[JobSpec],
    cluster: str | Cluster | Iterable[Node] = "v100=8",
    *,
    running: Running = (),
    down: Sequence[int] = (),
    placement: str = "pack",
    now_s: float = 0.0,
    backoff_until_s: Mapping[str, float] | None = None,
    paused: Sequence[str] = (),
    losses: Mapping[str, Sequence[tuple[float, float]]] | None = None,
    row_order: Sequence[int] | None = None,
    memo: PolicyState = EMPTY_POLICY_STATE,
    **snapshot: Any,
) -> Snapshot:
    """A snapshot with these jobs in order of arrival; `running` says who holds what. What it
    puts on a node that is `down` is lost with it.

    `row_order` lists the positions of `jobs` in the order of their rows (and slots), which must not
    matter to a policy.
    """
    built = a_cluster(cluster)
    columns = JobColumns(built)
    columns.version = 7
    now_ms = round(now_s * MS_PER_S)
    order = range(len(jobs)) if row_order is None else row_order
    estimator = DeclaredSpeeds()
    for position in order:
        spec = jobs[position]
        job_index = columns.add(spec, spec.submit_ms, *estimator.profile(spec, built.types))
        columns.ints["arrival"][job_index] = position
    up = np.ones(len(built.nodes), np.bool_)
    up[list(down)] = False
    free_capacity = FreeCapacity.full(built)
    strategy = parse_strategy(placement)
    given = dict.fromkeys(running, Held()) if not isinstance(running, Mapping) else running
    for name, how in given.items():
        _hold(columns, free_capacity, strategy, now_ms, JobId(name), how if isinstance(how, Held) else Held(how))
        job_index = columns.job_index_of[JobId(name)]
        allocation = columns.allocations[job_index]
        if allocation is not None and not all(up[part.node] for part in allocation.parts):
            columns.ints["phase"][job_index] = PhaseCode.LOST
    for name, until_s in (backoff_until_s or {}).items():
        columns.ints["not_before_ms"][columns.job_index_of[JobId(name)]] = round(until_s * MS_PER_S)
    for name in paused:
        columns.ints["phase"][columns.job_index_of[JobId(name)]] = PhaseCode.PAUSED
    for name, history in (losses or {}).items():
        for work, loss in history:
            columns.record_loss(columns.job_index_of[JobId(name)], work, loss)
    return Snapshot(
        version=columns.version,
        now_ms=now_ms,
        cluster=built,
        up=up,
        free_capacity=free_capacity,
        jobs=JobTable(columns, now_ms),
        memo=memo,
        placement=strategy,
        **snapshot,
    )


def _hold(
    columns: JobColumns, free_capacity: FreeCapacity, strategy: Strategy, now_ms: int, job_id: JobId, how: Held
) -> None:
    """Give a job its devices, as the engine would have."""
    job_index = columns.job_index_of[job_id]
    spec = columns.spec(job_index)
    allocation = how.allocation
    if allocation is None:
        up = np.ones(len(columns.cluster.nodes), np.bool_)
        view = Snapshot(
            columns.version,
            now_ms,
            columns.cluster,
            up,
            free_capacity,
            JobTable(columns, now_ms),
            placement=strategy,
        )
        row = int(np.flatnonzero(view.jobs.job_indices == job_index)[0])
        builder = view.draft()
        if not builder.place(row, workers=how.workers, servers=how.servers, accelerator=how.accelerator):
            raise ValueError(f"the scene has no room for {job_id}")
        allocation = builder.changes[row]
    assert allocation is not None
    free_capacity.take(allocation, spec.worker, spec.server)
    write_allocation(columns, job_index, packed_list(allocation), 0)
    ints, floats = columns.ints, columns.floats
    for name, value in (
        ("phase", int(how.phase)),
        ("generation", 1),
        ("attempts", 1),
        ("as_of_ms", now_ms),
        ("productive_ms", round(how.since_s * MS_PER_S)),
        ("first_start_ms", round(how.since_s * MS_PER_S)),
    ):
        ints[name][job_index] = value
    floats["work_done"][job_index] = floats["work_saved"][job_index] = how.work_done
    floats["service_gpu_s"][job_index] = how.service_gpu_s
    floats["rate"][job_index] = columns.rate_of(
        job_index, allocation.accelerator, allocation.workers, allocation.servers, allocation.spread
    )


def a_measurement(spec: JobSpec, accelerator: str, steps_per_s: float, **more: Any) -> Measurement:
    """What a job measures at its reference size on one node."""
    size = {"workers": spec.workers_ref, "servers": spec.servers_ref, "spread": False, "seconds": 60.0}
    return Measurement(spec, accelerator, steps_per_s=steps_per_s, **{**size, **more})


def row_of(view: Snapshot, job_id: str) -> int:
    """The row of a job."""
    return view.jobs.ids.index(JobId(job_id))


def sizes_after(view: Snapshot, plan: Plan) -> dict[str, tuple[int, int]]:
    """(workers, servers) of every job that holds something once the plan is carried out."""
    out: dict[str, tuple[int, int]] = {}
    for row in range(len(view.jobs)):
        held = view.jobs.allocation(row) if view.jobs.holding[row] else None
        allocation = plan.changes.get(row, held)
        if allocation is not None:
            out[view.jobs.id(row)] = (allocation.workers, allocation.servers)
    return dict(sorted(out.items()))


def started(view: Snapshot, plan: Plan) -> set[str]:
    """Jobs that the plan starts."""
    return {view.jobs.id(row) for row, given in plan.changes.items() if given and not view.jobs.holding[row]}


def stopped(view: Snapshot, plan: Plan) -> set[str]:
    """Jobs that the plan stops."""
    return {view.jobs.id(row) for row, given in plan.changes.items() if given is None}
