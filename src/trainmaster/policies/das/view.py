"""A snapshot as the agents see it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trainmaster.core.arrays import Floats, Ints
from trainmaster.model.plan_builder import PlanBuilder
from trainmaster.model.snapshot import Snapshot
from trainmaster.model.units import GPU_MILLI, MS_PER_S
from trainmaster.policies.das.features import Parts, Scene
from trainmaster.policies.das.observed_jobs import ObservedJobs
from trainmaster.policies.das.waiting_rules import settle


def scene_of(view: Snapshot, waiting: Ints, beliefs: ObservedJobs) -> Scene:
    """Machines and waiting jobs; of running ones where they are and when they are expected to end."""
    jobs, cluster = view.jobs, view.cluster
    m = len(cluster.nodes)
    jobs_on, left_s = np.zeros(m, np.int64), np.zeros(m)
    machine, gpus, part_left_s = [], [], []
    holding = np.flatnonzero(jobs.holding)
    expected_s = beliefs.left_s(view, holding)
    for row, left in zip(holding.tolist(), expected_s.tolist(), strict=True):
        allocation = jobs.allocation(row)
        for part in allocation.parts if allocation is not None else ():
            jobs_on[part.node] += 1
            left_s[part.node] += left
            machine.append(part.node)
            gpus.append(len(part.devices))
            part_left_s.append(left)
    throughput = np.where(jobs.allowed[waiting], jobs.throughput[waiting], 0.0)
    fastest = np.maximum(throughput.max(axis=1, keepdims=True), 1e-12)
    log_time, deviation = beliefs.expected(view, waiting)
    need = -(-jobs.workers_ask[waiting] * jobs.worker_gpu_milli[waiting] // GPU_MILLI)
    scene = Scene(
        gpus=cluster.gpus * view.up,
        free=(view.free_capacity.whole * view.up).astype(np.int64),
        type_of=cluster.type_of,
        rack_of=cluster.rack_of,
        jobs_on=jobs_on,
        left_s=left_s / np.maximum(jobs_on, 1),
        parts=Parts.sorted(np.array(machine, np.int64), np.array(gpus, np.int64), np.array(part_left_s)),
        need=need,
        each=jobs.devices_each[waiting],
        speed=throughput / fastest,
        log_time=log_time,
        deviation=deviation,
        waited_s=np.maximum(view.now_ms - jobs.submit_ms[waiting], 0) / MS_PER_S,
        whole_only=np.zeros(len(waiting), np.bool_),
        kept=_kept_apart(view, waiting, beliefs),
    )
    return settle(scene, _taken_whole(view, waiting))


def _kept_apart(view: Snapshot, waiting: Ints, beliefs: ObservedJobs) -> Floats:
    """Part of its speed that a job keeps on several machines: as stated for it, and as gangs were seen to."""
    jobs = view.jobs
    alone = np.where(jobs.allowed[waiting], jobs.throughput[waiting], 0.0)
    best = alone.argmax(axis=1)
    rows = np.arange(len(waiting))
    stated = jobs.throughput_spread[waiting][rows, best] / np.maximum(alone[rows, best], 1e-12)
    return np.clip(np.where(stated > 0, stated, 1.0) * beliefs.kept_apart(), 0.1, 1.0)


def _taken_whole(view: Snapshot, waiting: Ints) -> npt.NDArray[np.bool_]:
    """Waiting jobs that some machine could take whole if it were empty."""
    jobs, cluster = view.jobs, view.cluster
    cpu_milli, mem_mib = cluster.cpu_milli, cluster.mem_mib
    out = np.zeros(len(waiting), np.bool_)
    known: dict[tuple[int | bytes | str, ...], bool] = {}
    for place, row in enumerate(waiting.tolist()):
        workers, each = int(jobs.workers_ask[row]), int(jobs.worker_gpu_milli[row])
        cpu, mem = int(jobs.worker_cpu_milli[row]), int(jobs.worker_mem_mib[row])
        node_set = jobs.spec(row).node_set if view.node_sets else ""
        key = (workers, each, cpu, mem, jobs.allowed[row].tobytes(), node_set)
        if key not in known:
            enough = view.open_to(row) & jobs.allowed[row][cluster.type_of] & (cluster.gpus > 0)
            for there, wanted in ((cluster.gpus * GPU_MILLI, each), (cpu_milli, cpu), (mem_mib, mem)):
                enough &= there >= workers * wanted
            known[key] = bool(enough.any())
        out[place] = known[key]
    return out


def gang_rooms(builder: PlanBuilder, row: int) -> Ints:
    """Workers of a waiting job that each node could take now, with CPU and memory."""
    view, jobs, free_capacity = builder.view, builder.view.jobs, builder.free_capacity
    each, share = int(jobs.devices_each[row]), int(jobs.share_milli[row])
    fitting = free_capacity.whole if share == GPU_MILLI else (free_capacity.device_milli // share).sum(axis=1)
    room = fitting // each
    for free, wanted in (
        (free_capacity.cpu_milli, jobs.worker_cpu_milli),
        (free_capacity.mem_mib, jobs.worker_mem_mib),
    ):
        if wanted[row] > 0:
            room = np.minimum(room, free // int(wanted[row]))
    usable = view.open_to(row) & jobs.allowed[row][view.cluster.type_of]
    return np.where(usable, np.maximum(room, 0), 0).astype(np.int64)
