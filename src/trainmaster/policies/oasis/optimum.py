"""The exact offline optimum of an instance, as a mixed-integer program solved by HiGHS; for small instances.

Variables: e_it (job i completes by slot t; at most one per job), y_iht and z_ikt (whole workers and PS).
Maximise sum f_i(t - a_i) e_it subject to constraints 1-5; since f does not rise, the latest allowed slot
e_it that an optimal solution picks is worth no more than the true last slot, so the optimum is that of
constraint 6.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import highspy
import numpy as np

from trainmaster.policies.oasis.formulation import AdmissionJob, Instance, Schedule


@dataclass(frozen=True)
class OfflineOptimum:
    """`status` is "optimal", or "limit" when the node limit ended the search; then `upper_bound` is the
    proven one.
    """

    total_utility: float
    upper_bound: float
    status: str
    schedules: dict[str, Schedule]


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

    def solve(self, nodes_max: int) -> tuple[np.ndarray | None, float, bool]:
        """(solution or None, bound, whether proven optimal)."""
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = len(self.cost), len(self.row_lower)
        lp.sense_ = highspy.ObjSense.kMaximize
        lp.col_cost_ = np.array(self.cost)
        lp.col_lower_ = np.zeros(len(self.cost))
        lp.col_upper_ = np.array(self.upper)
        lp.row_lower_ = np.array(self.row_lower)
        lp.row_upper_ = np.array(self.row_upper)
        lp.integrality_ = [highspy.HighsVarType.kInteger] * len(self.cost)
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_ = np.array(self.starts)
        lp.a_matrix_.index_ = np.array(self.index)
        lp.a_matrix_.value_ = np.array(self.value)
        solver = highspy.Highs()
        for name, setting in (
            ("output_flag", False),
            ("threads", 1),
            ("random_seed", 0),
            ("mip_rel_gap", 0.0),
            ("mip_abs_gap", 1e-9),
            ("mip_feasibility_tolerance", 1e-9),
            ("mip_max_nodes", nodes_max),
        ):
            solver.setOptionValue(name, setting)
        solver.passModel(lp)
        solver.run()
        proven = solver.getModelStatus() == highspy.HighsModelStatus.kOptimal
        solution = np.array(solver.getSolution().col_value)
        info = solver.getInfo()
        feasible = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
        return (np.rint(solution).astype(np.int64) if feasible else None), float(info.mip_dual_bound), proven


@dataclass
class _JobColumns:
    ends: dict[int, int]
    workers: dict[tuple[int, int], int]
    servers: dict[tuple[int, int], int]


def offline_optimum(instance: Instance, nodes_max: int = 1_000_000) -> OfflineOptimum:
    """Solve the whole instance with hindsight. Bounded by search nodes, so the result does not depend on
    speed.
    """
    program = _Program()
    columns = {job.id: _job_columns(program, job, instance) for job in instance.jobs}
    _capacity_rows(program, columns, instance)
    if not program.cost:
        return OfflineOptimum(0.0, 0.0, "optimal", {})
    solution, bound, proven = program.solve(nodes_max)
    schedules: dict[str, Schedule] = {}
    total = 0.0
    if solution is not None:
        for job in instance.jobs:
            own = columns[job.id]
            if any(solution[column] for column in own.ends.values()):
                schedules[job.id] = _schedule(job, own, solution)
                total += job.utility.value(schedules[job.id].completion - job.arrival)
    return OfflineOptimum(total, total if proven else bound, "optimal" if proven else "limit", schedules)


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
