"""What a policy sees: a frozen view of cluster and jobs, and the draft by which it answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from trainmaster.model import kernels
from trainmaster.model.allocation import Allocation, Part
from trainmaster.model.cluster import Cluster
from trainmaster.model.job import P
from trainmaster.model.ledger import Ledger
from trainmaster.model.memo import EMPTY_MEMO, Memo
from trainmaster.model.placement import Strategy, place_gang, place_in_order
from trainmaster.model.plan import Plan, Rejection
from trainmaster.model.reasons import Why
from trainmaster.model.table import JobTable
from trainmaster.model.units import GPU_MILLI

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Snapshot:
    """The world as the engine believes it at `now_ms`. `ledger` is what is free for planning: devices of
    jobs that are being stopped count as free, because the engine launches on them only once they are."""

    version: int
    now_ms: int
    cluster: Cluster
    up: npt.NDArray[np.bool_]
    ledger: Ledger
    jobs: JobTable
    memo: Memo = EMPTY_MEMO
    placement: Strategy = Strategy.PACK
    round_ms: int | None = None
    seed: int = 0
    entity_weights: Mapping[str, float] = field(default_factory=dict)
    restart_cost_ms: int = 0
    resize_cost_ms: int = 0
    any_backoff: bool = True
    """Whether any job waits for a time of its own (`not_before_ms`)."""

    @cached_property
    def free_gpus_by_type(self) -> npt.NDArray[np.float64]:
        free = self.ledger.device_milli.sum(axis=1) * self.up / GPU_MILLI
        return np.bincount(self.cluster.type_of, weights=free, minlength=len(self.cluster.types))

    @cached_property
    def up_gpus_by_type(self) -> npt.NDArray[np.float64]:
        """GPUs of each type on nodes that are up, free or not."""
        gpus = self.cluster.gpus * self.up
        return np.bincount(self.cluster.type_of, weights=gpus, minlength=len(self.cluster.types))

    def waiting_rows(self) -> Ints:
        """Jobs that could be started now, in order of arrival."""
        return self._ready(with_running=False)

    def movable_rows(self) -> Ints:
        """Jobs that could be started or preempted now, in order of arrival."""
        return self._ready(with_running=True)

    def _ready(self, with_running: bool) -> Ints:
        ints = self.jobs._source().ints
        return kernels.ready_rows(
            self.jobs.slots, ints["phase"], ints["not_before_ms"], ints["arrival"], ints["preemptible"], self.now_ms,
            with_running,
        )  # fmt: skip

    def rng(self, salt: int = 0) -> np.random.Generator:
        """Random numbers that depend only on seed, version and salt, so that a replay draws the same."""
        return np.random.Generator(np.random.PCG64([self.seed, self.version, salt]))

    def draft(self) -> Draft:
        return Draft(self)


class Draft:
    """A plan in the making. Starts from what is allocated now; keeps its own ledger of what is left."""

    def __init__(self, view: Snapshot) -> None:
        self.view = view
        self.ledger = view.ledger.copy()
        self.changes: dict[int, Allocation | None] = {}
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
        view, jobs = self.view, self.view.jobs
        workers = int(jobs.workers_ask[row]) if workers is None else workers
        servers = int(jobs.servers_ask[row]) if servers is None else servers
        share = int(jobs.share_milli[row]) if share_milli is None else share_milli
        devices_each = int(jobs.devices_each[row])
        allowed = jobs.allowed[row]
        if accelerator is not None:
            kinds = [accelerator] if allowed[accelerator] else []
        else:
            speeds = jobs.throughput[row]
            kinds = sorted(np.flatnonzero(allowed).tolist(), key=lambda k: (-speeds[k], k))
        out = _Parts(len(view.cluster.nodes), workers * max(devices_each, 1))
        ledger = self.ledger
        for kind in kinds:
            usable = view.up & (view.cluster.type_of == kind)
            if nodes is not None:
                usable = usable & nodes
            parts, _ = place_gang(
                int(view.placement if strategy is None else strategy), usable, workers, devices_each, share,
                int(jobs.worker_cpu_milli[row]), int(jobs.worker_mem_mib[row]), servers,
                int(jobs.server_cpu_milli[row]), int(jobs.server_mem_mib[row]), view.cluster.rack_of,
                ledger.device_milli, ledger.whole, ledger.cpu_milli, ledger.mem_mib, view.up, *out.arrays,
            )  # fmt: skip
            if parts >= 0:
                self.changes[row] = out.allocation(kind, share, 0, parts, 0)[0]
                self._why[row] = Why.NONE
                return True
        self._why[row] = self._shortage(row, workers)
        return False

    def release(self, row: int) -> None:
        """Take away what a job has (in this draft); it waits unless it is placed again."""
        allocation = self.allocation(row)
        if allocation is not None:
            spec = self.view.jobs.spec(row)
            self.ledger.give(allocation, spec.worker, spec.server)
        if self.view.jobs.holding[row]:
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
        spec, jobs, view, ledger = self.view.jobs.spec(row), self.view.jobs, self.view, self.ledger
        if view.placement == Strategy.COUNT:  # devices are anonymous there: count them anew
            ledger.give(old, spec.worker, spec.server)
            if self.place(row, workers=workers, servers=servers, accelerator=old.accelerator):
                return True
            ledger.take(old, spec.worker, spec.server)
            self._why[row] = Why.NONE
            return False
        kept = _shrunk(old, min(workers, old.workers), min(servers, old.servers), int(jobs.devices_each[row]))
        ledger.give(old, spec.worker, spec.server)
        ledger.take(kept, spec.worker, spec.server)
        more_workers, more_servers = workers - kept.workers, servers - kept.servers
        allocation = kept
        if more_workers or more_servers:
            out = _Parts(len(view.cluster.nodes), max(more_workers, 1) * max(int(jobs.devices_each[row]), 1))
            usable = view.up & (view.cluster.type_of == old.accelerator)
            parts, _ = place_gang(
                int(view.placement), usable, more_workers, int(jobs.devices_each[row]), old.share_milli,
                spec.worker.cpu_milli, spec.worker.mem_mib, more_servers, spec.server.cpu_milli,
                spec.server.mem_mib, view.cluster.rack_of, ledger.device_milli, ledger.whole, ledger.cpu_milli,
                ledger.mem_mib, view.up, *out.arrays,
            )  # fmt: skip
            if parts < 0:
                ledger.give(kept, spec.worker, spec.server)
                ledger.take(old, spec.worker, spec.server)
                return False
            allocation = _merged(kept, out.allocation(old.accelerator, old.share_milli, 0, parts, 0)[0])
        self.changes[row] = allocation
        if allocation == view.jobs.allocation(row):
            del self.changes[row]
        return True

    def allocation(self, row: int) -> Allocation | None:
        """What the job has under this draft."""
        if row in self.changes:
            return self.changes[row]
        return self.view.jobs.allocation(row) if self.view.jobs.holding[row] else None

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

    def place_rows(self, rows: Ints, *, stop_at_first_failure: bool = False, workers: Ints | None = None) -> int:
        """Place waiting jobs in this order, each on its fastest type with room, at the asked size (or at
        `workers`, indexed by row). Returns the row of the first that did not fit, or -1."""
        view, jobs, ledger = self.view, self.view.jobs, self.ledger
        columns = jobs._source()
        ints = columns.ints
        sizes = ints["workers_ask"]
        if workers is not None:
            sizes = sizes.copy()
            sizes[jobs.slots] = workers
        first_failure = -1
        while len(rows):
            slots = jobs.slots[rows]
            out = _Parts(ledger.device_milli.size + 4 * len(view.cluster.nodes) + 64, ledger.device_milli.size + 64)
            placed, kinds, n_parts = np.empty((3, len(slots)), np.int64)
            n_placed, failure, done = place_in_order(
                slots, stop_at_first_failure, int(view.placement), sizes, ints["servers_ask"], ints["devices_each"],
                ints["share_milli"], ints["worker_cpu_milli"], ints["worker_mem_mib"], ints["server_cpu_milli"],
                ints["server_mem_mib"], columns.allowed, columns.throughput, view.cluster.type_of, view.up,
                view.cluster.rack_of, ledger.device_milli, ledger.whole, ledger.cpu_milli, ledger.mem_mib,
                placed, kinds, n_parts, *out.arrays,
            )  # fmt: skip
            part = device = 0
            for k in range(n_placed):
                row = int(rows[placed[k]])
                share = int(ints["share_milli"][jobs.slots[row]])
                allocation, device = out.allocation(int(kinds[k]), share, part, int(n_parts[k]), device)
                part += int(n_parts[k])
                self.changes[row] = allocation
            if failure >= 0 and first_failure < 0:
                first_failure = int(rows[failure])
            rows = rows[done:]
            if failure >= 0 and stop_at_first_failure:
                break
        return first_failure

    def run_in_order(self, rows: Ints) -> None:
        """Preemptive: down this list, what fits in the cluster shall run and the rest shall wait.

        Jobs chosen that run already stay where they are. Jobs not in the list keep what they have.
        """
        view, jobs = self.view, self.view.jobs
        columns = jobs._source()
        ints = columns.ints
        started, stopped = kernels.choose_preemptively(
            rows, jobs.slots, ints["phase"], ints["held_type"], ints["workers"], ints["worker_gpu_milli"],
            ints["ask_gpu_milli"], columns.allowed, columns.throughput, view.cluster.type_of, view.up,
            view.ledger.device_milli,
        )  # fmt: skip
        for row in stopped.tolist():
            self.release(row)
        failed = self.place_rows(started)
        if len(stopped):
            # A stop that turned out not to be needed (the gang did not fit in the end) is taken back.
            for row in stopped.tolist():
                allocation = jobs.allocation(row)
                spec = jobs.spec(row)
                if allocation is not None and self.ledger.fits(allocation, spec.worker, spec.server):
                    self.ledger.take(allocation, spec.worker, spec.server)
                    del self.changes[row]
        if failed >= 0:
            for row in started.tolist():
                if row not in self.changes:
                    self._why[row] = Why.SHAPE

    # -- the end -------------------------------------------------------------------------------------

    def plan(self, *, memo: Memo | None = None, wake_at_ms: int | None = None, default: Why = Why.CAPACITY) -> Plan:
        """Close the draft: every job that waits without a stated reason gets the default one."""
        waits = self.view.jobs.phase == P.PENDING
        for row, allocation in self.changes.items():
            waits[row] = allocation is None
        for row in self.rejections:
            waits[row] = False
        why = self._why
        why[waits & (why == 0)] = default
        why[~waits] = 0
        if self.view.any_backoff:
            why[waits & (self.view.jobs.not_before_ms > self.view.now_ms)] = Why.BACKOFF
        return Plan(
            based_on=self.view.version,
            changes=self.changes,
            why=why,
            blocker=self._blocker,
            rejections=self.rejections,
            admissions=tuple(self.admissions),
            details=self.details,
            memo=self.view.memo if memo is None else memo,
            wake_at_ms=wake_at_ms,
            notes=tuple(self.notes),
        )

    def _shortage(self, row: int, workers: int) -> Why:
        jobs = self.view.jobs
        usable = self.view.up & jobs.allowed[row][self.view.cluster.type_of]
        if not usable.any():
            return Why.NO_NODE
        free = (self.ledger.device_milli.sum(axis=1) * usable).astype(np.int64)
        by_type = np.bincount(self.view.cluster.type_of, weights=free)
        return Why.SHAPE if by_type.max() >= workers * jobs.worker_gpu_milli[row] else Why.CAPACITY


class _Parts:
    """Output buffers of the placement kernels and their translation into allocations."""

    def __init__(self, max_parts: int, max_devices: int) -> None:
        self.node, self.workers, self.servers, self.n_devices = (np.empty(max_parts + 1, np.int64) for _ in range(4))
        self.device = np.empty(max_devices + 1, np.int64)

    @property
    def arrays(self) -> tuple[Ints, Ints, Ints, Ints, Ints]:
        return self.node, self.workers, self.servers, self.n_devices, self.device

    def allocation(self, kind: int, share: int, first: int, n_parts: int, device: int) -> tuple[Allocation, int]:
        """The allocation of one gang and where the devices of the next begin."""
        parts = []
        for k in range(first, first + n_parts):
            end = device + int(self.n_devices[k])
            parts.append(
                Part(int(self.node[k]), int(self.workers[k]), int(self.servers[k]), tuple(self.device[device:end].tolist()))
            )
            device = end
        return Allocation(kind, tuple(parts), share), device


def _shrunk(old: Allocation, workers: int, servers: int, devices_each: int) -> Allocation:
    """Keep this many; leave the smallest parts first, so that fewer nodes remain."""
    drop_workers, drop_servers = old.workers - workers, old.servers - servers
    kept: dict[int, Part] = {part.node: part for part in old.parts}
    for part in sorted(old.parts, key=lambda p: (p.workers, -p.node)):
        cut_w, cut_s = min(drop_workers, part.workers), min(drop_servers, part.servers)
        drop_workers -= cut_w
        drop_servers -= cut_s
        left_w, left_s = part.workers - cut_w, part.servers - cut_s
        if left_w == 0 and left_s == 0:
            del kept[part.node]
        else:
            kept[part.node] = Part(part.node, left_w, left_s, part.devices[: left_w * devices_each])
    return Allocation(old.accelerator, tuple(kept[node] for node in sorted(kept)), old.share_milli)


def _merged(kept: Allocation, more: Allocation) -> Allocation:
    by_node = {part.node: part for part in kept.parts}
    for part in more.parts:
        have = by_node.get(part.node, Part(part.node, 0, 0, ()))
        by_node[part.node] = Part(
            part.node,
            have.workers + part.workers,
            have.servers + part.servers,
            tuple(sorted((*have.devices, *part.devices))),
        )
    return Allocation(kept.accelerator, tuple(by_node[node] for node in sorted(by_node)), kept.share_milli)
