"""The engine as records: what a store keeps of it, and how an equal engine is built from that.

One record per active job, one for the engine itself (`meta`), one per job that has ended. Ledgers are not
kept: they follow from what is allocated and held, so they cannot disagree with it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from trainmaster.core.arrays import Ints
from trainmaster.core.codes import WORDS
from trainmaster.core.engine.engine_core import set_allocation, set_physical
from trainmaster.core.state.message_kinds import LAUNCH, RESIZE, STOP
from trainmaster.engine import learned_speeds
from trainmaster.engine.deciding.admission_gate import apply_cap
from trainmaster.engine.engine import Engine
from trainmaster.engine.handlers import foreign_usage
from trainmaster.engine.ports import Commit, Estimator, JsonObject, StoredState
from trainmaster.engine.records import Ended, Settings
from trainmaster.model.capacity.packed_allocation import packed_list
from trainmaster.model.cluster import Cluster
from trainmaster.model.codec import (
    allocation_from_json,
    allocation_to_json,
    command_from_json,
    command_to_json,
    spec_from_json,
    spec_to_json,
)
from trainmaster.model.command import Command, Launch, Stop
from trainmaster.model.errors import InputError
from trainmaster.model.job import JobId, Phase
from trainmaster.model.plan import Rejection
from trainmaster.model.policy import Policy
from trainmaster.model.reasons import Why

FORMAT = 1
_INTS = (
    "arrival", "phase", "generation", "attempts", "failures", "preemptions", "first_start_ms", "as_of_ms",
    "productive_ms", "waiting_since_ms", "not_before_ms", "reason", "admitted", "after_stop",
)  # fmt: skip
"""Columns with a life of their own; the others follow from the job's description or its allocation."""
_COMPARED_INTS = (
    *_INTS, "workers_min", "workers_max", "workers", "servers", "held_type", "held_gpu_milli", "deadline_ms",
    "deadline_kind", "priority", "pending_kind", "pending_seq", "pending_sent_ms", "last_seq", "touched",
)  # fmt: skip
"""Those and what shows that a job's description or allocation is another one."""
_FLOATS = ("work_done", "work_saved", "rate", "service_gpu_s", "run_s", "cost")


