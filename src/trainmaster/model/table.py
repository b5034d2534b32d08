"""Job state in columns: one array per attribute, one row per active job, in arrival order.

`JobColumns` is the engine's own mutable store, indexed by slot. `JobTable` is what a snapshot shows of it:
columns are gathered when first read, so a policy pays only for what it looks at. A table is only readable
while the engine has not moved on (`freeze` copies everything for those who need to keep it).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from trainmaster.model import kernels
from trainmaster.model.allocation import Allocation
from trainmaster.model.cluster import Cluster
from trainmaster.model.gangs import AllocationColumn
from trainmaster.model.job import JobId, JobSpec, P
from trainmaster.model.scaling import Scaling
from trainmaster.model.units import MS_PER_S

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

MAX_LOSSES = 32
"""Points of a job's loss history that are kept."""

INT_COLUMNS = (
    "submit_ms", "arrival", "workers_min", "workers_max", "servers_min", "servers_max", "workers_ref",
    "servers_ref", "devices_each", "share_milli", "worker_gpu_milli", "worker_cpu_milli", "worker_mem_mib",
    "server_cpu_milli", "server_mem_mib", "priority", "entity", "deadline_ms", "deadline_kind", "preemptible",
    "curve", "phase", "generation", "attempts", "failures", "preemptions", "held_type", "workers", "servers",
    "nodes_held", "first_start_ms", "as_of_ms", "productive_ms", "waiting_since_ms", "not_before_ms",
    "reason", "blocker", "admitted", "after_stop",
    "workers_ask", "servers_ask", "ask_gpu_milli", "held_gpu_milli",
)  # fmt: skip
FLOAT_COLUMNS = ("work_total", "work_done", "work_saved", "rate", "service_gpu_s", "run_s", "weight", "budget", "cost")
_NEW_ROW = dict.fromkeys(INT_COLUMNS, 0) | {
    "held_type": -1, "first_start_ms": -1, "blocker": -1, "phase": P.PENDING,
}  # fmt: skip
"""What a row holds when a job arrives, before the job's own figures."""


def float_row(spec: JobSpec) -> tuple[float, ...]:
    """What the columns of floats hold of a job that arrives, in their order."""
    total, budget = spec.work_total, spec.budget
    nan = math.nan
    return (
        nan if total is None else total, 0.0, 0.0, 0.0, 0.0, 0.0, spec.weight, nan if budget is None else budget, 0.0
    )  # fmt: skip


