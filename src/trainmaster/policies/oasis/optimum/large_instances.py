"""A schedule and a bound for instances too large for the exact search: a mixed-integer program, solved by HiGHS.

Variables: e_it (job i completes by slot t; at most one per job), y_iht and z_ikt (whole workers and PS). Maximise
sum f_i(t - a_i) e_it subject to constraints 1-5. The schedule counts only if it passes our own check; the bound is that
of the linear relaxation's dual values by weak duality, which holds for any values: nothing rests on the solver.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import highspy
import numpy as np

from trainmaster.policies.oasis.instance.formulation import AdmissionJob, Instance, Schedule
from trainmaster.policies.oasis.optimum.proof import schedule_errors
from trainmaster.policies.oasis.program import Program

SETTINGS: dict[str, Any] = {"mip_feasibility_tolerance": 1e-6, "presolve": "off", "mip_rel_gap": 0.0}
"""HiGHS's presolve cuts off schedules that exist: on 8 of 120 small instances with a tolerance of 1e-9, on one of them
with its default of 1e-6, on none without presolve."""


def bounded_optimum(instance: Instance, nodes_max: int) -> tuple[dict[str, Schedule], float]:
    """(schedules, an upper bound of what any are worth)."""
    program = Program()
    columns = {job.id: _job_columns(program, job, instance) for job in instance.jobs}
    _capacity_rows(program, columns, instance)
    if not program.cost:
        return {}, 0.0
    bound = program.dual_bound(np.array(program.solved({}).getSolution().row_dual))
    solver = program.solved({**SETTINGS, "mip_max_nodes": nodes_max}, whole=True)
    schedules: dict[str, Schedule] = {}
    if solver.getInfo().primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
        return schedules, bound
    solution = np.rint(np.array(solver.getSolution().col_value)).astype(np.int64)
    for job in instance.jobs:
        own = columns[job.id]
        if any(solution[column] for column in own.ends.values()):
            schedule = _schedule(job, own, solution)
            if not schedule_errors(instance, {**schedules, job.id: schedule}):
                schedules[job.id] = schedule
    return schedules, bound


@dataclass
class _JobColumns:
    ends: dict[int, int]
    workers: dict[tuple[int, int], int]
    servers: dict[tuple[int, int], int]


def _job_columns(program: Program, job: AdmissionJob, instance: Instance) -> _JobColumns:
    """Columns and own constraints of one job. End slots before its shortest run, or worth nothing, do not
    exist.
    """
    cluster, horizon = instance.cluster, instance.horizon
    earliest = job.arrival + job.fewest_slots - 1
    ends = {
        time_slot: program.column(value, 1.0)
        for time_slot in range(earliest, horizon)
        if (value := job.utility.value(time_slot - job.arrival)) > 0
    }
    own = _JobColumns(ends, {}, {})
    if not ends:
        return own
    most, most_ps = job.chunks, job.servers_for(job.chunks)
    for time_slot in range(job.arrival, max(ends) + 1):
        for server in np.flatnonzero(cluster.hosts_workers):
            own.workers[time_slot, int(server)] = program.column(0.0, most)
        for server in np.flatnonzero(cluster.hosts_ps):
            own.servers[time_slot, int(server)] = program.column(0.0, most_ps)
    program.row(-np.inf, 1.0, [(column, 1.0) for column in ends.values()])
    # (1) all the work is served if the job is admitted at all.
    served = [(column, 1.0) for column in own.workers.values()]
    program.row(0.0, np.inf, [*served, *((column, -float(job.worker_slots)) for column in ends.values())])
    for time_slot in range(job.arrival, max(ends) + 1):
        workers = [(column, 1.0) for (t, _), column in own.workers.items() if t == time_slot]
        servers = [(column, 1.0) for (t, _), column in own.servers.items() if t == time_slot]
        # (2) at most N workers, none before arrival (no columns) or after completion.
        open_ends = [(column, -float(most)) for end, column in ends.items() if end >= time_slot]
        program.row(-np.inf, 0.0, [*workers, *open_ends])
        # (4) bandwidth, divided by B; the tolerance is that of `servers_for`.
        ratio = job.worker_mb_per_slot / job.server_mb_per_slot * (1 - 1e-9)
        program.row(0.0, np.inf, [*((c, -ratio) for c, _ in workers), *servers])
        # (5) no more PS than workers.
        program.row(0.0, np.inf, [*workers, *((c, -1.0) for c, _ in servers)])
    return own


def _capacity_rows(program: Program, columns: dict[str, _JobColumns], instance: Instance) -> None:
    """(3) on every server and slot; a server of both roles has one row for what workers and PS take
    together.
    """
    cluster = instance.cluster
    for time_slot in range(instance.horizon):
        for s in range(len(cluster.servers)):
            for r in range(len(cluster.resources)):
                entries: list[tuple[int, float]] = []
                for job in instance.jobs:
                    own = columns[job.id]
                    if job.worker_demand[r] > 0 and (time_slot, s) in own.workers:
                        entries.append((own.workers[time_slot, s], job.worker_demand[r]))
                    if job.server_demand[r] > 0 and (time_slot, s) in own.servers:
                        entries.append((own.servers[time_slot, s], job.server_demand[r]))
                if entries:
                    program.row(-np.inf, float(cluster.capacity[s, r]), entries)


def _schedule(job: AdmissionJob, own: _JobColumns, solution: np.ndarray) -> Schedule:
    """The solution's schedule with work beyond W taken off the end, and only the PS that the workers left
    need.
    """
    counts: dict[int, dict[int, int]] = {}
    for (time_slot, server), column in sorted(own.workers.items()):
        if solution[column]:
            counts.setdefault(time_slot, {})[server] = int(solution[column])
    excess = sum(sum(time_slot.values()) for time_slot in counts.values()) - job.worker_slots
    for time_slot in sorted(counts, reverse=True):
        for server in sorted(counts[time_slot], reverse=True):
            taken = min(excess, counts[time_slot][server])
            counts[time_slot][server] -= taken
            excess -= taken
    workers = [(t, s, n) for t in sorted(counts) for s, n in sorted(counts[t].items()) if n > 0]
    servers: list[tuple[int, int, int]] = []
    for time_slot in sorted(counts):
        needed = job.servers_for(sum(counts[time_slot].values()))
        for (t, server), column in sorted(own.servers.items()):
            if t == time_slot and needed and solution[column]:
                count = min(needed, int(solution[column]))
                servers.append((time_slot, server, count))
                needed -= count
    return Schedule(tuple(workers), tuple(servers))
