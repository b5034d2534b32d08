"""Jobs that may use certain nodes only: which those are, and plans that overlook it.

Placement through a plan builder knows the sets. A policy that places by itself may not: what it gives a job outside its
set is placed again within it, or the job waits.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trainmaster.engine.state import State
from trainmaster.model import event as ev
from trainmaster.model.allocation import Allocation
from trainmaster.model.capacity.packed_allocation import changes_of
from trainmaster.model.plan import Plan
from trainmaster.model.snapshot import Snapshot


def told(state: State, event: ev.NodeSet) -> None:
    if state.node_sets.get(event.name) != event.nodes:
        state.node_sets[event.name] = event.nodes
        state.changed = True


def masks(state: State) -> dict[str, np.ndarray]:
    """The sets that leave some node out; nodes that came later belong to a set when it says so."""
    n = len(state.cluster.nodes)
    found = {}
    for name, nodes in state.node_sets.items():
        if len(nodes) < n:
            mask = np.zeros(n, np.bool_)
            mask[[node for node in nodes if node < n]] = True
            found[name] = mask
    return found


def mended(view: Snapshot, plan: Plan) -> Plan:
    """The same plan, with every job on nodes that it may use."""
    astray = [row for row in plan.changes if not _acceptable(view, row, plan.changes[row])]
    if not astray:
        return plan
    builder = view.draft()
    for row, allocation in plan.changes.items():
        spec, old = view.jobs.spec(row), view.jobs.allocation(row) if view.jobs.holds(row) else None
        if old is not None:
            builder.free_capacity.give(old, spec.worker, spec.server)
        if allocation is not None and row not in astray:
            builder.free_capacity.take(allocation, spec.worker, spec.server)
        if row not in astray:
            builder.changes[row] = allocation
    why = plan.why.copy()
    for row in astray:
        wanted, spec = plan.changes[row], view.jobs.spec(row)
        assert wanted is not None
        old = view.jobs.allocation(row) if view.jobs.holds(row) else None
        if old is not None and builder.free_capacity.fits(old, spec.worker, spec.server):
            builder.free_capacity.take(old, spec.worker, spec.server)  # it stays where it is
            continue
        placed = builder.place(row, workers=wanted.workers, servers=wanted.servers)
        why[row] = builder._why[row]
        if not placed and old is not None:
            builder.changes[row] = None
    return replace(plan, changes=changes_of(builder.changes), why=why)


def _acceptable(view: Snapshot, row: int, allocation: Allocation | None) -> bool:
    mask = view.acceptable(row)
    if mask is None or allocation is None:
        return True
    old = view.jobs.allocation(row) if view.jobs.holds(row) else None
    kept = set() if old is None else {part.node for part in old.parts}
    return all(mask[part.node] or part.node in kept for part in allocation.parts)
