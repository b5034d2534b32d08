"""Read access to an engine. Service, forecasts and commands see jobs, nodes and teams only through this module."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import numpy.typing as npt

from trainmaster.core.arrays import Floats, Ints
from trainmaster.core.engine.engine_core import wanted
from trainmaster.engine import learned_speeds, node_sets, priority_bands
from trainmaster.engine.engine import Engine
from trainmaster.engine.learned_speeds import SharedWith
from trainmaster.engine.lifecycle import LIVE
from trainmaster.model.allocation import Allocation
from trainmaster.model.job import JobId, JobSpec, Phase, PhaseCode
from trainmaster.model.job_table import JobTable
from trainmaster.model.reasons import MAX_HOLDERS, Reason, Why, size_short_of
from trainmaster.model.units import GPU_MILLI, MS_PER_S

Holders = tuple[tuple[JobId, float], ...]


@dataclass(frozen=True, slots=True)
class JobState:
    """One active job at one moment. `allocation`: what the plan gives it; `occupied`: what its processes may use."""

    spec: JobSpec
    phase: Phase
    generation: int
    attempts: int
    preemptions: int
    first_start_ms: int
    productive_ms: int
    work_recorded: float
    """When it last reported or changed size; `work_done` adds the estimated progress since."""
    work_done: float
    work_saved: float
    remaining_s: float
    rate: float
    cost: float
    loss: float | None
    allocation: Allocation | None
    occupied: Allocation | None


@dataclass(frozen=True, slots=True)
class TeamUse:
    jobs: int
    gpu_milli: int


@dataclass(frozen=True, slots=True)
class NodeState:
    up: bool
    free_gpus: float
    jobs: tuple[JobId, ...]


@dataclass(frozen=True, slots=True)
class WaitingJobs:
    """Jobs that wait, by priority and arrival, as arrays. `speeds`: by job and accelerator type,
    0 where it cannot run; `work_total` is NaN where unknown."""

    ids: list[JobId]
    speeds: Floats
    work_total: Floats
    work_done: Floats
    demand_milli: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class JobUse:
    """`cost` is NaN where a type has no price."""

    run_s: float
    cost: float
    cost_per_s: float


class Limit(NamedTuple):
    """What a job may use in all: `option` of the command line, `used` now, growing by `per_s`; NaN: unknown."""

    option: str
    used: float
    most: float
    per_s: float
    unit: str

    @property
    def text(self) -> str:
        """As its user gave it: `--time 60 s`."""
        return f"{self.option} {self.most:g} {self.unit}".strip()


@dataclass(frozen=True)
class ActiveJobs:
    """All active jobs in arrival order, as lists and arrays. `speeds`: by job and type on one node, then by type on
    several. `indices`: of the engine."""

    specs: list[JobSpec]
    indices: list[int]
    phases: list[int]
    generations: list[int]
    work_recorded: Floats
    work_done: Floats
    speeds: Floats


# -- one job -----------------------------------------------------------------------------------------------------------


def is_active(engine: Engine, job_id: str) -> bool:
    return job_id in engine.columns.job_index_of


def spec_of(engine: Engine, job_id: str) -> JobSpec | None:
    job_index = engine.columns.job_index_of.get(JobId(job_id))
    return None if job_index is None else engine.columns.spec(job_index)


def phase_of(engine: Engine, job_id: str) -> Phase | None:
    job_index = engine.columns.job_index_of.get(JobId(job_id))
    return None if job_index is None else Phase(int(engine.columns.ints["phase"][job_index]))


def generation_of(engine: Engine, job_id: str) -> int | None:
    job_index = engine.columns.job_index_of.get(JobId(job_id))
    return None if job_index is None else int(engine.columns.ints["generation"][job_index])


def is_live(engine: Engine, job_id: str) -> bool:
    """Whether processes of the job may exist."""
    phase = phase_of(engine, job_id)
    return phase is not None and phase in LIVE


def is_paused(engine: Engine, job_id: str) -> bool:
    """Whether an active job is paused, or will be once its processes have stopped."""
    job_index = engine.columns.job_index_of[JobId(job_id)]
    return PhaseCode.PAUSED in (int(engine.columns.ints["phase"][job_index]), wanted(engine, job_index))


def is_current(engine: Engine, job_id: JobId, generation: int) -> bool:
    """Whether a report of this generation would pass the fence."""
    return engine.current(job_id, generation) is not None


def was_submitted(engine: Engine, job_id: str) -> bool:
    """Whether the engine has ever taken a job of this id."""
    return job_id in engine.known


def work_saved(engine: Engine, job_id: str) -> float:
    job_index = engine.columns.job_index_of.get(JobId(job_id))
    return float("nan") if job_index is None else float(engine.columns.floats["work_saved"][job_index])


def lacking_room(engine: Engine, job_id: str) -> str:
    """Why the nodes that there are could not take a job even if they were empty; empty: they could."""
    job_index = engine.columns.job_index_of.get(JobId(job_id))
    return "" if job_index is None else engine.no_room.get(job_index, "")


def halted_why(engine: Engine, job_id: str) -> str | None:
    """Which limit the present attempt is being stopped for; None: for none."""
    job_index = engine.columns.job_index_of.get(JobId(job_id))
    return None if job_index is None else engine.halted.get(job_index)


def use_of(engine: Engine, job_id: str, now_ms: int) -> JobUse:
    """Run time and cost of an active job up to now."""
    columns = engine.columns
    job_index = columns.job_index_of[JobId(job_id)]
    table = JobTable(columns, now_ms)
    table.job_indices = np.array([job_index], np.int64)
    run_s, gpu_type = float(table.run_s[0]), int(columns.ints["held_type"][job_index])
    holds = gpu_type >= 0 and columns.ints["phase"][job_index] in LIVE
    price = float(engine.cluster.prices[gpu_type]) if holds else 0.0
    cost_per_s = price * float(columns.ints["held_gpu_milli"][job_index]) / GPU_MILLI / 3600.0
    since_s = run_s - float(columns.floats["run_s"][job_index])
    return JobUse(run_s, float(columns.floats["cost"][job_index]) + cost_per_s * since_s, cost_per_s)


def limits_of(engine: Engine, spec: JobSpec, now_ms: int) -> Iterator[Limit]:
    """Of an active job: run time and budget, as far as it has them."""
    if spec.time_s is None and spec.budget is None:
        return
    use = use_of(engine, spec.id, now_ms)
    if spec.time_s is not None:
        yield Limit("--time", use.run_s, spec.time_s, 1.0, "s")
    if spec.budget is not None:
        yield Limit("--budget", use.cost, spec.budget, use.cost_per_s, "")


def speeds_of(engine: Engine, job_id: str, spread: bool = False) -> dict[str, float]:
    """Estimated steps per second at the reference size, by accelerator type; `spread`: over several nodes."""
    columns = engine.columns
    table = columns.throughput_spread if spread else columns.throughput
    return dict(zip(engine.cluster.types, table[columns.job_index_of[JobId(job_id)]].tolist(), strict=True))


STATUS_COLUMNS = ("phase", "reason", "generation", "workers", "workers_min", "workers_max", "deadline_ms", "priority")


def status_keys(engine: Engine, job_ids: Iterable[str]) -> dict[str, tuple[int, ...] | None]:
    """Numbers that change whenever the status of a job should be published again, phase first; None: not active."""
    job_index_of = engine.columns.job_index_of
    why, _ = engine.reasons()
    texts = {job_index: crc32(text.encode()) for job_index, text in engine.no_room.items()}
    columns = [why if name == "reason" else engine.columns.ints[name] for name in STATUS_COLUMNS]
    found: dict[str, tuple[int, ...] | None] = {}
    for job_id in job_ids:
        job_index = job_index_of.get(JobId(job_id))
        found[job_id] = None
        if job_index is not None:
            found[job_id] = (*(int(column[job_index]) for column in columns), texts.get(job_index, 0))
    return found


# -- all jobs ----------------------------------------------------------------------------------------------------------


def shared_with(engine: Engine, job_id: str) -> list[SharedWith]:
    """Jobs that have the other part of a job's devices."""
    job_index = engine.columns.job_index_of.get(JobId(job_id))
    return [] if job_index is None else learned_speeds.shared_with(engine, job_index)


