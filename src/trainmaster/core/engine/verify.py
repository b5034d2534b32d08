"""The rules of a plan: nothing that a policy says becomes a command unchecked. `RULES` has the words."""

from __future__ import annotations

from trainmaster.core.codes import (
    DEVICE_TWICE,
    GPU_TYPE,
    HEAD,
    HOLDS_NOTHING,
    LAUNCHING,
    N_PARTS,
    NO_SUCH_DEVICE,
    NODE_DOWN,
    NOT_CHANGEABLE,
    NOT_PREEMPTIBLE,
    NOT_WHOLE,
    PART,
    PART_DEVICES,
    PART_ORDER,
    PENDING,
    RESERVED,
    RESIZING,
    RUNNING,
    SERVERS,
    SHARE,
    SOUND,
    TAKEN,
    TWO_TYPES,
    TYPE,
    WHOLE,
    WORKERS,
    WRONG_SHARE,
)
from trainmaster.core.int_list import IntList, Ints
from trainmaster.core.state.cluster_arrays import ClusterArrays
from trainmaster.core.state.free_resources import FreeResources, fits_gang, give_gang, take_gang
from trainmaster.core.state.job_arrays import JobArrays
from trainmaster.core.state.packed_allocation import gang_devices, gang_servers, gang_workers, is_on, same_place
from trainmaster.core.state.plan_arrays import PlanArrays

RULES = (
    "",
    "job {id} cannot be changed while it is {phase}",
    "job {id} may not be preempted",
    "job {id} holds nothing that could be taken",
    "job {id} is given {workers} workers, it takes {workers_min} to {workers_max}",
    "job {id} is given {servers} servers, it takes {servers_min} to {servers_max}",
    "job {id} is given a type of accelerator that it does not accept",
    "job {id}: its parts are not one per node, in order of the nodes",
    "job {id} is given node {node}, which is down",
    "job {id} is given devices of two types",
    "job {id}: {part_workers} workers need {part_devices} devices on a node",
    "job {id} is given a device twice",
    "job {id} is given a device that the node does not have",
    "job {id}: the gang is not whole ({devices} of {needed} devices)",
    "job {id} is given {share_milli} thousandths of each device",
    "job {id} is given devices, CPU or memory that others have",
)


def apply_changes(jobs: JobArrays, nodes: ClusterArrays, counting: bool, plan: PlanArrays, free: FreeResources) -> int:
    """Check the changes of a plan, rule by rule, and bring the free resources to the state after it. Returns the rule
    that is broken (SOUND: none); then `plan.broken` and `plan.broken_part` say where, and the free resources are as
    before."""
    n = plan.jobs.n
    rule = done = 0
    for k in range(n):
        rule = _check_change(jobs, plan, k)
        if rule != SOUND:
            plan.broken = k
            break
        i = plan.jobs.values[k]
        if jobs.allocation.values[i * jobs.width] > 0:
            give_gang(free, jobs.allocation, i * jobs.width, i, jobs)
        done = k + 1
    taken = 0
    if rule == SOUND:
        for k in range(n):
            at = plan.first.values[k]
            if at >= 0:
                i = plan.jobs.values[k]
                rule = check_gang(jobs, nodes, counting, i, plan, at)
                if rule == SOUND and not fits_gang(free, plan.flat, at, i, jobs):
                    rule = TAKEN
                if rule != SOUND:
                    plan.broken = k
                    break
                take_gang(free, plan.flat, at, i, jobs)
            taken = k + 1
    if rule != SOUND:
        _undo(jobs, plan, done, taken, free)
    return rule


def undo_changes(jobs: JobArrays, plan: PlanArrays, free: FreeResources) -> None:
    """Take back what `apply_changes` did."""
    _undo(jobs, plan, plan.jobs.n, plan.jobs.n, free)


def _undo(jobs: JobArrays, plan: PlanArrays, done: int, taken: int, free: FreeResources) -> None:
    for k in range(taken):
        if plan.first.values[k] >= 0:
            give_gang(free, plan.flat, plan.first.values[k], plan.jobs.values[k], jobs)
    for k in range(done):
        i = plan.jobs.values[k]
        if jobs.allocation.values[i * jobs.width] > 0:
            take_gang(free, jobs.allocation, i * jobs.width, i, jobs)


