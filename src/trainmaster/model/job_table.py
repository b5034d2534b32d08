"""Job state in columns: one array per attribute, one row per active job, in arrival order.

`JobColumns` is the engine's own mutable store, indexed by job index (the arrays themselves: `core.state.job_arrays`).
`JobTable` is what a snapshot shows of it: columns are gathered when first read, so a policy pays only for what it looks
at. A
table is only readable while the engine has not moved on (`freeze` copies everything for those who need to keep it).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from trainmaster.core.arrays import Bools, Floats, Ints
from trainmaster.core.schema import FLOAT_COLUMNS, INT_COLUMNS, NEW_JOB
from trainmaster.core.state.job_arrays import (
    JobArrays,
    close_gaps,
    remaining_column,
    service_column,
    take_index,
    work_done_column,
)
from trainmaster.model.allocation import Allocation
from trainmaster.model.capacity.feasibility import largest_that_fits, most_servers_that_fit
from trainmaster.model.capacity.packed_allocation import unpacked
from trainmaster.model.cluster import Cluster
from trainmaster.model.job import NO_DEMAND, JobId, JobSpec, PhaseCode
from trainmaster.model.scaling import Scaling, SpeedTable
from trainmaster.model.units import MS_PER_S

MAX_LOSSES = 32
"""Points of a job's loss history that are kept."""

_NEW_ROW = dict.fromkeys(INT_COLUMNS, 0) | NEW_JOB
"""What a row holds when a job arrives, before the job's own figures."""
_PLACE = INT_COLUMNS.index("place")


def float_row(spec: JobSpec) -> tuple[float, ...]:
    """What the columns of floats hold of a job that arrives, in their order."""
    total, budget = spec.work_total, spec.budget
    nan = math.nan
    return (
        nan if total is None else total,
        0.0,
        0.0,
        0.0,
        0.0,
        0.0,
        spec.weight,
        nan if budget is None else budget,
        0.0,
    )


class AllocationColumn:
    """What the plan gives each job (or, with `held`, what its processes may occupy), read as `Allocation | None`."""

    def __init__(self, columns: JobColumns, held: bool) -> None:
        self._columns, self._held = columns, held

    def __len__(self) -> int:
        return self._columns.capacity

    def __getitem__(self, job_index: int) -> Allocation | None:
        columns = self._columns
        packed = columns.physical if self._held else columns.allocation
        at = job_index * columns.width
        return unpacked(packed.values, at) if packed.values[at] else None

    def __iter__(self) -> Iterator[Allocation | None]:
        return (self[job_index] for job_index in range(len(self)))

    def __repr__(self) -> str:
        return repr(list(self))


