"""Priority bands: a policy decides among jobs of equal priority, the highest band first, on what higher bands leave.

A job that waits may preempt jobs of lower bands, if they are preemptible and have run for a minimum time. It does so
where it would start or go on with their devices and not without them, and no more of them stop than it takes. Where
lower bands cannot yield yet, the nodes on which it would start are reserved for it: what comes free there is kept,
and what runs there runs on. So a job waits for lower bands at most until those that hold its nodes may be preempted or
end, and jobs of two bands cannot take turns: the lower one never preempts the higher one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from trainmaster.model.capacity.free_resources import FreeCapacity
from trainmaster.model.capacity.packed_allocation import Changes
from trainmaster.model.job import PhaseCode
from trainmaster.model.plan import Plan, Rejection
from trainmaster.model.policy import Policy, traits_of
from trainmaster.model.policy_state import PolicyState
from trainmaster.model.reasons import Why
from trainmaster.model.snapshot import Snapshot

Ask = Callable[[Snapshot], Plan]
MEMORY = "priority_bands"
"""Under this name the memory of a policy holds one memory for each band."""
LOOK_AGAIN_MS = 1_000
"""When at the earliest a job that is just starting or being resized is looked at again."""
_SHORT = [int(why) for why in (Why.CAPACITY, Why.SHAPE, Why.OUTRANKED, Why.SHARE, Why.NO_NODE)]


def several(policy: Policy, priorities: Iterable[int]) -> bool:
    """Whether jobs of these priorities are decided in bands."""
    return len(set(priorities)) > 1 and not traits_of(policy).own_priority


def memory_of(values: Any, priority: int) -> Any:
    """What the policy remembers of a band."""
    return values[MEMORY].get(str(priority), {}) if MEMORY in values else values


def decide(ask: Ask, view: Snapshot, min_run_ms: int) -> Plan:
    """One plan for all bands; `ask`: the policy's decision."""
    return _Decision(ask, view, min_run_ms).plan()


@dataclass(frozen=True)
class _Answer:
    """What the policy does with a band if jobs of lower bands, those `offered`, give way. All rows are of the whole
    view; those of `plan` and `view` are positions in `rows`."""

    rows: np.ndarray
    offered: Sequence[int]
    view: Snapshot
    plan: Plan

    @cached_property
    def running(self) -> set[int]:
        """Rows that hold something under the plan."""
        holds = self.view.jobs.holding.copy()
        for row, allocation in self.plan.changes.items():
            holds[row] = allocation is not None
        return set(self.rows[holds].tolist())

    @cached_property
    def waiting(self) -> set[int]:
        """Rows that wait, or are rejected."""
        waits = self.view.jobs.waiting.copy()
        for row, allocation in self.plan.changes.items():
            waits[row] = allocation is None
        return set(self.rows[waits].tolist())

    @cached_property
    def rejected(self) -> set[int]:
        return {int(self.rows[row]) for row in self.plan.rejections}

    def serves(self, other: _Answer) -> bool:
        """Whether all run that run under the other plan, and none is rejected that is not rejected there."""
        return self.running >= other.running and self.rejected <= other.rejected


