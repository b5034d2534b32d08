"""The engine as records: what a store keeps of it, and how an equal engine is built from that.

One record per active job, one for the engine itself (`meta`), one per job that has ended. Ledgers are not
kept: they follow from what is allocated and held, so they cannot disagree with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from trainmaster.core.codes import WORDS
from trainmaster.core.engine_core import hold, set_allocation
from trainmaster.core.message_kinds import LAUNCH, RESIZE, STOP
from trainmaster.engine import withheld
from trainmaster.engine.core import Engine
from trainmaster.engine.holds import apply_cap
from trainmaster.engine.ports import Commit, Estimator, Image, JsonObject
from trainmaster.engine.records import Ended, Settings
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
from trainmaster.model.gangs import gang_list
from trainmaster.model.job import JobId, Phase
from trainmaster.model.plan import Rejection
from trainmaster.model.policy import Policy
from trainmaster.model.reasons import Why

Ints = npt.NDArray[np.int64]
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
        for slot in self._changed_slots(waits):
            jobs[engine.columns.spec(slot).id] = job_record(engine, slot, waits)
        for end in ended:
            jobs[end.spec.id] = None
        return Commit(jobs, {end.spec.id: ended_record(end) for end in ended}, meta_record(engine, waits))

    def _changed_slots(self, waits: _Waits) -> list[int]:
        rows = self.engine.columns.rows
        columns, books = _columns(self.engine, waits), _books(self.engine)
        told = self._told
        if len(told) == len(columns) and len(told[0]) <= len(columns[0]):
            known = len(told[0])
            changed = np.ones(len(columns[0]), np.bool_)  # slots that were not there before are new
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
            for slot in book.keys() | earlier.keys():
                if slot not in book or slot not in earlier or book[slot] != earlier[slot]:
                    changed[slot] = True
        self._books = books
        return rows[changed[rows]].tolist()


def _columns(engine: Engine, waits: _Waits) -> list[Ints]:
    """All numbers of which a job's record is made, by slot; floats by their bits, so that NaN equals itself.
    `arrival` tells jobs apart that have had the same slot."""
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
    """What is kept of some jobs only, by slot; sets and dictionaries that change are copied."""
    return (
        dict(engine.details),
        {slot: dict(doubts) for slot, doubts in engine.doubts.items()},
        {slot: frozenset(nodes) for slot, nodes in engine.ended_on.items()},
        {slot: frozenset(jobs) for slot, jobs in engine.waits_for.items()},
        dict(engine.held_back), dict(engine.caps),
        {slot: tuple(points) for slot, points in engine.columns.losses.items()},
    )  # fmt: skip


def _id_at(engine: Engine, slot: int) -> JobId | None:
    spec = engine.columns.specs[slot] if slot >= 0 else None
    return None if spec is None else spec.id


class _Waits(NamedTuple):
    """Why jobs wait and which job holds each up (-1: none), by slot. The one that holds up the first job behind it is
    the same for most, so it is said once: `behind`."""

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


def job_record(engine: Engine, slot: int, waits: _Waits | None = None) -> JsonObject:
    columns, waits = engine.columns, waits or _Waits.of(engine)
    allocation, held = columns.allocations[slot], columns.held[slot]
    command = engine.pending_command(slot) if columns.ints["pending_kind"][slot] else None
    return {
        "spec": spec_to_json(columns.spec(slot)),
        "ints": {name: columns.ints[name].item(slot) for name in _INTS} | {"reason": waits.why.item(slot)},
        "floats": {name: columns.floats[name].item(slot) for name in _FLOATS},
        "throughput": columns.throughput[slot].tolist(),
        "throughput_spread": columns.throughput_spread[slot].tolist(),
        "memo": {name: columns.memo[name][slot].tolist() for name in sorted(engine.memo_columns)},
        "allocation": None if allocation is None else allocation_to_json(allocation),
        "held": None if held is None else allocation_to_json(held),
        "command": None if command is None else command_to_json(command),
        "sent_ms": None if command is None else columns.ints["pending_sent_ms"].item(slot),
        "last_seq": None if held is None else columns.ints["last_seq"].item(slot),
        "doubts": sorted(engine.doubts.get(slot, {}).items()),
        "ended_on": sorted(engine.ended_on.get(slot, ())),
        "details": None if slot not in engine.details else dict(engine.details[slot]),
        "losses": [list(point) for point in columns.losses.get(slot, ())],
        "blocker": _id_at(engine, waits.blocker.item(slot)),
        "waits_for": sorted(engine.waits_for.get(slot, ())),
        "held_back": None if slot not in engine.held_back else int(engine.held_back[slot]),
        "cap": engine.caps.get(slot),
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
        "quotas": dict(engine.quotas),
    }


def image_of(engine: Engine) -> Image:
    """Everything of an engine but the jobs that are over, of which it keeps how they ended."""
    columns = engine.columns
    waits, slots = _Waits.of(engine), columns.rows.tolist()
    jobs: dict[str, JsonObject] = {columns.spec(slot).id: job_record(engine, slot, waits) for slot in slots}
    ended: dict[str, JsonObject] = {job_id: {"phase": phase} for job_id, phase in engine.ended_as.items()}
    return Image(jobs, ended, meta_record(engine, waits))


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


def restore(image: Image, cluster: Cluster, policy: Policy, estimator: Estimator, settings: Settings) -> Engine:
    """An engine that goes on exactly where the committed one was.

    The driver then sends `pending_commands()`, before anything else, and asks for an inventory.
    """
    engine = Engine(cluster, policy, estimator, settings)
    meta = image.meta
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
    for record in sorted(image.jobs.values(), key=lambda record: record["ints"]["arrival"]):
        _enter(engine, record)
    for job_id, record in image.jobs.items():
        blocker = record["blocker"] or (meta.get("behind") if record["ints"]["reason"] == Why.BEHIND else None)
        if blocker is not None and blocker in columns.slot_of:
            columns.ints["blocker"][columns.slot_of[JobId(job_id)]] = columns.slot_of[blocker]
    engine.node_sets = {name: frozenset(nodes) for name, nodes in meta.get("node_sets", {}).items()}
    for node, *amounts in meta.get("used", ()):
        withheld.set_used(engine, node, (amounts[0], amounts[1], amounts[2]))
    columns.version = meta["version"]
    columns.n_arrivals = meta["arrivals"]
    engine.known.update(JobId(job_id) for job_id in image.ended)
    engine.ended_as = {JobId(job_id): record["phase"] for job_id, record in image.ended.items()}
    engine.entity_weights = dict(meta["entity_weights"])
    engine.quotas = dict(meta["quotas"])
    engine.has_quotas = bool(engine.quotas)
    engine.n_waiting = int((columns.ints["phase"][columns.rows] == Phase.PENDING).sum())
    engine.reserved.reserve(len(meta["reserved"]))
    for job_id in meta["reserved"]:
        engine.reserved.append(columns.slot_of[job_id])
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
    slot = columns.add(spec, engine.now_ms, here, spread)
    engine.known.add(spec.id)
    if record["allocation"] is not None:
        allocation = allocation_from_json(record["allocation"])
        set_allocation(engine, slot, gang_list(allocation), 0)
        engine.planned.take(allocation, spec.worker, spec.server)
    if record["held"] is not None:
        held = allocation_from_json(record["held"])
        hold(engine, slot, gang_list(held), 0)
        engine.physical.take(held, spec.worker, spec.server)
        columns.ints["last_seq"][slot] = record["last_seq"]
    if record["command"] is not None:
        _enter_command(engine, slot, command_from_json(record["command"]), record["sent_ms"])
    if record["doubts"]:
        engine.doubts[slot] = dict(record["doubts"])
    if record["ended_on"]:
        engine.ended_on[slot] = set(record["ended_on"])
    if record["details"] is not None:
        engine.details[slot] = record["details"]
    if record["waits_for"]:
        engine.waits_for[slot] = set(record["waits_for"])
    if record["held_back"] is not None:
        engine.held_back[slot] = Why(record["held_back"])
    if record["cap"] is not None:
        engine.caps[slot] = record["cap"]
        apply_cap(engine, slot)
    if record.get("losses"):
        columns.losses[slot] = [(work, loss) for work, loss in record["losses"]]
    for name in _INTS:
        columns.ints[name][slot] = record["ints"][name]
    for name in _FLOATS:
        columns.floats[name][slot] = record["floats"][name]
    for name, value in record["memo"].items():
        columns.memo[name][slot] = value


def _enter_command(engine: Engine, slot: int, command: Command, sent_ms: int) -> None:
    """What has no answer yet; its gang is what the job holds (a launch) or is given (a resize)."""
    ints = engine.columns.ints
    ints["pending_kind"][slot] = (
        LAUNCH if isinstance(command, Launch) else STOP if isinstance(command, Stop) else RESIZE
    )
    ints["pending_seq"][slot], ints["pending_sent_ms"][slot] = command.seq, sent_ms
    if isinstance(command, Stop):
        ints["pending_why"][slot] = WORDS.index(command.why) if command.why in WORDS else 0
