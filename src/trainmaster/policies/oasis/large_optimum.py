"""A schedule and a bound for instances too large for the exact search: a mixed-integer program, solved by HiGHS.

Variables: e_it (job i completes by slot t; at most one per job), y_iht and z_ikt (whole workers and PS). Maximise
sum f_i(t - a_i) e_it subject to constraints 1-5. The schedule counts only if it passes our own check; the bound is that
of the linear relaxation's dual values by weak duality, which holds for any values: nothing rests on the solver.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import highspy
import numpy as np
from numpy.typing import NDArray

from trainmaster.policies.oasis.formulation import AdmissionJob, Instance, Schedule
from trainmaster.policies.oasis.optimum_proof import schedule_errors

SETTINGS: dict[str, Any] = {"mip_feasibility_tolerance": 1e-6, "presolve": "off", "mip_rel_gap": 0.0}
"""HiGHS's presolve cuts off schedules that exist: on 8 of 120 small instances with a tolerance of 1e-9, on one of them
with its default of 1e-6, on none without presolve."""


def bounded_optimum(instance: Instance, nodes_max: int) -> tuple[dict[str, Schedule], float]:
    """(schedules, an upper bound of what any are worth)."""
    program = _Program()
    columns = {job.id: _job_columns(program, job, instance) for job in instance.jobs}
    _capacity_rows(program, columns, instance)
    if not program.cost:
        return {}, 0.0
    bound = program.dual_bound()
    solution = program.solve(nodes_max)
    schedules: dict[str, Schedule] = {}
    if solution is None:
        return schedules, bound
    for job in instance.jobs:
        own = columns[job.id]
        if any(solution[column] for column in own.ends.values()):
            schedule = _schedule(job, own, solution)
            if not schedule_errors(instance, {**schedules, job.id: schedule}):
                schedules[job.id] = schedule
    return schedules, bound


@dataclass
class _Program:
    """A growing MILP: columns (cost, upper bound, all integer from 0) and rows (lower <= a x <= upper)."""

    cost: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    row_lower: list[float] = field(default_factory=list)
    row_upper: list[float] = field(default_factory=list)
    starts: list[int] = field(default_factory=lambda: [0])
    index: list[int] = field(default_factory=list)
    value: list[float] = field(default_factory=list)

    def column(self, cost: float, upper: float) -> int:
        self.cost.append(cost)
        self.upper.append(upper)
        return len(self.cost) - 1

    def row(self, entries: list[tuple[int, float]], lower: float, upper: float) -> None:
        self.index.extend(column for column, _ in entries)
        self.value.extend(value for _, value in entries)
        self.starts.append(len(self.index))
        self.row_lower.append(lower)
        self.row_upper.append(upper)

    def solve(self, nodes_max: int) -> NDArray[np.int64] | None:
        """Whole numbers that HiGHS takes for the optimum; None when it finds no point at all."""
        solver = self._solved(
            {**SETTINGS, "mip_max_nodes": nodes_max}, [highspy.HighsVarType.kInteger] * len(self.cost)
        )
        if solver.getInfo().primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
            return None
        return np.rint(np.array(solver.getSolution().col_value)).astype(np.int64)

    def dual_bound(self) -> float:
        """max c x <= y b + sum_j u_j max(0, c_j - (y A)_j) for any y, of the right sign where a side is open."""
        dual = np.array(self._solved({}, []).getSolution().row_dual)
        lower, upper = np.array(self.row_lower), np.array(self.row_upper)
        dual = np.where(np.isfinite(upper), dual, np.minimum(dual, 0.0))
        dual = np.where(np.isfinite(lower), dual, np.maximum(dual, 0.0))
        side = np.where(dual > 0, upper, np.where(dual < 0, lower, 0.0))
        rows = np.repeat(np.arange(len(lower)), np.diff(self.starts))
        used = np.bincount(self.index, np.array(self.value) * dual[rows], minlength=len(self.cost))
        reduced = np.maximum(np.array(self.cost) - used, 0.0)
        return float((dual * side).sum() + (reduced * np.array(self.upper)).sum())

    def _solved(self, settings: dict[str, Any], integrality: list[Any]) -> highspy.Highs:
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = len(self.cost), len(self.row_lower)
        lp.sense_ = highspy.ObjSense.kMaximize
        lp.col_cost_ = np.array(self.cost)
        lp.col_lower_, lp.col_upper_ = np.zeros(len(self.cost)), np.array(self.upper)
        lp.row_lower_, lp.row_upper_ = np.array(self.row_lower), np.array(self.row_upper)
        lp.integrality_ = integrality
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_ = np.array(self.starts)
        lp.a_matrix_.index_ = np.array(self.index)
        lp.a_matrix_.value_ = np.array(self.value)
        solver = highspy.Highs()
        for name, setting in {"output_flag": False, "threads": 1, "random_seed": 0, **settings}.items():
            solver.setOptionValue(name, setting)
        solver.passModel(lp)
        solver.run()
        return solver


@dataclass
class _JobColumns:
    ends: dict[int, int]
    workers: dict[tuple[int, int], int]
    servers: dict[tuple[int, int], int]


def _job_columns(program: _Program, job: AdmissionJob, instance: Instance) -> _JobColumns:
    """Columns and own constraints of one job. End slots before its shortest run, or worth nothing, do not
    exist.
    """
    cluster, horizon = instance.cluster, instance.horizon
    earliest = job.arrival + job.fewest_slots - 1
    ends = {
        slot: program.column(value, 1.0)
        for slot in range(earliest, horizon)
        if (value := job.utility.value(slot - job.arrival)) > 0
    }
    own = _JobColumns(ends, {}, {})
    if not ends:
        return own
    most, most_ps = job.chunks, job.servers_for(job.chunks)
    for slot in range(job.arrival, max(ends) + 1):
        for server in np.flatnonzero(cluster.hosts_workers):
            own.workers[slot, int(server)] = program.column(0.0, most)
        for server in np.flatnonzero(cluster.hosts_ps):
            own.servers[slot, int(server)] = program.column(0.0, most_ps)
    program.row([(column, 1.0) for column in ends.values()], -np.inf, 1.0)
    # (1) all the work is served if the job is admitted at all.
    served = [(column, 1.0) for column in own.workers.values()]
    program.row([*served, *((column, -float(job.worker_slots)) for column in ends.values())], 0.0, np.inf)
    for slot in range(job.arrival, max(ends) + 1):
        workers = [(column, 1.0) for (t, _), column in own.workers.items() if t == slot]
        servers = [(column, 1.0) for (t, _), column in own.servers.items() if t == slot]
        # (2) at most N workers, none before arrival (no columns) or after completion.
        open_ends = [(column, -float(most)) for end, column in ends.items() if end >= slot]
        program.row([*workers, *open_ends], -np.inf, 0.0)
        # (4) bandwidth, divided by B; the tolerance is that of `servers_for`.
        ratio = job.worker_mb_per_slot / job.server_mb_per_slot * (1 - 1e-9)
        program.row([*((c, -ratio) for c, _ in workers), *servers], 0.0, np.inf)
        # (5) no more PS than workers.
        program.row([*workers, *((c, -1.0) for c, _ in servers)], 0.0, np.inf)
    return own


def _capacity_rows(program: _Program, columns: dict[str, _JobColumns], instance: Instance) -> None:
    """(3) on every server and slot; a server of both roles has one row for what workers and PS take
    together.
    """
    cluster = instance.cluster
    for slot in range(instance.horizon):
        for s in range(len(cluster.servers)):
            for r in range(len(cluster.resources)):
                entries: list[tuple[int, float]] = []
                for job in instance.jobs:
                    own = columns[job.id]
                    if job.worker_demand[r] > 0 and (slot, s) in own.workers:
                        entries.append((own.workers[slot, s], job.worker_demand[r]))
                    if job.server_demand[r] > 0 and (slot, s) in own.servers:
                        entries.append((own.servers[slot, s], job.server_demand[r]))
                if entries:
                    program.row(entries, -np.inf, float(cluster.capacity[s, r]))


def _schedule(job: AdmissionJob, own: _JobColumns, solution: np.ndarray) -> Schedule:
    """The solution's schedule with work beyond W taken off the end, and only the PS that the workers left
    need.
    """
    counts: dict[int, dict[int, int]] = {}
    for (slot, server), column in sorted(own.workers.items()):
        if solution[column]:
            counts.setdefault(slot, {})[server] = int(solution[column])
    excess = sum(sum(slot.values()) for slot in counts.values()) - job.worker_slots
    for slot in sorted(counts, reverse=True):
        for server in sorted(counts[slot], reverse=True):
            taken = min(excess, counts[slot][server])
            counts[slot][server] -= taken
            excess -= taken
    workers = [(t, s, n) for t in sorted(counts) for s, n in sorted(counts[t].items()) if n > 0]
    servers: list[tuple[int, int, int]] = []
    for slot in sorted(counts):
        needed = job.servers_for(sum(counts[slot].values()))
        for (t, server), column in sorted(own.servers.items()):
            if t == slot and needed and solution[column]:
                count = min(needed, int(solution[column]))
                servers.append((slot, server, count))
                needed -= count
    return Schedule(tuple(workers), tuple(servers))