class JobColumns(JobArrays):
    """The engine's job state: the arrays and, beside them, what is no number."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(np.ascontiguousarray(cluster.prices, np.float64))
        self.cluster = cluster
        self.specs: list[JobSpec | None] = [None] * self.capacity
        self.allocations = AllocationColumn(self, held=False)
        self.held = AllocationColumn(self, held=True)
        self.losses: dict[int, list[tuple[float, float]]] = {}
        """(work done, loss) by job index, for jobs that report a loss; thinned, at most `MAX_LOSSES` points."""
        self.spec_source: Sequence[JobSpec] = ()
        """Jobs without a name, by number."""
        self.job_index_of: dict[JobId, int] = {}
        self.curves: list[Scaling] = []
        self.entities: list[str] = []
        self.node_set_names: list[str] = [""]
        self.beliefs: dict[int, SpeedTable] = {}
        """What is learned of speeds, by job index; jobs that are absent are as fast as they say."""
        self._curve_index: dict[Scaling, int] = {}
        self._own_curve: dict[int, int] = {}
        """Where in `curves` the learned curve of a job index is."""
        self._entity_index: dict[str, int] = {}

    @property
    def rows(self) -> Ints:
        """Indices of the jobs that are there, in order of arrival; to be read at once."""
        close_gaps(self)
        return np.asarray(self.order.values)[: self.order.n]

    def add(self, spec: JobSpec, now_ms: int, throughput: Floats, throughput_spread: Floats) -> int:
        """Enter a job; its speed by type comes from the estimator (0 or NaN: cannot run there)."""
        if not self.unused.n:
            self.grow()
        row = self.int_row(spec, self.n_arrivals, now_ms)
        job_index = take_index(self)
        row[_PLACE] = self.ints["place"].item(job_index)
        self.int_block[:, job_index] = row
        self.float_block[:, job_index] = float_row(spec)
        self.throughput[job_index] = throughput
        self.throughput_spread[job_index] = throughput_spread
        self.allowed[job_index] = self.allowed_types(spec, throughput)
        for column in self.memo.values():
            column[job_index] = 0.0
        self.specs[job_index] = spec
        self.job_index_of[spec.id] = job_index
        if spec.elastic:
            self.ask_for(job_index, spec.workers_max)
        return job_index

    def ask_for(self, job_index: int, most: int) -> None:
        """Write the size that the job asks for: its own, at most `most` and what an empty cluster could hold. A job of
        1 to 32 workers would else wait on 4 GPUs for ever, and others behind it."""
        spec, ints = self.spec(job_index), self.ints
        ask = min(max(spec.workers_ref, spec.workers_min), most)
        if spec.workers_min < ask:
            ask = largest_that_fits(self.cluster, spec, ask, np.flatnonzero(self.allowed[job_index]).tolist())
        ints["workers_ask"][job_index], ints["ask_gpu_milli"][job_index] = ask, ask * spec.worker.gpu_milli
        ints["servers_ask"][job_index] = (
            most_servers_that_fit(self.cluster, spec, ask, np.flatnonzero(self.allowed[job_index]).tolist())
            if spec.servers_max and spec.server != NO_DEMAND
            else min(max(spec.servers_ref, spec.servers_min), spec.servers_max)
        )

    def int_row(self, spec: JobSpec, arrival: int, now_ms: int) -> list[int]:
        """What the columns of integers hold of a job that arrives now."""
        worker, server = spec.worker, spec.server
        asked = min(max(spec.workers_ref, spec.workers_min), spec.workers_max)
        values = _NEW_ROW.copy()
        values.update(
            submit_ms=spec.submit_ms,
            arrival=arrival,
            workers_min=spec.workers_min,
            workers_max=spec.workers_max,
            servers_min=spec.servers_min,
            servers_max=spec.servers_max,
            workers_ref=spec.workers_ref,
            servers_ref=spec.servers_ref,
            devices_each=worker.devices,
            share_milli=worker.share_milli,
            worker_gpu_milli=worker.gpu_milli,
            worker_cpu_milli=worker.cpu_milli,
            worker_mem_mib=worker.mem_mib,
            server_cpu_milli=server.cpu_milli,
            server_mem_mib=server.mem_mib,
            priority=spec.priority,
            entity=self.intern_entity(spec.entity),
            deadline_ms=spec.deadline_ms,
            deadline_kind=int(spec.deadline_kind),
            preemptible=int(spec.preemptible),
            curve=self.intern_curve(spec.scaling),
            as_of_ms=now_ms,
            productive_ms=now_ms,
            waiting_since_ms=now_ms,
            workers_ask=asked,
            ask_gpu_milli=asked * worker.gpu_milli,
            servers_ask=min(max(spec.servers_ref, spec.servers_min), spec.servers_max),
            max_attempts=spec.max_attempts,
            node_set=self.intern_node_set(spec.node_set),
            elastic=int(spec.elastic),
        )
        return list(values.values())

    def allowed_types(self, spec: JobSpec, throughput: Floats) -> Bools | bool:
        can = throughput > 0
        if spec.gpu_types:
            return can & np.array([name in spec.gpu_types for name in self.cluster.types], np.bool_)
        return can

    def grow(self) -> None:
        """Make room for as many jobs again."""
        extra = self.capacity
        self.resize(2 * extra)
        for name, column in self.memo.items():
            self.memo[name] = np.concatenate([column, np.zeros((extra, *column.shape[1:]), column.dtype)])
        self.specs.extend([None] * extra)

    def forget(self, job_index: int) -> None:
        """A job has ended: drop what is kept of it beside the arrays."""
        spec = self.specs[job_index]
        assert spec is not None
        del self.job_index_of[spec.id]
        self.specs[job_index] = None
        self.losses.pop(job_index, None)
        self.beliefs.pop(job_index, None)

    def record_loss(self, job_index: int, work_done: float, loss: float) -> None:
        """Keep a measured loss. A full history loses every second point, so that it spans the whole run;
        points beyond `work_done` belong to work that was lost with an attempt, and go."""
        history = [point for point in self.losses.get(job_index, []) if point[0] < work_done]
        if len(history) >= MAX_LOSSES:
            history = history[::2]
        self.losses[job_index] = [*history, (work_done, loss)]

    def believe(self, job_index: int, table: SpeedTable) -> None:
        """Take what is learned of a job's speed for the speed and the curve that it said."""
        ints, kinds = self.ints, range(len(self.cluster.types))
        size = int(ints["workers_ref"][job_index]), int(ints["servers_ref"][job_index])
        can = self.throughput[job_index] > 0
        self.throughput[job_index] = can * [table.speed(kind, *size) for kind in kinds]
        self.throughput_spread[job_index] = can * [table.speed(kind, *size, spread=True) for kind in kinds]
        self.beliefs[job_index] = table
        at = self._own_curve.setdefault(job_index, len(self.curves))
        if at == len(self.curves):
            self.curves.append(table.scaling)
        self.curves[at] = table.scaling
        ints["curve"][job_index] = at

    def intern_curve(self, scaling: Scaling) -> int:
        return _interned(scaling, self.curves, self._curve_index)

    def intern_entity(self, entity: str) -> int:
        return _interned(entity, self.entities, self._entity_index)

    def intern_node_set(self, name: str) -> int:
        if name not in self.node_set_names:
            self.node_set_names.append(name)
        return self.node_set_names.index(name)

    def spec(self, job_index: int) -> JobSpec:
        spec = self.specs[job_index]
        if spec is None:
            return self.spec_source[self.ints["number"].item(job_index)]
        return spec

    def rate_of(self, job_index: int, accelerator: int, workers: int, servers: int, spread: bool) -> float:
        """Estimated steps per second of a job at a size on a type (-1: no GPU, the first type's figure)."""
        if (belief := self.beliefs.get(job_index)) is not None:
            can = self.throughput[job_index, max(accelerator, 0)] > 0
            return belief.speed(accelerator, workers, servers, spread) if can else 0.0
        table = self.throughput_spread if spread else self.throughput
        base = float(table[job_index, max(accelerator, 0)])
        ref_w, ref_s = int(self.ints["workers_ref"][job_index]), int(self.ints["servers_ref"][job_index])
        return base if workers == ref_w and servers == ref_s else self.scaled_rate(job_index, base, workers, servers)

    def scaled_rate(self, i: int, base: float, workers: int, servers: int) -> float:
        """The same at another size than the reference, where `base` steps are done."""
        if (belief := self.beliefs.get(i)) is not None:
            allocation = self.allocations[i]
            spread = allocation is not None and allocation.spread
            return belief.speed(int(self.ints["held_type"][i]), workers, servers, spread)
        curve = self.curves[self.ints["curve"][i]]
        reference = float(curve.speed(int(self.ints["workers_ref"][i]), int(self.ints["servers_ref"][i])))
        return base * float(curve.speed(workers, servers)) / reference