def why_alone(engine: Engine, job_id: str) -> str:
    """Why a job that waits shares no device although the policy would let it; empty: nothing to say."""
    job_index = engine.columns.job_index_of[JobId(job_id)]
    return learned_speeds.why_alone(engine, job_index, engine.columns.rows)


def n_active(engine: Engine) -> int:
    return len(engine.columns.job_index_of)


def active_specs(engine: Engine, phases: Iterable[int] | None = None) -> list[JobSpec]:
    """In arrival order; those in one of `phases`."""
    columns = engine.columns
    rows = columns.rows
    if phases is not None:
        rows = rows[np.isin(columns.ints["phase"][rows], sorted(phases))]
    return [columns.spec(job_index) for job_index in rows.tolist()]


def job_states(engine: Engine, job_ids: Iterable[str], now_ms: int) -> list[JobState]:
    """Active jobs, in the order asked for."""
    columns = engine.columns
    ints, floats = columns.ints, columns.floats
    job_indices = [columns.job_index_of[JobId(job_id)] for job_id in job_ids]
    if not job_indices:
        return []
    table = JobTable(columns, now_ms)
    table.job_indices = np.array(job_indices, np.int64)
    figures = zip(job_indices, table.work_done.tolist(), table.remaining_s.tolist(), strict=True)
    return [
        JobState(
            spec=columns.spec(job_index),
            phase=Phase(int(ints["phase"][job_index])),
            generation=int(ints["generation"][job_index]),
            attempts=int(ints["attempts"][job_index]),
            preemptions=int(ints["preemptions"][job_index]),
            first_start_ms=int(ints["first_start_ms"][job_index]),
            productive_ms=int(ints["productive_ms"][job_index]),
            work_recorded=float(floats["work_done"][job_index]),
            work_done=work_done,
            work_saved=float(floats["work_saved"][job_index]),
            remaining_s=remaining_s,
            rate=float(floats["rate"][job_index]),
            cost=float(floats["cost"][job_index]),
            loss=columns.losses[job_index][-1][1] if columns.losses.get(job_index) else None,
            allocation=columns.allocations[job_index],
            occupied=columns.held[job_index],
        )
        for job_index, work_done, remaining_s in figures
    ]


