"""Plan verification: nothing that a policy says becomes a command unchecked."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trainmaster.engine.plan_check import AT_ONCE, AT_ONCE_THEN_LOOK, BROKEN, SOUND, check_changes
from trainmaster.model import kernels
from trainmaster.model.allocation import Allocation, only_share_differs
from trainmaster.model.gangs import changes_of
from trainmaster.model.job import JobSpec, P, Phase
from trainmaster.model.ledger import Ledger
from trainmaster.model.placement import Strategy
from trainmaster.model.plan import Plan
from trainmaster.model.snapshot import Snapshot
from trainmaster.model.table import JobColumns
from trainmaster.model.units import GPU_MILLI


class PlanError(Exception):
    """A plan that breaks a rule. It is refused whole; the message names the job and the rule."""


_CHANGEABLE = frozenset({P.PENDING, P.RESERVED, P.RUNNING})
_STOPPABLE = frozenset({P.LAUNCHING, P.RESIZING})


class Verified(NamedTuple):
    """A plan that breaks no rule: the ledger after it, and its changes in the order in which they are carried out."""

    ledger: Ledger
    slots: npt.NDArray[np.int64]
    first: npt.NDArray[np.int64]
    """Where the gang of each slot begins in `flat`; -1: it is stopped."""
    flat: npt.NDArray[np.int64]
    at_once: bool
    """Nothing in it needs more than stopping and starting whole rigid gangs (see `turnover`)."""
    look_again: bool
    """Jobs that it stops may find room elsewhere."""


def verify(view: Snapshot, plan: Plan) -> Ledger:
    """Check a plan against the snapshot it was made from; returns the ledger after it."""
    return examine(view, plan).ledger


def examine(view: Snapshot, plan: Plan) -> Verified:
    """As `verify_in_words`, by compiled passes over the columns. What breaks a rule there is told in words."""
    columns, slots, cluster = view.jobs.columns, view.jobs.slots, view.cluster
    if plan.based_on != view.version or plan.rejections:
        verify_in_words(view, plan)
    ints = columns.ints
    changed, first, flat = changes_of(plan.changes).in_order()
    changed_slots = changed
    ledger, verdict = view.ledger, SOUND
    if len(changed):
        changed_slots = slots[changed]
        ledger = ledger.copy()
        verdict = check_changes(
            changed_slots, first, flat, columns.allocations.rows(), ints["phase"], ints["workers_min"],
            ints["workers_max"], ints["servers_min"], ints["servers_max"], ints["workers_ref"], ints["servers_ref"],
            ints["devices_each"], ints["share_milli"], ints["preemptible"], ints["worker_cpu_milli"],
            ints["worker_mem_mib"], ints["server_cpu_milli"], ints["server_mem_mib"], columns.allowed,
            cluster.type_of, view.up, cluster.gpus, view.placement == Strategy.COUNT, ledger.device_milli,
            ledger.whole, ledger.cpu_milli, ledger.mem_mib,
        )  # fmt: skip
    waits = first
    if plan.rejections:
        changed = np.concatenate([changed, np.fromiter(plan.rejections, np.int64)])
        waits = np.concatenate([first, np.zeros(len(plan.rejections), np.int64)])
    silent = kernels.first_silent(plan.why, slots, ints["phase"], changed, waits)
    if verdict == BROKEN or silent >= 0:
        verify_in_words(view, plan)
        raise AssertionError("a plan was found broken, but no rule that it breaks")
    at_once = verdict >= AT_ONCE and not plan.rejections
    return Verified(ledger, changed_slots, first, flat, at_once, verdict == AT_ONCE_THEN_LOOK)


def verify_in_words(view: Snapshot, plan: Plan) -> Ledger:
    """Check a plan rule by rule, and name the rule and the job where one is broken; returns the ledger after it.

    Rules: it is not stale; gangs are whole and within the job's range; types are acceptable; nodes that
    the job does not have yet are up; no device, CPU or memory is given twice; only jobs that may be
    changed are; every job left waiting has a reason.
    """
    if plan.based_on != view.version:
        raise PlanError(f"plan is based on version {plan.based_on}, the state is at {view.version}")
    ledger = view.ledger.copy() if plan.changes else view.ledger
    columns, slots = view.jobs.columns, view.jobs.slots
    phases = columns.ints["phase"]
    for row, allocation in plan.changes.items():
        slot = int(slots[row])
        spec = columns.spec(slot)
        phase = int(phases[slot])
        if phase not in _CHANGEABLE and not (allocation is None and phase in _STOPPABLE):
            raise PlanError(f"job {spec.id} cannot be changed while it is {Phase(phase).name.lower()}")
        old = columns.allocations[slot]
        if old is not None:
            keeps_place = allocation is not None and (spec.elastic or only_share_differs(old, allocation))
            if phase == P.RUNNING and not spec.preemptible and not keeps_place:
                raise PlanError(f"job {spec.id} may not be preempted")
            ledger.give(old, spec.worker, spec.server)
        elif allocation is None:
            raise PlanError(f"job {spec.id} holds nothing that could be taken")
    for row, allocation in plan.changes.items():
        if allocation is not None:
            slot = int(slots[row])
            spec = columns.spec(slot)
            _check_gang(view, columns, slot, spec, allocation)
            if not ledger.fits(allocation, spec.worker, spec.server):
                raise PlanError(f"job {spec.id} is given devices, CPU or memory that others have")
            ledger.take(allocation, spec.worker, spec.server)
    for row in plan.rejections:
        if phases[slots[row]] != P.PENDING or row in plan.changes:
            raise PlanError(f"job {view.jobs.id(row)} can be rejected only while it is pending and stays so")
    _check_reasons(view, plan, phases)
    return ledger


def _check_gang(view: Snapshot, columns: JobColumns, slot: int, spec: JobSpec, allocation: Allocation) -> None:
    ints = columns.ints
    workers, servers = allocation.workers, allocation.servers
    least, most = int(ints["workers_min"][slot]), int(ints["workers_max"][slot])
    if not least <= workers <= most:
        raise PlanError(f"job {spec.id} is given {workers} workers, it takes {least} to {most}")
    if not spec.servers_min <= servers <= spec.servers_max:
        raise PlanError(f"job {spec.id} is given {servers} servers, it takes {spec.servers_min} to {spec.servers_max}")
    kind = allocation.accelerator
    if not 0 <= kind < len(view.cluster.types) or not columns.allowed[slot, kind]:
        raise PlanError(f"job {spec.id} is given a type of accelerator that it does not accept")
    devices_each = spec.worker.devices
    counting = view.placement == Strategy.COUNT
    n_devices = 0
    last_node = -1
    old = columns.allocations[slot]
    present = () if old is None else tuple(part.node for part in old.parts)
    for part in allocation.parts:
        if not last_node < part.node < len(view.cluster.nodes):
            raise PlanError(f"job {spec.id}: its parts are not one per node, in order of the nodes")
        last_node = part.node
        if not view.up[part.node] and part.node not in present:  # what it has there it may keep
            raise PlanError(f"job {spec.id} is given node {view.cluster.nodes[part.node].id}, which is down")
        if part.devices and view.cluster.type_of[part.node] != kind:
            raise PlanError(f"job {spec.id} is given devices of two types")
        if not counting and len(part.devices) != part.workers * devices_each:
            raise PlanError(
                f"job {spec.id}: {part.workers} workers need {part.workers * devices_each} devices on a node"
            )
        if len(set(part.devices)) != len(part.devices) and spec.worker.share_milli == GPU_MILLI:
            raise PlanError(f"job {spec.id} is given a device twice")
        if part.devices and not 0 <= min(part.devices) <= max(part.devices) < view.cluster.nodes[part.node].gpus:
            raise PlanError(f"job {spec.id} is given a device that the node does not have")
        n_devices += len(part.devices)
    if n_devices != workers * devices_each:
        raise PlanError(f"job {spec.id}: the gang is not whole ({n_devices} of {workers * devices_each} devices)")
    if allocation.share_milli > spec.worker.share_milli or (devices_each and allocation.share_milli <= 0):
        raise PlanError(f"job {spec.id} is given {allocation.share_milli} thousandths of each device")


def _check_reasons(view: Snapshot, plan: Plan, phases: npt.NDArray[np.int64]) -> None:
    n = len(plan.changes) + len(plan.rejections)
    changed = np.fromiter((*plan.changes, *plan.rejections), np.int64, n)
    first = np.zeros(n, np.int64)
    for k, allocation in enumerate(plan.changes.values()):
        first[k] = -1 if allocation is None else 0
    silent = kernels.first_silent(plan.why, view.jobs.slots, phases, changed, first)
    if silent >= 0:
        raise PlanError(f"job {view.jobs.id(silent)} is left waiting without a reason")