def _interned(value: Any, known: list[Any], index_of: dict[Any, int]) -> int:
    """The place of a value among those known, behind them if it is new."""
    index = index_of.setdefault(value, len(known))
    if index == len(known):
        known.append(value)
    return index


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
        self.job_indices = columns.rows.copy()

    def reordered(self, order: Ints) -> JobTable:
        """The same jobs with their rows in another order."""
        table = JobTable(self._columns, self._now_ms)
        table.job_indices = self.job_indices[order]
        return table

    def __len__(self) -> int:
        return len(self.job_indices)

    def __iter__(self) -> Iterator[JobView]:
        return (JobView(self, row) for row in range(len(self.job_indices)))

    def __getitem__(self, row: int) -> JobView:
        return JobView(self, row)

    def spec(self, row: int) -> JobSpec:
        return self._source().spec(int(self.job_indices[row]))

    def id(self, row: int) -> JobId:
        return self.spec(row).id

    def allocation(self, row: int) -> Allocation | None:
        return self._source().allocations[int(self.job_indices[row])]

    def holds(self, row: int) -> bool:
        """Whether the job has devices (as the column `holding`, for one row)."""
        ints = self._source().ints
        job_index = int(self.job_indices[row])
        return bool(ints["workers"][job_index] > 0) and int(ints["phase"][job_index]) != PhaseCode.LOST

    def losses(self, row: int) -> tuple[tuple[float, float], ...]:
        """(work done, loss) as far as the job has reported it, in order of work."""
        return tuple(self._source().losses.get(int(self.job_indices[row]), ()))

    def scaling(self, row: int) -> Scaling:
        return self._source().curves[int(self.curve[row])]

    @property
    def ids(self) -> list[JobId]:
        return [self.id(row) for row in range(len(self.job_indices))]

    @property
    def curves(self) -> list[Scaling]:
        return self._source().curves

    @property
    def entities(self) -> list[str]:
        """Names that the column `entity` indexes."""
        return self._source().entities

    def rate_at(self, row: int, accelerator: int, workers: int, servers: int = 0, spread: bool = False) -> float:
        """Estimated steps per second at another size or type."""
        return self._source().rate_of(int(self.job_indices[row]), accelerator, workers, servers, spread)

    def speed_at(
        self, row: int, accelerator: int, workers: int, servers: int = 0, spread: bool = False, probability: float = 0.5
    ) -> float:
        """Steps per second that the job exceeds with this probability, at any size and type, on one node or several.
        Of a job of which nothing is learned, what it says at every probability."""
        at = int(self.job_indices[row])
        middle = self._source().rate_of(at, accelerator, workers, servers, spread)
        belief = self._source().beliefs.get(at)
        if belief is None or probability == 0.5 or middle == 0.0:
            return middle
        return belief.speed(accelerator, workers, servers, spread, probability)

    def belief(self, row: int) -> SpeedTable | None:
        """What is learned of the job's speed; None: nothing, it is as fast as it says."""
        return self._source().beliefs.get(int(self.job_indices[row]))

    @property
    def belief_version(self) -> Floats:
        """By row: changes whenever what is learned of the job's speed does; 0: nothing is."""
        beliefs = self._source().beliefs
        found = (beliefs.get(at) for at in self.job_indices.tolist())
        return np.array([0.0 if belief is None else float(belief.version) for belief in found])

    def freeze(self) -> None:
        """Read every column now, so that the table outlives the engine's next step."""
        for name in (*INT_COLUMNS, *FLOAT_COLUMNS, "throughput", "throughput_spread", "allowed"):
            getattr(self, name)

    @property
    def columns(self) -> JobColumns:
        """The engine's own columns, indexed by job index, for compiled passes. To be read, never written."""
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
            value = columns.ints[name][self.job_indices]
        elif name in columns.floats:
            value = columns.floats[name][self.job_indices]
        elif name in ("throughput", "throughput_spread", "allowed"):
            value = getattr(columns, name)[self.job_indices]
        else:
            raise AttributeError(f"jobs have no column '{name}'")
        value.flags.writeable = False
        self.__dict__[name] = value
        return value


def _work_done(table: JobTable) -> Floats:
    return work_done_column(table._source(), table.job_indices, table._now_ms)


def _remaining_s(table: JobTable) -> Floats:
    return remaining_column(table._source(), table.job_indices, table._now_ms)


def _service(table: JobTable) -> Floats:
    return service_column(table._source(), table.job_indices, table._now_ms)


def _run_s(table: JobTable) -> Floats:
    c = table._source()
    running = (table.phase >= PhaseCode.RUNNING) & (table.phase <= PhaseCode.STOPPING)
    since = np.where(running, table._now_ms - c.ints["as_of_ms"][table.job_indices], 0) / MS_PER_S
    return c.floats["run_s"][table.job_indices] + since


_DERIVED = {
    "work_done": _work_done,
    "remaining": lambda t: t.work_total - t.work_done,
    "remaining_s": _remaining_s,
    "service_gpu_s": _service,
    "run_s": _run_s,
    "gpus": lambda t: t.workers_ref * t.worker_gpu_milli / 1000.0,
    "holding": lambda t: (t.workers > 0) & (t.phase != PhaseCode.LOST),
    "waiting": lambda t: t.phase == PhaseCode.PENDING,
}