def _check_change(jobs: JobArrays, plan: PlanArrays, k: int) -> int:
    """Whether the job may be changed now, and may be changed so."""
    i, at, old = plan.jobs.values[k], plan.first.values[k], plan.jobs.values[k] * jobs.width
    phase, given = jobs.phase[i], at >= 0
    changeable = phase in (PENDING, RESERVED, RUNNING)
    if not changeable and (given or phase not in (LAUNCHING, RESIZING)):
        return NOT_CHANGEABLE
    if jobs.allocation.values[old] == 0:
        return SOUND if given else HOLDS_NOTHING
    if phase == RUNNING and jobs.preemptible[i] == 0:
        if not given:
            return NOT_PREEMPTIBLE
        elastic = jobs.workers_min[i] != jobs.workers_max[i] or jobs.servers_min[i] != jobs.servers_max[i]
        other_share = jobs.allocation.values[old + SHARE] != plan.flat.values[at + SHARE]
        if not elastic and not (other_share and same_place(plan.flat, at, jobs.allocation, old)):
            return NOT_PREEMPTIBLE
    return SOUND


def check_gang(jobs: JobArrays, nodes: ClusterArrays, counting: bool, i: int, plan: PlanArrays, at: int) -> int:
    """The rules for one gang: size in range, an accepted type, parts one per node in order, on nodes that are up or
    that it has already, devices that exist, none twice, as many as its workers need."""
    flat = plan.flat
    workers, servers, gpu_type = gang_workers(flat, at), gang_servers(flat, at), flat.values[at + GPU_TYPE]
    if not jobs.workers_min[i] <= workers <= jobs.workers_max[i]:
        return WORKERS
    if not jobs.servers_min[i] <= servers <= jobs.servers_max[i]:
        return SERVERS
    if not 0 <= gpu_type < jobs.n_types or not jobs.may_use[i, gpu_type]:
        return TYPE
    last = -1
    device = at + HEAD + PART * flat.values[at + N_PARTS]
    for k in range(flat.values[at + N_PARTS]):
        part = at + HEAD + PART * k
        plan.broken_part = k
        node = flat.values[part]
        if not last < node < nodes.n_nodes:
            return PART_ORDER
        last = node
        if not nodes.up[node] and not is_on(jobs.allocation, i * jobs.width, node):
            return NODE_DOWN
        rule = _check_devices(jobs, nodes, counting, i, flat, part, device, gpu_type)
        if rule != SOUND:
            return rule
        device += flat.values[part + 3]
    if gang_devices(flat, at) != workers * jobs.devices_each[i]:
        return NOT_WHOLE
    share = flat.values[at + SHARE]
    if share > jobs.share_milli[i] or (jobs.devices_each[i] > 0 and share <= 0):
        return WRONG_SHARE
    return SOUND


def _check_devices(
    jobs: JobArrays, nodes: ClusterArrays, counting: bool, i: int, flat: IntList, part: int, device: int, gpu_type: int
) -> int:
    """The devices of one part, which begin at `device`."""
    node, n_devices = flat.values[part], flat.values[part + 3]
    if n_devices > 0 and nodes.type_of[node] != gpu_type:
        return TWO_TYPES
    if not counting and n_devices != flat.values[part + 1] * jobs.devices_each[i]:
        return PART_DEVICES
    if jobs.share_milli[i] == WHOLE:
        for x in range(device, device + n_devices):
            for y in range(device, x):
                if flat.values[y] == flat.values[x]:
                    return DEVICE_TWICE
    for x in range(device, device + n_devices):
        if not 0 <= flat.values[x] < nodes.gpus[node]:
            return NO_SUCH_DEVICE
    return SOUND


def first_silent(jobs: JobArrays, which: Ints, why: Ints, answered: Ints) -> int:
    """The first row that waits without a reason, -1 if none. `answered[row]`: 1 where the plan starts or rejects the
    job,
    -1 where it stops it, 0 where it does not mention it."""
    for row in range(len(which)):
        waits = answered[row] < 0 or (jobs.phase[which[row]] == PENDING and answered[row] == 0)
        if waits and why[row] == 0:
            return row
    return -1