def active_jobs(engine: Engine, now_ms: int) -> ActiveJobs:
    columns = engine.columns
    table, job_indices = JobTable(columns, now_ms), columns.rows.copy()
    return ActiveJobs(
        specs=[columns.spec(job_index) for job_index in job_indices.tolist()],
        indices=job_indices.tolist(),
        phases=columns.ints["phase"][job_indices].tolist(),
        generations=columns.ints["generation"][job_indices].tolist(),
        work_recorded=columns.floats["work_done"][job_indices],
        work_done=table.work_done,
        speeds=np.hstack([columns.throughput[job_indices], columns.throughput_spread[job_indices]]),
    )


def first_starts_ms(engine: Engine) -> dict[JobId, int]:
    """When each active job that has ever run began to."""
    columns = engine.columns
    first_ms = columns.ints["first_start_ms"]
    return {
        columns.spec(job_index).id: int(first_ms[job_index])
        for job_index in columns.rows[first_ms[columns.rows] >= 0].tolist()
    }


def notices_s(engine: Engine, now_ms: int) -> dict[JobId, float]:
    """Jobs that were given notice of a preemption, and for how many seconds they are still spared."""
    return {
        notice.job_id: (notice.until_ms - now_ms) / MS_PER_S
        for notice in engine.notices.values()
        if notice.until_ms > now_ms
    }