class JobColumns:
    """The engine's job state. A slot is given on arrival, kept for life and reused afterwards."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.version = 0
        self.capacity = 0
        self.int_block: Ints = np.zeros((len(INT_COLUMNS), 0), np.int64)
        """All columns of integers, one after the other: for compiled passes that need many of them."""
        self.float_block: Floats = np.zeros((len(FLOAT_COLUMNS), 0))
        self.ints: dict[str, Ints] = {}
        self.floats: dict[str, Floats] = {}
        n_types = len(cluster.types)
        self.throughput: Floats = np.zeros((0, n_types))
        self.throughput_spread: Floats = np.zeros((0, n_types))
        self.allowed: Bools = np.zeros((0, n_types), np.bool_)
        self.memo: dict[str, Floats] = {}
        self.specs: list[JobSpec | None] = []
        self.allocations = AllocationColumn()
        self.losses: dict[int, list[tuple[float, float]]] = {}
        """(work done, loss) by slot, for jobs that report a loss; thinned, at most `MAX_LOSSES` points."""
        self.free_slots: list[int] = []
        self.rows: Ints = np.zeros(0, np.int64)
        self.slot_of: dict[JobId, int] = {}
        self.curves: list[Scaling] = []
        self.entities: list[str] = []
        self._curve_index: dict[Scaling, int] = {}
        self._entity_index: dict[str, int] = {}
        self.n_arrivals = 0
        self.prices: Floats = cluster.prices
        self._prices: list[float] = cluster.prices.tolist()
        self._used = 0
        self._grow(64)

    def _grow(self, capacity: int) -> None:
        extra = capacity - self.capacity
        self.int_block = np.concatenate([self.int_block, np.zeros((len(INT_COLUMNS), extra), np.int64)], axis=1)
        self.float_block = np.concatenate([self.float_block, np.zeros((len(FLOAT_COLUMNS), extra))], axis=1)
        self.ints.update({name: self.int_block[k] for k, name in enumerate(INT_COLUMNS)})
        self.floats.update({name: self.float_block[k] for k, name in enumerate(FLOAT_COLUMNS)})
        for name, column in self.memo.items():
            self.memo[name] = np.concatenate([column, np.zeros((extra, *column.shape[1:]), column.dtype)])
        n_types = len(self.cluster.types)
        self.throughput = np.concatenate([self.throughput, np.zeros((extra, n_types))])
        self.throughput_spread = np.concatenate([self.throughput_spread, np.zeros((extra, n_types))])
        self.allowed = np.concatenate([self.allowed, np.zeros((extra, n_types), np.bool_)])
        self.specs.extend([None] * extra)
        self.allocations.grow(capacity)
        self.free_slots.extend(range(capacity - 1, self.capacity - 1, -1))
        self.capacity = capacity
        self.row_store = np.concatenate([self.rows, np.zeros(capacity - len(self.rows), np.int64)])
        self.rows = self.row_store[: self._used]

    def add(self, spec: JobSpec, now_ms: int, throughput: Floats, throughput_spread: Floats) -> int:
        """Enter a job; its speed by type comes from the estimator (0 or NaN: cannot run there)."""
        if not self.free_slots:
            self.grow()
        slot = self.free_slots.pop()
        self.int_block[:, slot] = self.int_row(spec, self.n_arrivals, now_ms)
        self.float_block[:, slot] = float_row(spec)
        self.throughput[slot] = throughput
        self.throughput_spread[slot] = throughput_spread
        self.allowed[slot] = self.allowed_types(spec, throughput)
        for column in self.memo.values():
            column[slot] = 0.0
        self.specs[slot] = spec
        self.allocations[slot] = None
        self.slot_of[spec.id] = slot
        self.row_store[self._used] = slot
        self._used += 1
        self.rows = self.row_store[: self._used]
        self.n_arrivals += 1
        return slot

    def int_row(self, spec: JobSpec, arrival: int, now_ms: int) -> list[int]:
        """What the columns of integers hold of a job that arrives now."""
        worker, server = spec.worker, spec.server
        asked = min(max(spec.workers_ref, spec.workers_min), spec.workers_max)
        values = _NEW_ROW.copy()
        values.update(
            submit_ms=spec.submit_ms, arrival=arrival,
            workers_min=spec.workers_min, workers_max=spec.workers_max,
            servers_min=spec.servers_min, servers_max=spec.servers_max, workers_ref=spec.workers_ref,
            servers_ref=spec.servers_ref, devices_each=worker.devices, share_milli=worker.share_milli,
            worker_gpu_milli=worker.gpu_milli, worker_cpu_milli=worker.cpu_milli, worker_mem_mib=worker.mem_mib,
            server_cpu_milli=server.cpu_milli, server_mem_mib=server.mem_mib, priority=spec.priority,
            entity=self.intern_entity(spec.entity), deadline_ms=spec.deadline_ms, deadline_kind=int(spec.deadline_kind),
            preemptible=int(spec.preemptible), curve=self.intern_curve(spec.scaling), as_of_ms=now_ms,
            productive_ms=now_ms, waiting_since_ms=now_ms, workers_ask=asked, ask_gpu_milli=asked * worker.gpu_milli,
            servers_ask=min(max(spec.servers_ref, spec.servers_min), spec.servers_max),
        )  # fmt: skip
        return list(values.values())

    def allowed_types(self, spec: JobSpec, throughput: Floats) -> Bools | bool:
        can = throughput > 0
        if spec.gpu_types:
            return can & np.array([name in spec.gpu_types for name in self.cluster.types], np.bool_)
        return can

    def grow(self) -> None:
        """Make room for as many jobs again."""
        self._grow(self.capacity * 2)

    def set_rows(self, used: int, n_arrivals: int) -> None:
        """A compiled pass has let jobs come and go in `row_store`: so many are there, so many ever came."""
        self._used, self.n_arrivals = used, n_arrivals
        self.rows = self.row_store[:used]

    def remove(self, slot: int) -> None:
        """Forget a job that has ended."""
        used = self._used
        kernels.drop(self.row_store, used, slot)
        self._used = used - 1
        self.rows = self.row_store[: self._used]
        spec = self.specs[slot]
        assert spec is not None
        del self.slot_of[spec.id]
        self.specs[slot] = None
        self.allocations[slot] = None
        self.losses.pop(slot, None)
        self.free_slots.append(slot)

    def record_loss(self, slot: int, work_done: float, loss: float) -> None:
        """Keep a measured loss. A full history loses every second point, so that it spans the whole run;
        points beyond `work_done` belong to work that was lost with an incarnation, and go."""
        history = [point for point in self.losses.get(slot, []) if point[0] < work_done]
        if len(history) >= MAX_LOSSES:
            history = history[::2]
        self.losses[slot] = [*history, (work_done, loss)]

    def intern_curve(self, scaling: Scaling) -> int:
        index = self._curve_index.get(scaling)
        if index is None:
            index = self._curve_index[scaling] = len(self.curves)
            self.curves.append(scaling)
        return index

    def intern_entity(self, entity: str) -> int:
        index = self._entity_index.get(entity)
        if index is None:
            index = self._entity_index[entity] = len(self.entities)
            self.entities.append(entity)
        return index

    def spec(self, slot: int) -> JobSpec:
        spec = self.specs[slot]
        assert spec is not None
        return spec

    def rate_of(self, slot: int, accelerator: int, workers: int, servers: int, spread: bool) -> float:
        """Estimated steps per second of a job at a size on a type (-1: no GPU, the first type's figure)."""
        table = self.throughput_spread if spread else self.throughput
        base = float(table[slot, max(accelerator, 0)])
        ref_w, ref_s = int(self.ints["workers_ref"][slot]), int(self.ints["servers_ref"][slot])
        if workers == ref_w and servers == ref_s:
            return base
        curve = self.curves[self.ints["curve"][slot]]
        reference = float(curve.speed(ref_w, ref_s))
        return base * float(curve.speed(workers, servers)) / reference

    def settle(self, slot: int, now_ms: int) -> None:
        """Bring a running job's work, run time and GPU service up to now, at its estimated rate."""
        ints = self.ints
        as_of = int(ints["as_of_ms"][slot])
        if as_of == now_ms:
            return
        ints["as_of_ms"][slot] = now_ms
        if not P.RUNNING <= int(ints["phase"][slot]) <= P.STOPPING:
            return
        floats = self.floats
        since = max(as_of, int(ints["productive_ms"][slot]))
        if now_ms > since:
            done = float(floats["work_done"][slot] + floats["rate"][slot] * (now_ms - since) / MS_PER_S)
            total = float(floats["work_total"][slot])
            floats["work_done"][slot] = min(done, total) if total == total else done
        held_s = (now_ms - as_of) / MS_PER_S
        service = held_s * int(ints["held_gpu_milli"][slot]) / 1000.0
        floats["service_gpu_s"][slot] += service
        kind = int(ints["held_type"][slot])
        if kind >= 0:
            floats["cost"][slot] += service / 3600.0 * self._prices[kind]
        floats["run_s"][slot] += held_s


class JobView:
    """One row, for policies that read better job by job: `job.remaining`, `job.workers_min`..."""

    __slots__ = ("_table", "row")

    def __init__(self, table: JobTable, row: int) -> None:
        self._table = table
        self.row = row

    @property
    def id(self) -> JobId:
        return self._table.spec(self.row).id

    @property
    def spec(self) -> JobSpec:
        return self._table.spec(self.row)

    @property
    def allocation(self) -> Allocation | None:
        return self._table.allocation(self.row)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)[self.row]