class Recorder:
    """Tells what changed since it was last asked, by comparing with what it told then.

    Columns are compared as whole arrays, and books by their entries, of which only jobs that run have any; so
    a commit costs little for each job that merely waits.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._told = [column.copy() for column in _columns(engine, _Waits.of(engine))]
        self._books = _books(engine)

    @classmethod
    def of_new(cls, engine: Engine) -> Recorder:
        """For an engine of which nothing has been kept yet."""
        recorder = cls(engine)
        recorder._told = []
        return recorder

    def changes(self, ended: Sequence[Ended]) -> Commit:
        """What a commit must hold; `ended` is what the engine has just said to be over."""
        engine = self.engine
        jobs: dict[str, JsonObject | None] = {}
        waits = _Waits.of(engine)
        for job_index in self._changed_indices(waits):
            jobs[engine.columns.spec(job_index).id] = job_record(engine, job_index, waits)
        for end in ended:
            jobs[end.spec.id] = None
        return Commit(jobs, {end.spec.id: ended_record(end) for end in ended}, meta_record(engine, waits))

    def _changed_indices(self, waits: _Waits) -> list[int]:
        rows = self.engine.columns.rows
        columns, books = _columns(self.engine, waits), _books(self.engine)
        told = self._told
        if len(told) == len(columns) and len(told[0]) <= len(columns[0]):
            known = len(told[0])
            changed = np.ones(len(columns[0]), np.bool_)  # job indices that were not there before are new
            changed[:known] = False
            for k, column in enumerate(columns):
                differs = column[:known] != told[k]
                if differs.any():
                    changed[:known] |= differs
                    told[k][:] = column[:known]
                if known < len(column):
                    told[k] = column.copy()
        else:  # other columns of memory: rare, so everything is told again
            changed = np.ones(len(columns[0]), np.bool_)
            self._told = [column.copy() for column in columns]
        for book, earlier in zip(books, self._books, strict=True):
            for job_index in book.keys() | earlier.keys():
                if job_index not in book or job_index not in earlier or book[job_index] != earlier[job_index]:
                    changed[job_index] = True
        self._books = books
        return rows[changed[rows]].tolist()


def _columns(engine: Engine, waits: _Waits) -> list[Ints]:
    """All numbers of which a job's record is made, by job index; floats by their bits, so that NaN equals itself.
    `arrival` tells jobs apart that have had the same job index."""
    columns = engine.columns
    ints, arrival = columns.ints, columns.ints["arrival"]
    alive = np.zeros(columns.capacity, np.bool_)
    alive[columns.rows] = True
    blocker = np.maximum(waits.blocker, 0)
    blocked_by = np.where((waits.blocker >= 0) & alive[blocker], arrival[blocker], -1)
    floats = [columns.floats[name] for name in (*_FLOATS, "weight")]
    tables = [columns.throughput, columns.throughput_spread]
    tables += [columns.memo[name].reshape(columns.capacity, -1) for name in sorted(engine.memo_columns)]
    floats += [table[:, k] for table in tables for k in range(table.shape[1])]
    return [
        *(waits.why if name == "reason" else ints[name] for name in _COMPARED_INTS),
        blocked_by,
        *(values.view(np.int64) for values in floats),
    ]


def _books(engine: Engine) -> tuple[dict[int, Any], ...]:
    """What is kept of some jobs only, by job index; sets and dictionaries that change are copied."""
    return (
        dict(engine.details),
        {job_index: dict(doubts) for job_index, doubts in engine.doubts.items()},
        {job_index: frozenset(nodes) for job_index, nodes in engine.ended_on.items()},
        {job_index: frozenset(jobs) for job_index, jobs in engine.waits_for.items()},
        dict(engine.gated),
        dict(engine.caps),
        dict(engine.no_room),
        {job_index: tuple(points) for job_index, points in engine.columns.losses.items()},
    )


def _id_at(engine: Engine, job_index: int) -> JobId | None:
    spec = engine.columns.specs[job_index] if job_index >= 0 else None
    return None if spec is None else spec.id


class _Waits(NamedTuple):
    """Why jobs wait and which job holds each up (-1: none), by job index. The one that holds up the first job behind it
    is the same for most, so it is said once: `behind`."""

    why: Ints
    blocker: Ints
    behind: int

    @classmethod
    def of(cls, engine: Engine) -> _Waits:
        (why, blocker), rows = engine.reasons(), engine.columns.rows
        held_up = rows[(why[rows] == Why.BEHIND) & (blocker[rows] >= 0)]
        behind = blocker.item(held_up[0]) if len(held_up) else -1
        if behind >= 0:
            blocker[(blocker == behind) & (why == Why.BEHIND)] = -1
        return cls(why, blocker, behind)


def job_record(engine: Engine, job_index: int, waits: _Waits | None = None) -> JsonObject:
    columns, waits = engine.columns, waits or _Waits.of(engine)
    allocation, held = columns.allocations[job_index], columns.held[job_index]
    command = engine.pending_command(job_index) if columns.ints["pending_kind"][job_index] else None
    return {
        "spec": spec_to_json(columns.spec(job_index)),
        "ints": {name: columns.ints[name].item(job_index) for name in _INTS} | {"reason": waits.why.item(job_index)},
        "floats": {name: columns.floats[name].item(job_index) for name in _FLOATS},
        "throughput": columns.throughput[job_index].tolist(),
        "throughput_spread": columns.throughput_spread[job_index].tolist(),
        "memo": {name: columns.memo[name][job_index].tolist() for name in sorted(engine.memo_columns)},
        "allocation": None if allocation is None else allocation_to_json(allocation),
        "held": None if held is None else allocation_to_json(held),
        "command": None if command is None else command_to_json(command),
        "sent_ms": None if command is None else columns.ints["pending_sent_ms"].item(job_index),
        "last_seq": None if held is None else columns.ints["last_seq"].item(job_index),
        "doubts": sorted(engine.doubts.get(job_index, {}).items()),
        "ended_on": sorted(engine.ended_on.get(job_index, ())),
        "details": None if job_index not in engine.details else dict(engine.details[job_index]),
        "losses": [list(point) for point in columns.losses.get(job_index, ())],
        "blocker": _id_at(engine, waits.blocker.item(job_index)),
        "waits_for": sorted(engine.waits_for.get(job_index, ())),
        "held_back": None if job_index not in engine.gated else int(engine.gated[job_index]),
        "cap": engine.caps.get(job_index),
        "no_room": engine.no_room.get(job_index, ""),
    }


def meta_record(engine: Engine, waits: _Waits | None = None) -> JsonObject:
    columns, waits = engine.columns, waits or _Waits.of(engine)
    return {
        "format": FORMAT,
        "nodes": [node.id for node in engine.cluster.nodes],
        "now_ms": int(engine.now_ms),
        "version": columns.version,
        "arrivals": columns.n_arrivals,
        "entities": list(columns.entities),
        "seq": int(engine.seq),
        "up": engine.up.tolist(),
        "reserved": [columns.spec(engine.reserved.values[k]).id for k in range(engine.reserved.n)],
        "changed": bool(engine.changed),
        "wake_at_ms": int(engine.wake_at_ms),
        "next_resend_ms": int(engine.next_resend_ms),  # a NumPy number where the core is not compiled
        "next_backoff_ms": int(engine.next_backoff_ms),
        "memo": dict(engine.memo_values),
        "memo_shapes": {name: list(columns.memo[name].shape[1:]) for name in sorted(engine.memo_columns)},
        "decisions": int(engine.decisions),
        "plans_refused": engine.plans_refused,
        "behind": _id_at(engine, waits.behind),
        "node_sets": {name: sorted(nodes) for name, nodes in sorted(engine.node_sets.items())},
        "used": [[node, *amounts] for node, amounts in sorted(engine.used.items())],
        "entity_weights": dict(engine.entity_weights),
        "entity_policies": dict(engine.entity_policies),
        "quotas": dict(engine.quotas),
    }


def stored_state_of(engine: Engine) -> StoredState:
    """Everything of an engine but the jobs that are over, of which it keeps how they ended."""
    columns = engine.columns
    waits, job_indices = _Waits.of(engine), columns.rows.tolist()
    jobs: dict[str, JsonObject] = {
        columns.spec(job_index).id: job_record(engine, job_index, waits) for job_index in job_indices
    }
    ended: dict[str, JsonObject] = {job_id: {"phase": phase} for job_id, phase in engine.ended_as.items()}
    return StoredState(jobs, ended, meta_record(engine, waits))


def ended_record(end: Ended) -> JsonObject:
    rejection = end.rejection
    return {
        "spec": spec_to_json(end.spec),
        "phase": int(end.phase),
        "ended_ms": end.ended_ms,
        "first_start_ms": end.first_start_ms,
        "service_gpu_s": end.service_gpu_s,
        "run_s": end.run_s,
        "work_done": end.work_done,
        "preemptions": end.preemptions,
        "attempts": end.attempts,
        "cost": end.cost,
        "rejection": None if rejection is None else {"why": int(rejection.why), "details": dict(rejection.details)},
    }


def ended_from_record(record: Mapping[str, Any]) -> Ended:
    values = dict(record)
    rejection = values.pop("rejection")
    values.pop("service", None)  # what the service adds for its own views
    if rejection is not None:
        rejection = Rejection(Why(rejection["why"]), rejection["details"])
    values["spec"], values["phase"] = spec_from_json(values["spec"]), Phase(values["phase"])
    return Ended(**values, rejection=rejection)


def readable_ends(records: Iterable[Mapping[str, Any]]) -> list[Ended]:
    """Without those that are damaged."""
    found = []
    for record in records:
        with contextlib.suppress(Exception):
            found.append(ended_from_record(record))
    return found


def restore(
    stored_state: StoredState, cluster: Cluster, policy: Policy, estimator: Estimator, settings: Settings
) -> Engine:
    """An engine that goes on exactly where the committed one was.

    The driver then sends `pending_commands()`, before anything else, and asks for an inventory.
    """
    engine = Engine(cluster, policy, estimator, settings)
    meta = stored_state.meta
    if meta is None:
        return engine
    _check(meta, cluster)
    columns = engine.columns
    for entity in meta["entities"]:
        columns.intern_entity(entity)
    engine.now_ms = meta["now_ms"]
    engine.up[:] = meta["up"]
    engine.memo_values = meta["memo"]
    engine.memo_columns = set(meta["memo_shapes"])
    for name, shape in meta["memo_shapes"].items():
        columns.memo[name] = np.zeros((columns.capacity, *shape))
    for record in sorted(stored_state.jobs.values(), key=lambda record: record["ints"]["arrival"]):
        _enter(engine, record)
    for job_id, record in stored_state.jobs.items():
        blocker = record["blocker"] or (meta.get("behind") if record["ints"]["reason"] == Why.BEHIND else None)
        if blocker is not None and blocker in columns.job_index_of:
            columns.ints["blocker"][columns.job_index_of[JobId(job_id)]] = columns.job_index_of[blocker]
    engine.node_sets = {name: frozenset(nodes) for name, nodes in meta.get("node_sets", {}).items()}
    for node, *amounts in meta.get("used", ()):
        foreign_usage.set_used(engine, node, (amounts[0], amounts[1], amounts[2]))
    columns.version = meta["version"]
    columns.n_arrivals = meta["arrivals"]
    engine.known.update(JobId(job_id) for job_id in stored_state.ended)
    engine.ended_as = {JobId(job_id): record["phase"] for job_id, record in stored_state.ended.items()}
    engine.entity_weights = dict(meta["entity_weights"])
    engine.entity_policies = dict(meta.get("entity_policies", {}))
    engine.quotas = dict(meta["quotas"])
    engine.has_quotas = bool(engine.quotas)
    engine.n_waiting = int((columns.ints["phase"][columns.rows] == Phase.PENDING).sum())
    engine.reserved.reserve(len(meta["reserved"]))
    for job_id in meta["reserved"]:
        engine.reserved.append(columns.job_index_of[job_id])
    for name in (
        "seq",
        "changed",
        "wake_at_ms",
        "next_resend_ms",
        "next_backoff_ms",
        "decisions",
        "plans_refused",
    ):
        setattr(engine, name, meta[name])
    learned_speeds.believe_restored(engine)
    return engine


def _check(meta: Mapping[str, Any], cluster: Cluster) -> None:
    if meta.get("format") != FORMAT:
        raise InputError(f"the store has format {meta.get('format')}", expected=f"format {FORMAT}")
    if meta["nodes"] != [node.id for node in cluster.nodes]:
        raise InputError(
            "the store was written for another cluster",
            expected="the same nodes in the same order",
            remedy="Start with the cluster it was written for, or with a new store.",
        )


def _enter(engine: Engine, record: Mapping[str, Any]) -> None:
    """Put one job back, with what it was given and what it holds."""
    columns = engine.columns
    spec = spec_from_json(record["spec"])
    here, spread = np.array(record["throughput"]), np.array(record["throughput_spread"])
    job_index = columns.add(spec, engine.now_ms, here, spread)
    engine.known.add(spec.id)
    if record["allocation"] is not None:
        allocation = allocation_from_json(record["allocation"])
        set_allocation(engine, job_index, packed_list(allocation), 0)
        engine.planned.take(allocation, spec.worker, spec.server)
    if record["held"] is not None:
        held = allocation_from_json(record["held"])
        set_physical(engine, job_index, packed_list(held), 0)
        engine.physical.take(held, spec.worker, spec.server)
        columns.ints["last_seq"][job_index] = record["last_seq"]
    if record["command"] is not None:
        _enter_command(engine, job_index, command_from_json(record["command"]), record["sent_ms"])
    if record["doubts"]:
        engine.doubts[job_index] = dict(record["doubts"])
    if record["ended_on"]:
        engine.ended_on[job_index] = set(record["ended_on"])
    if record["details"] is not None:
        engine.details[job_index] = record["details"]
    if record["waits_for"]:
        engine.waits_for[job_index] = set(record["waits_for"])
    if record["held_back"] is not None:
        engine.gated[job_index] = Why(record["held_back"])
    if record.get("no_room"):
        engine.no_room[job_index] = record["no_room"]
    if record["cap"] is not None:
        engine.caps[job_index] = record["cap"]
        apply_cap(engine, job_index)
    if record.get("losses"):
        columns.losses[job_index] = [(work, loss) for work, loss in record["losses"]]
    for name in _INTS:
        columns.ints[name][job_index] = record["ints"][name]
    for name in _FLOATS:
        columns.floats[name][job_index] = record["floats"][name]
    for name, value in record["memo"].items():
        columns.memo[name][job_index] = value


def _enter_command(engine: Engine, job_index: int, command: Command, sent_ms: int) -> None:
    """What has no answer yet; its gang is what the job holds (a launch) or is given (a resize)."""
    ints = engine.columns.ints
    ints["pending_kind"][job_index] = (
        LAUNCH if isinstance(command, Launch) else STOP if isinstance(command, Stop) else RESIZE
    )
    ints["pending_seq"][job_index], ints["pending_sent_ms"][job_index] = command.seq, sent_ms
    if isinstance(command, Stop):
        ints["pending_why"][job_index] = WORDS.index(command.why) if command.why in WORDS else 0