def may_hold_back(engine: Engine) -> bool:
    """Whether policies do not see some jobs, now or later: they wait for others, or for their team's quota."""
    return bool(engine.gated or engine.waits_for or engine.quotas or engine.caps)


def decides_in_bands(engine: Engine, priorities: Iterable[int]) -> bool:
    """Whether jobs of these priorities are decided band by band, or the policy has a memory of several bands."""
    return priority_bands.several(engine.policy, priorities) or priority_bands.MEMORY in engine.memo_values


def lost_members(engine: Engine) -> bool:
    """Whether members of some job are, or may be, beyond reach."""
    return bool(engine.doubts or engine.ended_on)


def _waiting_indices(engine: Engine) -> npt.NDArray[np.int64]:
    ints, rows = engine.columns.ints, engine.columns.rows
    waiting = rows[ints["phase"][rows] == PhaseCode.PENDING]
    return waiting[np.argsort(-ints["priority"][waiting], kind="stable")]


def queue_positions(engine: Engine) -> dict[JobId, int]:
    """Place of each waiting job, by priority and arrival, from 1."""
    return {engine.columns.spec(job_index).id: place for place, job_index in enumerate(_waiting_indices(engine), 1)}


def phase_counts(engine: Engine) -> dict[Phase, int]:
    phases = engine.columns.ints["phase"][engine.columns.rows]
    counted = zip(*np.unique(phases, return_counts=True), strict=True)
    return {Phase(int(phase)): int(number) for phase, number in counted}


def waiting_jobs(engine: Engine) -> WaitingJobs:
    columns = engine.columns
    ints, floats = columns.ints, columns.floats
    job_indices = _waiting_indices(engine)
    return WaitingJobs(
        ids=[columns.spec(job_index).id for job_index in job_indices.tolist()],
        speeds=np.where(columns.allowed[job_indices], np.nan_to_num(columns.throughput[job_indices]), 0.0),
        work_total=floats["work_total"][job_indices],
        work_done=floats["work_done"][job_indices],
        demand_milli=ints["workers_ref"][job_indices] * ints["worker_gpu_milli"][job_indices],
    )


# -- nodes, teams, commands --------------------------------------------------------------------------------------------


def held_gpu_milli(engine: Engine) -> int:
    """GPU thousandths that the plan gives to jobs."""
    return int(engine.columns.ints["held_gpu_milli"][engine.columns.rows].sum())


def node_states(engine: Engine) -> list[NodeState]:
    """By index of the node."""
    free_milli = engine.planned.device_milli.sum(axis=1)
    users: dict[int, set[JobId]] = {}
    for job_index, allocation in engine.held.items():
        for part in allocation.parts:
            users.setdefault(part.node, set()).add(engine.columns.spec(job_index).id)
    return [
        NodeState(bool(up), float(free_milli[k]) / GPU_MILLI if up else 0.0, tuple(sorted(users.get(k, ()))))
        for k, up in enumerate(engine.up)
    ]


def is_node_up(engine: Engine, node: int) -> bool:
    return bool(engine.up[node])


def nodes_in_use(engine: Engine) -> set[int]:
    """Nodes that the plan or a running process uses."""
    columns = engine.columns
    planned = [columns.allocations[job_index] for job_index in columns.rows.tolist()]
    allocations = (*planned, *engine.held.values())
    return {part.node for allocation in allocations if allocation is not None for part in allocation.parts}


def team_use(engine: Engine) -> dict[str, TeamUse]:
    columns = engine.columns
    found: dict[str, TeamUse] = {}
    for job_index in columns.rows.tolist():
        team = columns.entities[int(columns.ints["entity"][job_index])]
        before = found.get(team, TeamUse(0, 0))
        found[team] = TeamUse(before.jobs + 1, before.gpu_milli + int(columns.ints["held_gpu_milli"][job_index]))
    return found


def n_pending_commands(engine: Engine) -> int:
    return int(np.count_nonzero(engine.columns.ints["pending_kind"][engine.columns.rows]))


