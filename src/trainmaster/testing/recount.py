"""An independent count of what a plan gives to whom, written from the rules alone; shares no code with the
ledger or the engine's verification."""

from __future__ import annotations

from collections import defaultdict

from trainmaster.model.job import Phase
from trainmaster.model.plan import Plan
from trainmaster.model.snapshot import Snapshot


def recount(view: Snapshot, plan: Plan) -> list[str]:
    """Every broken rule as text: capacity, whole gangs, types, nodes, a reason for every job that waits."""
    faults: list[str] = []
    gpu: dict[tuple[int, int], int] = defaultdict(int)
    cpu: dict[int, int] = defaultdict(int)
    mem: dict[int, int] = defaultdict(int)
    only_counted = view.placement.name == "COUNT"
    for row in range(len(view.jobs)):
        spec = view.jobs.spec(row)
        before = view.jobs.allocation(row)
        after = plan.changes.get(row, before)
        if after is None:
            waits = view.jobs.phase[row] == Phase.PENDING or before is not None
            if waits and row not in plan.rejections and plan.why[row] == 0:
                faults.append(f"{spec.id} waits without a reason")
            continue
        workers = servers = devices = 0
        for node, part_workers, part_servers, part_devices in after.parts:
            workers, servers, devices = (
                workers + part_workers,
                servers + part_servers,
                devices + len(part_devices),
            )
            cpu[node] += part_workers * spec.worker.cpu_milli + part_servers * spec.server.cpu_milli
            mem[node] += part_workers * spec.worker.mem_mib + part_servers * spec.server.mem_mib
            for device in part_devices:
                gpu[node, device] += after.share_milli
                if not 0 <= device < view.cluster.nodes[node].gpus:
                    faults.append(f"{spec.id}: node {node} has no device {device}")
            if row in plan.changes:
                faults += _changed_part(view, row, after.accelerator, node, bool(part_devices))
        if row in plan.changes:
            if not spec.workers_min <= workers <= spec.workers_max:
                faults.append(f"{spec.id}: {workers} workers, not {spec.workers_min}..{spec.workers_max}")
            if not spec.servers_min <= servers <= spec.servers_max:
                faults.append(f"{spec.id}: {servers} servers, not {spec.servers_min}..{spec.servers_max}")
            if devices != workers * spec.worker.devices:
                faults.append(f"{spec.id}: the gang is not whole: {devices} devices for {workers} workers")
    faults += [f"device {d} of node {n} is given {used}/1000" for (n, d), used in sorted(gpu.items()) if used > 1000]
    if not only_counted:
        nodes = view.cluster.nodes
        faults += [f"CPU of node {n} is overdrawn" for n, used in sorted(cpu.items()) if used > nodes[n].cpu_milli]
        faults += [f"memory of node {n} is overdrawn" for n, used in sorted(mem.items()) if used > nodes[n].mem_mib]
    return faults


def _changed_part(view: Snapshot, row: int, accelerator: int, node: int, has_devices: bool) -> list[str]:
    spec = view.jobs.spec(row)
    faults = []
    if not view.up[node]:
        faults.append(f"{spec.id} is put on node {node}, which is down")
    gpu_type = view.cluster.nodes[node].accelerator
    if has_devices and gpu_type != view.cluster.types[accelerator]:
        faults.append(f"{spec.id} gets {gpu_type} devices in a gang of {view.cluster.types[accelerator]}")
    if has_devices and spec.gpu_types and gpu_type not in spec.gpu_types:
        faults.append(f"{spec.id} does not accept {gpu_type}")
    return faults