class _Decision:
    def __init__(self, ask: Ask, view: Snapshot, min_run_ms: int) -> None:
        self.ask, self.view, self.min_run_ms = ask, view, min_run_ms
        n, jobs = len(view.jobs), view.jobs
        self.free = view.free_capacity.copy()
        self.hidden = np.zeros(n, np.bool_)
        """Jobs of lower bands that are preempted, or run on reserved nodes: their policy does not see them."""
        self.changes = Changes()
        self.why = np.zeros(n, np.int8)
        self.blocker = np.full(n, -1, np.int64)
        self.details: dict[int, Any] = {}
        self.rejections: dict[int, Rejection] = {}
        self.admissions: list[int] = []
        self.notes: list[str] = []
        self.wakes_ms: list[int] = []
        self.memory: dict[str, Any] = dict(view.memo.values.get(MEMORY, {}))
        self.columns: dict[str, np.ndarray] = {}
        self.above: list[tuple[int, np.ndarray]] = []
        """Of each band that has been decided: its priority, and thousandths of GPUs that it holds or that are reserved
        for it, by node."""
        self.waits_for = -1
        """A job for which nodes are reserved."""
        age = np.where(jobs.phase == PhaseCode.RESERVED, -1, view.now_ms - jobs.productive_ms)
        self.yield_order = np.lexsort((-jobs.arrival, age, jobs.priority))
        """Lowest band first, then who loses least: no process yet, the shortest run."""

    def plan(self) -> Plan:
        view, priority = self.view, self.view.jobs.priority
        for band in sorted(set(priority.tolist()), reverse=True):
            self._decide_band(band)
        return Plan(
            based_on=view.version,
            changes=self.changes,
            why=self.why,
            blocker=self.blocker,
            rejections=self.rejections,
            admissions=tuple(self.admissions),
            details=self.details,
            memo=PolicyState({MEMORY: self.memory}, self.columns),
            wake_at_ms=min((at_ms for at_ms in self.wakes_ms if at_ms > view.now_ms), default=None),
            notes=tuple(self.notes),
        )

    def _decide_band(self, band: int) -> None:
        jobs = self.view.jobs
        rows = np.flatnonzero((jobs.priority == band) & ~self.hidden)
        if len(rows) == 0:
            return
        answer = self._answer(rows, [])
        lower = (jobs.priority < band) & jobs.holding & ~self.hidden
        if answer.waiting and lower.any():
            answer, stuck = self._with_less_below(answer, self.yield_order[lower[self.yield_order]].tolist())
        else:
            stuck = None
        self._accept(band, answer, stuck)
        self._explain(band, answer)
        if stuck is not None:
            self._reserve(band, answer, stuck)

    # -- what the policy does --------------------------------------------------------------------------------------

    def _answer(self, rows: np.ndarray, offered: Sequence[int]) -> _Answer:
        """Ask the policy about a band, as if the jobs `offered` were gone."""
        view = self.view
        free = self.free.copy()
        for row in offered:
            _add(free, view, row, 1)
        values = view.memo.values
        if MEMORY in values or view.jobs.priority[0] == view.jobs.priority[rows[0]]:  # its only band, up to now
            values = memory_of(values, int(view.jobs.priority[rows[0]]))
        else:
            values = {}
        memo = PolicyState(values, {name: column[rows] for name, column in view.memo.columns.items()})
        seen = replace(view, jobs=view.jobs.reordered(rows), free_capacity=free, memo=memo)
        return _Answer(rows, offered, seen, self.ask(seen))

    def _with_less_below(self, alone: _Answer, lower: list[int]) -> tuple[_Answer, _Answer | None]:
        """The decision with as few jobs of lower bands stopped as it takes; and, where more would run if none of them
        were there, that one."""
        ideal = self._answer(alone.rows, lower)
        if alone.serves(ideal):
            return alone, None
        yielding = [row for row in lower if self._yields(row)]
        best = ideal if len(yielding) == len(lower) else self._answer(alone.rows, yielding)
        chosen = alone if alone.serves(best) else best
        few, many = 0, len(chosen.offered)
        while many - few > 1:
            some = (few + many) // 2
            answer = self._answer(alone.rows, yielding[:some])
            if answer.serves(best):
                many, chosen = some, answer
            else:
                few = some
        if chosen.serves(ideal):
            return chosen, None
        self._wake(lower)
        return chosen, ideal

    def _yields(self, row: int) -> bool:
        """Whether a job may be preempted now for one of a higher band."""
        jobs, phase = self.view.jobs, self.view.jobs.phase[row]
        if phase != PhaseCode.RUNNING:
            return bool(phase == PhaseCode.RESERVED)
        ran_ms = self.view.now_ms - int(jobs.productive_ms[row])
        return bool(jobs.preemptible[row]) and ran_ms >= self.min_run_ms

    def _wake(self, lower: list[int]) -> None:
        """Look again when the next job of a lower band may be preempted."""
        jobs, now_ms = self.view.jobs, self.view.now_ms
        for row in lower:
            if not jobs.preemptible[row] or self._yields(row):
                continue
            if jobs.phase[row] == PhaseCode.RUNNING:
                self.wakes_ms.append(int(jobs.productive_ms[row]) + self.min_run_ms)
            else:
                self.wakes_ms.append(now_ms + max(self.min_run_ms, LOOK_AGAIN_MS))

    # -- into one plan ---------------------------------------------------------------------------------------------

    def _accept(self, band: int, answer: _Answer, ideal: _Answer | None) -> None:
        """Enter a band's plan, and the jobs of lower bands that have to stop for it."""
        view, rows, plan = self.view, answer.rows, answer.plan
        jobs = view.jobs
        free = answer.view.free_capacity.copy()
        for row in plan.changes:
            if answer.view.jobs.holds(row):
                _add(free, answer.view, row, 1)
        for row, allocation in plan.changes.items():
            if allocation is not None:
                spec = answer.view.jobs.spec(row)
                free.take(allocation, spec.worker, spec.server)
            self.changes[int(rows[row])] = allocation
        for row in reversed(answer.offered):
            if _fits(free, view, row):
                _add(free, view, row, -1)
                continue
            self.changes[row], self.hidden[row], self.why[row] = None, True, Why.PRIORITY
            self.details[row] = {"priority": band}
            if jobs.phase[row] == PhaseCode.RESERVED:
                self.wakes_ms.append(view.now_ms + 1)  # nothing is reported of it, and there may be room elsewhere
        self.free = free
        self.why[rows] = plan.why
        if plan.blocker is not None:
            self.blocker[rows] = np.where(plan.blocker >= 0, rows[plan.blocker], -1)
        self.details.update({int(rows[row]): details for row, details in plan.details.items()})
        self.admissions += [int(rows[row]) for row in plan.admissions]
        self.notes += plan.notes
        if plan.wake_at_ms is not None:
            self.wakes_ms.append(plan.wake_at_ms)
        for row, rejection in plan.rejections.items():
            if ideal is None or int(rows[row]) in ideal.rejected:
                self.rejections[int(rows[row])] = rejection
            else:
                self.why[rows[row]] = Why.CAPACITY
        self.memory[str(band)] = plan.memo.values
        for name, column in plan.memo.columns.items():
            values = np.asarray(column, np.float64)
            store = self.columns.get(name)
            if store is None:
                old = view.memo.columns.get(name)
                fits = old is not None and old.shape[1:] == values.shape[1:]
                store = old.copy() if fits and old is not None else np.zeros((len(jobs), *values.shape[1:]))
                self.columns[name] = store
            store[rows] = values

    def _explain(self, band: int, answer: _Answer) -> None:
        """Name the higher band where a job waits for what that has; then note what this band has."""
        view, jobs = self.view, self.view.jobs
        if self.above:
            self._name_higher_band(answer)
        held = np.zeros(len(view.cluster.nodes), np.int64)
        for row in answer.running:
            allocation = self.changes[row] if row in self.changes else jobs.allocation(row)
            if allocation is not None:
                for part in allocation.parts:
                    held[part.node] += len(part.devices) * allocation.share_milli
        self.above.append((band, held))

    def _name_higher_band(self, answer: _Answer) -> None:
        view, jobs, type_of = self.view, self.view.jobs, self.view.cluster.type_of
        left = self.free.device_milli.sum(axis=1) + sum(held for _, held in self.above)
        rows = np.array(sorted(answer.waiting - answer.rejected), np.int64)
        rows = rows[np.isin(self.why[rows], _SHORT) & (jobs.worker_gpu_milli[rows] > 0)]
        known: dict[tuple[bytes, int], tuple[float, list[int]]] = {}
        """By the types and nodes that a job may use: GPU thousandths without the higher bands, and which have some."""
        node_set = jobs.columns.ints["node_set"][jobs.job_indices]
        for row in rows.tolist():
            key = jobs.allowed[row].tobytes(), int(node_set[row])
            if key not in known:
                usable = view.open_to(row) & jobs.allowed[row][type_of]
                most = float(np.bincount(type_of, weights=left * usable).max(initial=0.0))
                known[key] = most, [priority for priority, held in self.above if (held * usable).any()]
            most, by = known[key]
            if by and most >= jobs.workers_ask[row] * jobs.worker_gpu_milli[row]:
                self.why[row], self.blocker[row] = Why.PRIORITY, self.waits_for
                self.details[row] = {"priority": max(by)}

    def _reserve(self, band: int, answer: _Answer, ideal: _Answer) -> None:
        """Keep lower bands off the nodes on which jobs of this band would start if it were not for them."""
        view, jobs = self.view, self.view.jobs
        reserved = np.zeros(len(view.cluster.nodes), np.bool_)
        for at, row in enumerate(ideal.rows.tolist()):
            if row in ideal.running and row not in answer.running:
                changes = ideal.plan.changes
                allocation = changes[at] if at in changes else jobs.allocation(row)
                reserved[[part.node for part in allocation.parts]] = True  # type: ignore[union-attr]
                if self.waits_for < 0:
                    self.waits_for = row
        for row in np.flatnonzero((jobs.priority < band) & jobs.holding & ~self.hidden).tolist():
            allocation = jobs.allocation(row)
            if allocation is not None and any(reserved[part.node] for part in allocation.parts):
                self.hidden[row] = True
        free = self.free
        self.above[-1][1][reserved] += free.device_milli[reserved].sum(axis=1)
        for left in (free.device_milli, free.whole, free.cpu_milli, free.mem_mib):
            left[reserved] = 0
        free.index = None


def _add(free: FreeCapacity, view: Snapshot, row: int, sign: int) -> None:
    """Give back what a job holds (1), or take it (-1)."""
    allocation, spec = view.jobs.allocation(row), view.jobs.spec(row)
    if allocation is not None:
        (free.give if sign > 0 else free.take)(allocation, spec.worker, spec.server)


def _fits(free: FreeCapacity, view: Snapshot, row: int) -> bool:
    allocation, spec = view.jobs.allocation(row), view.jobs.spec(row)
    return allocation is not None and free.fits(allocation, spec.worker, spec.server)