def last_command_seq(engine: Engine) -> int:
    return engine.seq


# -- reasons -----------------------------------------------------------------------------------------------------------


_HELD_BY_OTHERS = frozenset({Why.CAPACITY, Why.SHAPE, Why.OUTRANKED, Why.SHARE, Why.NEXT_ROUND, Why.PRIORITY})
"""Reasons for which it matters who has the GPUs; a quota, a pause or another job's end is nobody's devices."""


class Explainer:
    """Reasons of many jobs at one moment: what they share (free GPUs and holders by type) is computed once."""

    def __init__(self, engine: Engine, slow_starts: Mapping[str, str] | None = None) -> None:
        """`slow_starts`: what a backend says of jobs that start."""
        self._engine = engine
        self._slow_starts = slow_starts or {}
        self._free = engine.planned.device_milli.sum(axis=1) * engine.up / GPU_MILLI
        self._node_sets = node_sets.masks(engine)
        self._why, self._blocker = engine.reasons()
        self._by_nodes: dict[bytes, tuple[dict[str, float], Holders]] = {}

    def reason(self, job_id: str) -> Reason | None:
        """Why a job waits, in full; None when it does not exist or does not wait."""
        engine, columns = self._engine, self._engine.columns
        job_index = columns.job_index_of.get(JobId(job_id))
        why = Why.NONE if job_index is None else engine.why_among(job_index, self._why)
        if job_index is None or why == Why.NONE:
            return None
        ints = columns.ints
        free, holders = self._shared(job_index)
        missing_type = max(free, key=lambda name: (free[name], name)) if free else ""
        most_free = free.get(missing_type, 0.0)
        sizes = int(ints["workers_min"][job_index]), int(ints["workers_ask"][job_index])
        need = size_short_of(why, sizes, int(ints["worker_gpu_milli"][job_index]) / GPU_MILLI, most_free)
        blocker = int(self._blocker[job_index])
        ahead = columns.specs[blocker] if blocker >= 0 else None
        details: dict[str, Any] = dict(engine.reason_details(job_index) or {})
        if why in (Why.STARTING, Why.BACKOFF) and (slow := self._slow_starts.get(job_id)):
            details["slow"] = slow
        return Reason(
            why=why,
            needs_gpus=need,
            free=free,
            holders=holders if why in _HELD_BY_OTHERS or (why == Why.BEHIND and need > most_free) else (),
            missing_gpus=max(0.0, need - most_free),
            missing_type=missing_type,
            behind=None if ahead is None or why not in (Why.BEHIND, Why.PRIORITY) else ahead.id,
            details=details,
        )

    def _shared(self, job_index: int) -> tuple[dict[str, float], Holders]:
        """Free GPUs by type, and who holds others, on the nodes that a job may use."""
        columns, cluster = self._engine.columns, self._engine.cluster
        allowed = columns.allowed[job_index]
        usable = allowed[cluster.type_of] & self._node_sets.get(columns.spec(job_index).node_set, True)
        key = usable.tobytes()
        if key not in self._by_nodes:
            by_type = np.bincount(cluster.type_of, weights=self._free * usable, minlength=len(cluster.types)).tolist()
            free = {name: by_type[k] for k, name in enumerate(cluster.types) if allowed[k]}
            gpus = [
                (columns.spec(holder).id, held)
                for holder in columns.rows[columns.ints["held_gpu_milli"][columns.rows] > 0].tolist()
                if (held := self._gpus_on(holder, usable))
            ]
            self._by_nodes[key] = free, tuple(sorted(gpus, key=lambda item: (-item[1], item[0]))[:MAX_HOLDERS])
        return self._by_nodes[key]

    def _gpus_on(self, job_index: int, nodes: npt.NDArray[np.bool_]) -> float:
        allocation = self._engine.columns.allocations[job_index]
        if allocation is None:
            return 0.0
        devices = sum(len(part.devices) for part in allocation.parts if nodes[part.node])
        return devices * allocation.share_milli / GPU_MILLI


