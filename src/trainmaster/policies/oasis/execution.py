"""From the promises of the running slot to changes of a plan builder: keep, resize, stop, start, on named nodes.

First try: jobs that run at the promised size on the promised type stay where they are, whatever nodes the
commitments name, since a move costs a restart. If someone then does not fit, second try: everyone goes where the
commitments say, which fits by construction while all devices are whole. What still does not fit (fractions of
devices that do not add up, devices of gangs that are just ending) waits, and is made good later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from trainmaster.model.allocation import Allocation, Part
from trainmaster.model.capacity.free_resources import FreeCapacity
from trainmaster.model.job import PhaseCode
from trainmaster.model.plan_builder import PlanBuilder
from trainmaster.model.snapshot import Snapshot
from trainmaster.policies.oasis.commitments import NodeCounts, Run

_CHANGEABLE = (PhaseCode.PENDING, PhaseCode.RESERVED, PhaseCode.RUNNING)
_STOPPABLE = (PhaseCode.RESERVED, PhaseCode.LAUNCHING, PhaseCode.RUNNING, PhaseCode.RESIZING)


@dataclass(frozen=True)
class Wanted:
    """A promise for the running slot."""

    accelerator: int
    run: Run


@dataclass
class Realised:
    """The draft with the changes made, and the rows that got nothing although they were promised."""

    builder: PlanBuilder
    failed: list[int] = field(default_factory=list)

    def holding(self) -> list[bool]:
        """By row, whether the job has something under the plan builder."""
        held = self.builder.view.jobs.holding.tolist()
        for row, allocation in self.builder.changes.items():
            held[row] = allocation is not None
        return held


def realise(view: Snapshot, wanted: Mapping[int, Wanted], order: list[int]) -> Realised:
    """Bring every row of `order` to what it is promised in the running slot (not in `wanted`: nothing)."""
    first = _attempt(view, wanted, order, strict=False)
    if not first.failed:
        return first
    second = _attempt(view, wanted, order, strict=True)
    return second if len(second.failed) < len(first.failed) else first


def _attempt(view: Snapshot, wanted: Mapping[int, Wanted], order: list[int], *, strict: bool) -> Realised:
    builder = view.draft()
    out = Realised(builder)
    starting: list[int] = []
    growing: list[int] = []
    jobs = view.jobs
    phases, holding, not_before_ms = jobs.phase.tolist(), jobs.holding.tolist(), jobs.not_before_ms.tolist()
    held = list(zip(jobs.held_type.tolist(), jobs.workers.tolist(), jobs.servers.tolist(), strict=True))
    for row in order:
        goal, phase = wanted.get(row), phases[row]
        if not holding[row]:
            if goal is not None and phase == PhaseCode.PENDING and not_before_ms[row] <= view.now_ms:
                starting.append(row)
        elif goal is None:
            if phase in _STOPPABLE and _may_stop(view, row):
                builder.release(row)
        elif phase not in _CHANGEABLE or _is_kept(view, row, held[row], goal, strict):
            continue
        elif held[row][0] == goal.accelerator and not strict and jobs.spec(row).elastic:
            if goal.run.workers <= held[row][1] and goal.run.servers <= held[row][2]:
                builder.resize(row, goal.run.workers, goal.run.servers)
            else:
                growing.append(row)
        elif _may_stop(view, row):
            builder.release(row)
            starting.append(row)
    for row in growing:
        # Not enough room to grow is no failure: it goes on at its present size.
        builder.resize(row, wanted[row].run.workers, wanted[row].run.servers)
    for row in starting:
        goal = wanted[row]
        if not place_exactly(builder, row, goal.accelerator, goal.run.place) and not builder.place(
            row, workers=goal.run.workers, servers=goal.run.servers, accelerator=goal.accelerator
        ):
            out.failed.append(row)
    return out


def _may_stop(view: Snapshot, row: int) -> bool:
    return bool(view.jobs.preemptible[row]) or int(view.jobs.phase[row]) != PhaseCode.RUNNING


def _is_kept(view: Snapshot, row: int, held: tuple[int, int, int], goal: Wanted, strict: bool) -> bool:
    if held != (goal.accelerator, goal.run.workers, goal.run.servers):
        return False
    present = view.jobs.allocation(row) if strict else None
    return present is None or place_of(present) == goal.run.place


def place_of(allocation: Allocation) -> NodeCounts:
    return tuple(sorted((p.node, p.workers, p.servers) for p in allocation.parts if p.workers or p.servers))


def place_exactly(builder: PlanBuilder, row: int, accelerator: int, place: NodeCounts) -> bool:
    """Give a gang these numbers on these nodes if all it needs is there; False: nothing happens."""
    view = builder.view
    spec = view.jobs.spec(row)
    parts: list[Part] = []
    for node, workers, servers in place:
        devices = _pick_devices(builder.free_capacity, node, workers * spec.worker.devices, spec.worker.share_milli)
        if devices is None or not view.up[node]:
            return False
        parts.append(Part(node, workers, servers, devices))
    allocation = Allocation(accelerator, tuple(parts), spec.worker.share_milli)
    if not builder.free_capacity.fits(allocation, spec.worker, spec.server):
        return False
    builder.free_capacity.take(allocation, spec.worker, spec.server)
    builder.changes[row] = allocation
    if allocation == view.jobs.allocation(row):
        del builder.changes[row]
    return True


def _pick_devices(free_capacity: FreeCapacity, node: int, count: int, share_milli: int) -> tuple[int, ...] | None:
    """Devices with room for the share, fullest first so that whole ones stay whole."""
    if count == 0:
        return ()
    free = free_capacity.device_milli[node]
    fitting = np.flatnonzero(free >= share_milli)
    if len(fitting) < count:
        return None
    by_room = fitting[np.argsort(free[fitting], kind="stable")]
    return tuple(sorted(by_room[:count].tolist()))