class JobTable:
    """Active jobs of one snapshot, as columns. Rows are in arrival order."""

    submit_ms: Ints
    arrival: Ints
    workers_min: Ints
    workers_max: Ints
    servers_min: Ints
    servers_max: Ints
    workers_ref: Ints
    servers_ref: Ints
    devices_each: Ints
    share_milli: Ints
    worker_gpu_milli: Ints
    worker_cpu_milli: Ints
    worker_mem_mib: Ints
    server_cpu_milli: Ints
    server_mem_mib: Ints
    priority: Ints
    entity: Ints
    deadline_ms: Ints
    deadline_kind: Ints
    preemptible: Ints
    curve: Ints
    phase: Ints
    generation: Ints
    attempts: Ints
    preemptions: Ints
    held_type: Ints
    workers: Ints
    servers: Ints
    nodes_held: Ints
    first_start_ms: Ints
    productive_ms: Ints
    waiting_since_ms: Ints
    not_before_ms: Ints
    admitted: Ints
    workers_ask: Ints
    servers_ask: Ints
    ask_gpu_milli: Ints
    held_gpu_milli: Ints
    work_total: Floats
    rate: Floats
    weight: Floats
    budget: Floats
    throughput: Floats
    throughput_spread: Floats
    allowed: Bools
    # derived
    work_done: Floats
    remaining: Floats
    remaining_s: Floats
    service_gpu_s: Floats
    run_s: Floats
    gpus: Floats
    holding: Bools
    waiting: Bools

    def __init__(self, columns: JobColumns, now_ms: int) -> None:
        self._columns = columns
        self._version = columns.version
        self._now_ms = now_ms
        self.slots = columns.rows.copy()

    def reordered(self, order: Ints) -> JobTable:
        """The same jobs with their rows in another order."""
        table = JobTable(self._columns, self._now_ms)
        table.slots = self.slots[order]
        return table

    def __len__(self) -> int:
        return len(self.slots)

    def __iter__(self) -> Iterator[JobView]:
        return (JobView(self, row) for row in range(len(self.slots)))

    def __getitem__(self, row: int) -> JobView:
        return JobView(self, row)

    def spec(self, row: int) -> JobSpec:
        return self._source().spec(int(self.slots[row]))

    def id(self, row: int) -> JobId:
        return self.spec(row).id

    def allocation(self, row: int) -> Allocation | None:
        return self._source().allocations[int(self.slots[row])]

    def holds(self, row: int) -> bool:
        """Whether the job has devices (as the column `holding`, for one row)."""
        ints = self._source().ints
        slot = int(self.slots[row])
        return bool(ints["workers"][slot] > 0) and int(ints["phase"][slot]) != P.LOST

    def losses(self, row: int) -> tuple[tuple[float, float], ...]:
        """(work done, loss) as far as the job has reported it, in order of work."""
        return tuple(self._source().losses.get(int(self.slots[row]), ()))

    def scaling(self, row: int) -> Scaling:
        return self._source().curves[int(self.curve[row])]

    @property
    def ids(self) -> list[JobId]:
        return [self.id(row) for row in range(len(self.slots))]

    @property
    def curves(self) -> list[Scaling]:
        return self._source().curves

    @property
    def entities(self) -> list[str]:
        """Names that the column `entity` indexes."""
        return self._source().entities

    def rate_at(self, row: int, accelerator: int, workers: int, servers: int = 0, spread: bool = False) -> float:
        """Estimated steps per second at another size or type."""
        return self._source().rate_of(int(self.slots[row]), accelerator, workers, servers, spread)

    def freeze(self) -> None:
        """Read every column now, so that the table outlives the engine's next step."""
        for name in (*INT_COLUMNS, *FLOAT_COLUMNS, "throughput", "throughput_spread", "allowed"):
            getattr(self, name)

    @property
    def columns(self) -> JobColumns:
        """The engine's own columns, indexed by slot, for compiled passes. To be read, never written."""
        return self._source()

    def _source(self) -> JobColumns:
        if self._columns.version != self._version:
            raise RuntimeError("this snapshot is stale: the engine has moved on (freeze it to keep it)")
        return self._columns

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        columns = self._source()
        if name in _DERIVED:
            value = _DERIVED[name](self)
        elif name in columns.ints:
            value = columns.ints[name][self.slots]
        elif name in columns.floats:
            value = columns.floats[name][self.slots]
        elif name in ("throughput", "throughput_spread", "allowed"):
            value = getattr(columns, name)[self.slots]
        else:
            raise AttributeError(f"jobs have no column '{name}'")
        value.flags.writeable = False
        self.__dict__[name] = value
        return value