# -- as a learner sees it -----------------------------------------------------------------------------

_WITH_PROCESSES = (PhaseCode.LAUNCHING, PhaseCode.RUNNING, PhaseCode.RESIZING, PhaseCode.STOPPING, PhaseCode.LOST)
_OBSERVED_INTS = (
    "phase", "submit_ms", "workers_min", "workers_max", "servers_min", "servers_max", "workers", "servers",
    "worker_gpu_milli", "priority", "deadline_ms", "attempts", "preemptions",
)  # fmt: skip
_OBSERVED_FLOATS = ("work_total", "rate", "weight")


def arrivals(engine: Engine) -> int:
    """How many jobs have come."""
    return int(engine.columns.n_arrivals)


@dataclass(frozen=True)
class Observation:
    """An engine at this moment; to be used before its next step."""

    engine: Engine
    at_ms: int
    order: Ints
    """The first jobs: running ones, then others, each by arrival."""
    n_jobs: int
    running: int
    arrivals: int

    @staticmethod
    def of(engine: Engine, most: int) -> Observation:
        rows = engine.columns.rows
        live = np.isin(engine.columns.ints["phase"][rows], _WITH_PROCESSES)
        order = np.concatenate([rows[live], rows[~live]])[:most]
        return Observation(engine, engine.now_ms, order, len(rows), int(live.sum()), arrivals(engine))

    def parts(self) -> dict[str, float]:
        """Part of its work that each job has done, of those whose work is known."""
        columns = self.engine.columns
        totals, done = columns.floats["work_total"][self.order].tolist(), self._work_done(self.order).tolist()
        ids = [columns.spec(job_index).id for job_index in self.order.tolist()]
        return {job_id: min(of / total, 1.0) for job_id, of, total in zip(ids, done, totals, strict=True) if total > 0}

    def machines(self) -> dict[str, Any]:
        """GPUs of nodes that are up, and those of them that nothing is planned on, by type."""
        cluster, up = self.engine.cluster, self.engine.up
        n_types = len(cluster.types)
        total = np.bincount(cluster.type_of[up], cluster.gpus[up], n_types)
        free = np.bincount(cluster.type_of[up], self.engine.planned.whole[up], n_types)
        return {
            "types": list(cluster.types),
            "gpus": total.astype(int).tolist(),
            "free_gpus": free.astype(int).tolist(),
        }

    def jobs(self, most: int) -> dict[str, Any]:
        """The first jobs by column. `speeds`: steps per second by type at the reference size, as believed."""
        columns, order = self.engine.columns, self.order[:most]
        specs = [columns.spec(job_index) for job_index in order.tolist()]
        held = columns.ints["held_type"][order].tolist()
        return {
            "id": [spec.id for spec in specs],
            "team": [spec.entity for spec in specs],
            "held_type": [None if kind < 0 else self.engine.cluster.types[kind] for kind in held],
            **{name: columns.ints[name][order].tolist() for name in _OBSERVED_INTS},
            **{name: [rounded(value) for value in columns.floats[name][order].tolist()] for name in _OBSERVED_FLOATS},
            "work_done": [rounded(value) for value in self._work_done(order).tolist()],
            "speeds": [[rounded(value) for value in speeds] for speeds in columns.throughput[order].tolist()],
        }

    def _work_done(self, order: Ints) -> Floats:
        """Steps by now, of running jobs as believed since their last report."""
        ints, floats = self.engine.columns.ints, self.engine.columns.floats
        since_ms = self.at_ms - np.maximum(ints["as_of_ms"][order], ints["productive_ms"][order])
        running = ints["phase"][order] == PhaseCode.RUNNING
        more = np.where(running, np.nan_to_num(floats["rate"][order]) * np.maximum(since_ms, 0) / MS_PER_S, 0.0)
        return floats["work_done"][order] + more


def rounded(value: float) -> float | None:
    """JSON has no NaN; six digits are enough."""
    return float(f"{value:.6g}") if math.isfinite(value) else None
