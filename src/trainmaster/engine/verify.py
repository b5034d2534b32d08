"""Plan verification: nothing that a policy says becomes a command unchecked. The rules: `core.engine.verify`."""

from __future__ import annotations

import numpy as np

from trainmaster.core.codes import COUNT, HEAD, N_PARTS, PART, SHARE, SOUND
from trainmaster.core.engine.verify import RULES, apply_changes, first_silent, undo_changes
from trainmaster.core.state.free_resources import FreeResources
from trainmaster.core.state.packed_allocation import gang_devices, gang_servers, gang_workers
from trainmaster.core.state.plan_arrays import PlanArrays
from trainmaster.model.capacity.free_resources import FreeCapacity
from trainmaster.model.capacity.packed_allocation import changes_of
from trainmaster.model.job import Phase, PhaseCode
from trainmaster.model.job_table import JobColumns
from trainmaster.model.plan import Plan
from trainmaster.model.snapshot import Snapshot


class PlanError(Exception):
    """A plan that breaks a rule. It is refused whole; the message names the job and the rule."""


def verify(view: Snapshot, plan: Plan) -> FreeCapacity:
    """Check a plan against the snapshot it was made from; returns what is free after it."""
    free_capacity = view.free_capacity.copy()
    apply_plan(view, plan, free_capacity)
    return free_capacity


def apply_plan(view: Snapshot, plan: Plan, free: FreeResources) -> PlanArrays:
    """Check a plan and take what it gives from `free`; raises `PlanError`, and then nothing has changed.

    Rules: it is not stale; gangs are whole and within the job's range; types are acceptable; nodes that
    the job does not have yet are up; no device, CPU or memory is given twice; only jobs that may be
    changed are; every job left waiting has a reason.
    """
    if plan.based_on != view.version:
        raise PlanError(f"plan is based on version {plan.based_on}, the state is at {view.version}")
    columns, job_indices = view.jobs.columns, view.jobs.job_indices
    changes = changes_of(plan.changes)
    arrays = PlanArrays()
    rows, first, flat = changes.in_order()
    for given, values in ((arrays.jobs, job_indices[rows]), (arrays.first, first), (arrays.flat, flat)):
        given.values, given.n = np.ascontiguousarray(values, np.int64), len(values)
    rule = apply_changes(columns, view.nodes, int(view.placement) == COUNT, arrays, free)
    if rule != SOUND:
        raise PlanError(in_words(columns, arrays, rule))
    message = _broken_otherwise(view, plan, rows, first)
    if message:
        undo_changes(columns, arrays, free)
        raise PlanError(message)
    return arrays


def _broken_otherwise(view: Snapshot, plan: Plan, rows: np.ndarray, first: np.ndarray) -> str:
    """Rejections of jobs that do not wait, and jobs that wait without a reason."""
    columns, job_indices = view.jobs.columns, view.jobs.job_indices
    answered = np.zeros(len(job_indices), np.int64)
    answered[rows] = np.where(first >= 0, 1, -1)
    for row in plan.rejections:
        if columns.ints["phase"][job_indices[row]] != PhaseCode.PENDING or answered[row]:
            return f"job {view.jobs.id(row)} can be rejected only while it is pending and stays so"
        answered[row] = 1
    silent = first_silent(columns, job_indices, plan.why.astype(np.int64), answered)
    return f"job {view.jobs.id(silent)} is left waiting without a reason" if silent >= 0 else ""


def in_words(columns: JobColumns, plan: PlanArrays, rule: int) -> str:
    """The rule that a plan breaks."""
    nodes = columns.cluster.nodes
    job_index, at, gang = int(plan.jobs.values[plan.broken]), int(plan.first.values[plan.broken]), plan.flat
    ints = {name: column.item(job_index) for name, column in columns.ints.items()}
    words = {
        "id": columns.spec(job_index).id,
        "phase": Phase(ints["phase"]).name.lower(),
        **{name: ints[name] for name in ("workers_min", "workers_max", "servers_min", "servers_max")},
    }
    if at >= 0:
        each, values = ints["devices_each"], gang.values
        words |= {
            "workers": gang_workers(gang, at),
            "servers": gang_servers(gang, at),
            "share_milli": values[at + SHARE],
        }
        words |= {"devices": gang_devices(gang, at), "needed": gang_workers(gang, at) * each}
        if 0 <= plan.broken_part < values[at + N_PARTS]:
            part = at + HEAD + PART * plan.broken_part
            words |= {"part_workers": values[part + 1], "part_devices": values[part + 1] * each}
            if 0 <= values[part] < len(nodes):
                words["node"] = nodes[values[part]].id
    return RULES[rule].format(**words)
