"""A plan in the making: what a policy writes on, job by job or many at once, and closes into a plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from trainmaster.core.arrays import Ints
from trainmaster.core.int_list import IntList
from trainmaster.core.state.free_resources import give_gang
from trainmaster.model.allocation import Allocation, merged, shrunk, shrunk_counted
from trainmaster.model.job import PhaseCode
from trainmaster.model.packed_allocation import Changes, unpacked
from trainmaster.model.placement import Strategy
from trainmaster.model.plan import Plan, Rejection
from trainmaster.model.policy_state import PolicyState
from trainmaster.model.reasons import Why
from trainmaster.model.units import GPU_MILLI

if TYPE_CHECKING:
    from trainmaster.model.snapshot import Snapshot

_ANY_TYPE: Ints = np.zeros(0, np.int64)
_BACKOFF = int(Why.BACKOFF)
HALF_MILLI = GPU_MILLI // 2
"""What each of two jobs has of a device that they share."""


class PlanBuilder:
    """A plan in the making. Starts from what is allocated now; keeps its own ledger of what is left."""

    def __init__(self, view: Snapshot) -> None:
        self.view = view
        self.free_capacity = view.free_capacity.copy()
        self.changes = Changes()
        self.rejections: dict[int, Rejection] = {}
        self.details: dict[int, Mapping[str, Any]] = {}
        self.admissions: list[int] = []
        self.notes: list[str] = []
        self._why = np.zeros(len(view.jobs), np.int8)
        self._blocker: Ints | None = None

    # -- one job at a time ---------------------------------------------------------------------------

    def place(
        self,
        row: int,
        *,
        workers: int | None = None,
        servers: int | None = None,
        accelerator: int | None = None,
        nodes: npt.NDArray[np.bool_] | None = None,
        share_milli: int | None = None,
        strategy: Strategy | None = None,
    ) -> bool:
        """Give a job that holds nothing a gang; on its fastest type with room unless one is named.

        Records a reason and returns False when it does not fit.
        """
        jobs = self.view.jobs
        workers = int(jobs.workers_ask[row]) if workers is None else workers
        servers = int(jobs.servers_ask[row]) if servers is None else servers
        share = int(jobs.share_milli[row]) if share_milli is None else share_milli
        allowed = jobs.allowed[row]
        if accelerator is not None:
            gpu_types = [accelerator] if allowed[accelerator] else []
        else:
            speeds = jobs.throughput[row]
            gpu_types = sorted(np.flatnonzero(allowed).tolist(), key=lambda k: (-speeds[k], k))
        for gpu_type in gpu_types:
            allocation = self._placed(row, gpu_type, workers, servers, share, nodes, strategy)
            if allocation is not None:
                self.changes[row] = allocation
                self._why[row] = Why.NONE
                return True
        self._why[row] = self._shortage(row, workers)
        return False

    def _placed(
        self, row: int, gpu_type: int, workers: int, servers: int, share_milli: int,
        nodes: npt.NDArray[np.bool_] | None = None, strategy: Strategy | None = None,
    ) -> Allocation | None:  # fmt: skip
        """A gang of this size for a job on a type, taken from what is left; None if it does not fit."""
        view, columns, placer = self.view, self.view.jobs.columns, self.view.placer
        job_index = int(view.jobs.job_indices[row])
        placer.begin()
        placer.strategy = int(view.placement if strategy is None else strategy)
        placer.open_set(int(columns.ints["node_set"][job_index]))
        placer.open_only(nodes)
        placer.ask(columns, job_index, workers, servers)
        placer.demand.share = share_milli
        done = placer.place_gang(gpu_type, self.free_capacity)
        placer.strategy = int(view.placement)
        placer.open_only(None)
        return unpacked(placer.flat.values, 0) if done else None

    def release(self, row: int) -> None:
        """Take away what a job has (in this draft); it waits unless it is placed again."""
        jobs = self.view.jobs
        allocation = self.allocation(row)
        if allocation is not None:
            spec = jobs.spec(row)
            self.free_capacity.give(allocation, spec.worker, spec.server)
        if jobs.holds(row):
            self.changes[row] = None
        else:
            self.changes.pop(row, None)

    def resize(self, row: int, workers: int, servers: int | None = None) -> bool:
        """Change the size of a gang on its present type, keeping the devices that it can keep."""
        old = self.allocation(row)
        if old is None:
            return self.place(row, workers=workers, servers=servers)
        servers = old.servers if servers is None else servers
        if workers == old.workers and servers == old.servers:
            return True
        spec, jobs, view, free_capacity = self.view.jobs.spec(row), self.view.jobs, self.view, self.free_capacity
        if old.share_milli < spec.worker.share_milli and (workers > old.workers or servers > old.servers):
            return False  # who shares its devices with another does not grow
        devices_each = int(jobs.devices_each[row])
        counted = view.placement == Strategy.COUNT and spec.worker.share_milli == GPU_MILLI and devices_each > 0
        shrink = shrunk_counted if counted else shrunk
        kept = shrink(old, min(workers, old.workers), min(servers, old.servers), devices_each)
        free_capacity.give(old, spec.worker, spec.server)
        free_capacity.take(kept, spec.worker, spec.server)
        more_workers, more_servers = workers - kept.workers, servers - kept.servers
        allocation = kept
        if more_workers or more_servers:
            more = self._placed(row, old.accelerator, more_workers, more_servers, old.share_milli)
            if more is None:
                free_capacity.give(kept, spec.worker, spec.server)
                free_capacity.take(old, spec.worker, spec.server)
                return False
            allocation = merged(kept, more)
        self.changes[row] = allocation
        if allocation == view.jobs.allocation(row):
            del self.changes[row]
        return True

    def reshare(self, row: int, share_milli: int) -> bool:
        """Change how much of its devices a job has, leaving it where it is. False if others have the rest."""
        old = self.allocation(row)
        if old is None or old.share_milli == share_milli:
            return old is not None
        spec, new = self.view.jobs.spec(row), old._replace(share_milli=share_milli)
        self.free_capacity.give(old, spec.worker, spec.server)
        fits = self.free_capacity.fits(new, spec.worker, spec.server)
        self.free_capacity.take(new if fits else old, spec.worker, spec.server)
        if fits:
            self.changes[row] = new
            if self.view.jobs.holds(row) and new == self.view.jobs.allocation(row):
                del self.changes[row]
        return fits

    def place_beside(self, row: int, partner_row: int) -> bool:
        """Give a job that holds nothing the devices of another of the same shape; each has half of them.

        The partner stays where it is; when this fails it keeps its share, and the reason is recorded.
        """
        jobs, beside = self.view.jobs, self.allocation(partner_row)
        spec, partner = jobs.spec(row), jobs.spec(partner_row)
        self._why[row] = Why.SHAPE
        if beside is None or beside.share_milli < HALF_MILLI or spec.worker.share_milli < GPU_MILLI:
            return False
        open_to = self.view.open_to(row)
        shareable = self.view.cluster.shareable
        if not all(open_to[part.node] and shareable[part.node] for part in beside.parts):
            return False
        same_shape = spec.worker.devices == partner.worker.devices and not beside.servers and not jobs.servers_ask[row]
        in_range = int(jobs.workers_min[row]) <= beside.workers <= int(jobs.workers_max[row])
        if not same_shape or not in_range or not jobs.allowed[row, beside.accelerator]:
            return False
        if not self.reshare(partner_row, HALF_MILLI):
            return False
        allocation = beside._replace(share_milli=HALF_MILLI)
        if not self.free_capacity.fits(allocation, spec.worker, spec.server):
            self._why[row] = Why.CAPACITY
            self.reshare(partner_row, beside.share_milli)
            return False
        self.free_capacity.take(allocation, spec.worker, spec.server)
        self.changes[row] = allocation
        if jobs.holds(row) and allocation == jobs.allocation(row):
            del self.changes[row]
        self._why[row] = Why.NONE
        return True

    def restore(self, row: int) -> bool:
        """Undo what this draft changed about a job that holds something, if that is still free."""
        original = self.view.jobs.allocation(row)
        if row not in self.changes or original is None or not self.view.jobs.holding[row]:
            return False
        spec, now = self.view.jobs.spec(row), self.changes[row]
        if now is not None:
            self.free_capacity.give(now, spec.worker, spec.server)
        if self.free_capacity.fits(original, spec.worker, spec.server):
            self.free_capacity.take(original, spec.worker, spec.server)
            del self.changes[row]
            return True
        if now is not None:
            self.free_capacity.take(now, spec.worker, spec.server)
        return False

    def allocation(self, row: int) -> Allocation | None:
        """What the job has under this draft."""
        if row in self.changes:
            return self.changes[row]
        return self.view.jobs.allocation(row) if self.view.jobs.holds(row) else None

    def reject(self, row: int, why: Why, **details: Any) -> None:
        self.rejections[row] = Rejection(why, details)

    def admit(self, row: int) -> None:
        """Mark a job as accepted for good (its column `admitted` becomes 1)."""
        self.admissions.append(row)

    def wait(self, row: int, why: Why, blocker: int = -1, **details: Any) -> None:
        """State why a job waits."""
        self._why[row] = why
        if blocker >= 0:
            self._blockers()[row] = blocker
        if details:
            self.details[row] = details

    def wait_rows(self, rows: Ints, why: Why, blocker: int = -1) -> None:
        """State the same reason for many."""
        self._why[rows] = why
        if blocker >= 0:
            self._blockers()[rows] = blocker

    def _blockers(self) -> Ints:
        if self._blocker is None:
            self._blocker = np.full(len(self.view.jobs), -1, np.int64)
        return self._blocker

    def note(self, text: str) -> None:
        self.notes.append(text)

    # -- many jobs at once ---------------------------------------------------------------------------

    def place_rows(
        self,
        rows: Ints,
        *,
        stop_at_first_failure: bool = False,
        workers: Ints | None = None,
        servers: Ints | None = None,
    ) -> int:
        """Place waiting jobs in this order, each on its fastest type with room, at the asked size (or at
        `workers` and `servers`, indexed by row). Returns the row of the first that did not fit, or -1."""
        jobs = self.view.jobs
        ints = jobs.columns.ints
        sizes, server_sizes = ints["workers_ask"], ints["servers_ask"]
        if workers is not None:
            sizes = sizes.copy()
            sizes[jobs.job_indices] = workers
        if servers is not None:
            server_sizes = server_sizes.copy()
            server_sizes[jobs.job_indices] = servers
        if len(rows) == 0:
            return -1
        _, failure = self._place_all(rows, _ANY_TYPE, stop_at_first_failure, sizes, server_sizes)
        return -1 if failure < 0 else int(rows[failure])

    def place_on(self, rows: Ints, gpu_types: Ints) -> npt.NDArray[np.int64]:
        """Place jobs that hold nothing in this order at the asked size, each on the type given for it, as `place`
        does one at a time. Records a reason for those that do not fit, and returns them."""
        if len(rows) == 0:
            return rows
        ints = self.view.jobs.columns.ints
        why, _ = self._place_all(rows, gpu_types, False, ints["workers_ask"], ints["servers_ask"])
        self._why[rows] = why
        return rows[why > 0]

    def _place_all(self, rows: Ints, gpu_types: Ints, strict: bool, workers: Ints, servers: Ints) -> tuple[Ints, int]:
        placer, jobs = self.view.placer, self.view.jobs
        which, wanted = IntList(len(rows)), IntList(len(gpu_types))
        which.values[:] = jobs.job_indices[rows]
        which.n, wanted.n = len(rows), len(gpu_types)
        if len(gpu_types):
            wanted.values[:] = gpu_types
        placer.begin()
        placer.place_list(jobs.columns, which, 0, which.n, wanted, strict, workers, servers, self.free_capacity)
        placed = np.asarray(placer.placed.values)[: placer.placed.n]
        if len(placed):
            first = np.asarray(placer.first.values)[: placer.first.n].tolist()
            self.changes.place(rows[placed].tolist(), first, np.asarray(placer.flat.values)[: placer.flat.n].copy())
        why = np.zeros(len(rows), np.int64)
        why[: placer.why.n] = np.asarray(placer.why.values)[: placer.why.n]
        return why, placer.failure

    def release_rows(self, rows: Ints) -> None:
        """Take away what jobs have that hold something and are not yet changed in this draft."""
        if len(rows) == 0:
            return
        columns = self.view.jobs.columns
        for job_index in self.view.jobs.job_indices[rows].tolist():
            give_gang(self.free_capacity, columns.allocation, job_index * columns.width, job_index, columns)
        self.changes.stop(rows.tolist())

    # -- the end -------------------------------------------------------------------------------------

    def plan(
        self, *, memo: PolicyState | None = None, wake_at_ms: int | None = None, default: Why = Why.CAPACITY
    ) -> Plan:
        """Close the plan builder: every job that waits without a stated reason gets the default one."""
        self._close_reasons(int(default))
        return Plan(
            based_on=self.view.version,
            changes=self.changes,
            why=self._why,
            blocker=self._blocker,
            rejections=self.rejections,
            admissions=tuple(self.admissions),
            details=self.details,
            memo=self.view.memo if memo is None else memo,
            wake_at_ms=wake_at_ms,
            notes=tuple(self.notes),
        )

    def _close_reasons(self, default: int) -> None:
        """Every waiting job has a reason, no other job has one."""
        view, jobs, why = self.view, self.view.jobs, self._why
        changed, first, _ = self.changes.in_order()
        stated = why[changed]
        waits = jobs.phase == PhaseCode.PENDING
        why[~waits] = 0
        why[waits & (why == 0)] = default
        why[waits & (jobs.not_before_ms > view.now_ms)] = _BACKOFF
        why[changed] = np.where(first >= 0, 0, np.where(stated != 0, stated, default))
        if self.rejections:
            why[np.fromiter(self.rejections, np.int64)] = 0

    def _shortage(self, row: int, workers: int) -> Why:
        jobs = self.view.jobs
        usable = self.view.open_to(row) & jobs.allowed[row][self.view.cluster.type_of]
        if not usable.any():
            return Why.NO_NODE
        free = (self.free_capacity.device_milli.sum(axis=1) * usable).astype(np.int64)
        by_type = np.bincount(self.view.cluster.type_of, weights=free)
        return Why.SHAPE if by_type.max() >= workers * jobs.worker_gpu_milli[row] else Why.CAPACITY