def _work_done(table: JobTable) -> Floats:
    c = table._source()
    i, f = c.ints, c.floats
    return kernels.work_done_now(
        table.slots, i["phase"], f["work_done"], f["work_total"], f["rate"], i["as_of_ms"], i["productive_ms"],
        table._now_ms,
    )  # fmt: skip


def _remaining_s(table: JobTable) -> Floats:
    c = table._source()
    i, f = c.ints, c.floats
    return kernels.remaining_seconds(
        table.slots, i["phase"], f["work_done"], f["work_total"], f["rate"], i["as_of_ms"], i["productive_ms"],
        table._now_ms, c.allowed, c.throughput,
    )  # fmt: skip


def _service(table: JobTable) -> Floats:
    c = table._source()
    i = c.ints
    return kernels.service_now(
        table.slots, i["phase"], c.floats["service_gpu_s"], i["as_of_ms"], i["held_gpu_milli"], table._now_ms
    )  # fmt: skip


def _run_s(table: JobTable) -> Floats:
    c = table._source()
    running = (table.phase >= P.RUNNING) & (table.phase <= P.STOPPING)
    since = np.where(running, table._now_ms - c.ints["as_of_ms"][table.slots], 0) / MS_PER_S
    return c.floats["run_s"][table.slots] + since


_DERIVED = {
    "work_done": _work_done,
    "remaining": lambda t: t.work_total - t.work_done,
    "remaining_s": _remaining_s,
    "service_gpu_s": _service,
    "run_s": _run_s,
    "gpus": lambda t: t.workers_ref * t.worker_gpu_milli / 1000.0,
    "holding": lambda t: (t.workers > 0) & (t.phase != P.LOST),
    "waiting": lambda t: t.phase == P.PENDING,
}
