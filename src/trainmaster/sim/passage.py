"""Stretches of a run carried out in one compiled call, where the policy is a rule over the columns.

A `Passage` takes the engine's columns and ledger, the instant world and the jobs to come, lets `passage_kernel` go on
from event to event, and writes back what the engine keeps outside its columns. The outcome is that of the engine's own
steps; a test runs both ways and compares. Verification is part of it: a plan that the engine's check does not pass, or
that needs more than stopping and starting whole gangs, is left to the engine.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from trainmaster.engine.core import Ended, Engine
from trainmaster.engine.turnover import is_quiet
from trainmaster.model import event as ev
from trainmaster.model.command import Launch
from trainmaster.model.job import JobSpec, Phase
from trainmaster.model.placement import Strategy
from trainmaster.model.reasons import Why
from trainmaster.model.rules import QueueRule
from trainmaster.model.table import FLOAT_COLUMNS, INT_COLUMNS, float_row
from trainmaster.model.units import GPU_MILLI, NEVER_MS
from trainmaster.policies.gavel.round_rule import RoundRule, type_order
from trainmaster.sim import passage_kernel as kernel
from trainmaster.sim.passage_backend import PassageBackend
from trainmaster.sim.truth import Truth

Ints = npt.NDArray[np.int64]
CHUNK = 1024
"""Jobs to come that are written as columns at a time."""
MAX_DECISIONS = 4096
"""A passage is over after so many at the latest, so that progress can be told."""
MAX_PATIENCE = 256
_MEMO = ("share", "received_s", "deficit_s", "known")


class _Arrivals:
    """Some of the jobs to come, as rows of the columns that they will enter."""

    def __init__(self, engine: Engine, truth: Truth, specs: Sequence[JobSpec], first: int, last: int) -> None:
        self.specs, self.first = specs[first:last], first
        n, types = len(self.specs), engine.cluster.types
        self.submit_ms = np.fromiter((spec.submit_ms for spec in self.specs), np.int64, n)
        self.ints = np.empty((n, len(INT_COLUMNS)), np.int64)
        self.floats = np.empty((n, len(FLOAT_COLUMNS)))
        self.throughput, self.spread = np.empty((n, len(types))), np.empty((n, len(types)))
        self.allowed = np.empty((n, len(types)), np.bool_)
        self.speed = np.empty((n, 2, len(types)))
        for k, spec in enumerate(self.specs):
            self.ints[k] = engine.columns.int_row(spec, 0, 0)
            self.floats[k] = float_row(spec)
            here, self.spread[k] = engine.estimator.profile(spec, types)
            self.throughput[k] = here
            self.allowed[k] = engine.columns.allowed_types(spec, here)
            for kind, name in enumerate(types):
                self.speed[k, :, kind] = truth.reference_rate(spec, name, False), truth.reference_rate(spec, name, True)

    @property
    def arrays(self) -> tuple[Any, ...]:
        return self.submit_ms, self.ints, self.floats, self.throughput, self.spread, self.allowed, self.speed


class Passage:
    """Goes on from event to event as long as the policy's rule and the instant world allow."""

    def __init__(
        self, engine: Engine, backend: PassageBackend, specs: Sequence[JobSpec], rule: QueueRule | RoundRule,
        max_decisions: int = MAX_DECISIONS,
    ) -> None:  # fmt: skip
        self.engine, self.backend, self.specs, self.rule = engine, backend, specs, rule
        self.max_decisions = max_decisions
        self._arrivals: _Arrivals | None = None
        self._renewed_ms = -1
        self.idle = 0
        """How often the policy was woken since anything last happened; over the end of a passage, too."""
        self._skip, self._patience = 0, 1
        """Steps to leave to the engine before the next attempt; doubled each time that an attempt was in vain."""

    @classmethod
    def of(
        cls, engine: Engine, backend: PassageBackend, specs: Sequence[JobSpec], max_decisions: int = MAX_DECISIONS
    ) -> Passage | None:
        """None: this run has no use for it."""
        rule = getattr(engine.policy, "rule", None)
        if rule is None or engine.immediate is None or hasattr(engine.estimator, "observe"):
            return None
        if isinstance(rule, QueueRule) and engine.settings.round_ms:
            return None
        if isinstance(rule, RoundRule) and not rule.original and any(s.workers_max > s.workers_min for s in specs):
            return None  # they are resized into what a round leaves idle
        if isinstance(rule, RoundRule) and any(spec.gpus == 0 for spec in specs):
            return None  # they start beside the rounds
        if any(spec.after for spec in specs) or len({spec.id for spec in specs}) < len(specs):
            return None
        return cls(engine, backend, specs, rule, max_decisions)

    def go_on(self, next_job: int, now_ms: int, n_left: int) -> tuple[int, int, int] | None:
        """From here on as far as possible: (the next job to come, the time, events). None: the engine's turn."""
        if self._skip > 0 or not self._ready():
            self._skip -= 1
            return None
        engine = self.engine
        begun = engine._decide_clock() if engine._decide_clock else 0.0
        code, counters = self._run(next_job, now_ms, n_left)
        if engine._decide_clock:
            engine.decide_cpu_s += engine._decide_clock() - begun
        in_vain = code in (kernel.DECIDE, kernel.STUCK) and counters[kernel.DECISIONS] == 0
        self._patience = min(2 * self._patience, MAX_PATIENCE) if in_vain else 1
        self._skip = self._patience - 1
        self.idle = int(counters[kernel.IDLE])
        assert self._arrivals is not None
        return (
            self._arrivals.first + int(counters[kernel.NEXT]),
            int(counters[kernel.NOW]),
            int(counters[kernel.EVENTS]),
        )

    def _ready(self) -> bool:
        engine, backend = self.engine, self.backend
        if not is_quiet(engine) or engine.held_back or engine.holds_changed or backend._inbox:
            return False
        if min(engine.next_resend_ms, engine.next_backoff_ms) < NEVER_MS // 4:
            return False
        if isinstance(self.rule, RoundRule):
            stored = engine.memo_columns.issuperset(_MEMO)
            if not stored or "round_end_ms" not in engine.memo_values or engine.memo_values.get("pairs"):
                return False
        elif engine.memo_values or engine.memo_columns or engine.wake_at_ms < NEVER_MS:
            return False
        return self._adopt_all()

    def _adopt_all(self) -> bool:
        """All that runs is the instant world's; False if something else is under way."""
        engine, backend = self.engine, self.backend
        world, specs = backend.instant, engine.columns.specs
        assert world is not None
        if any(live.allocation.share_milli < GPU_MILLI or not live.started for live in backend.running.values()):
            return False  # how fast they are hangs on who else is there
        world.make_room(engine.columns.capacity)
        for slot in engine.columns.rows.tolist():
            world.adopt(slot, specs[slot])
        if backend._heap:  # what is left of incarnations that are no longer the backend's
            backend._heap = [
                entry for entry in backend._heap if entry[2] != "finish" or entry[3][0].epoch == entry[3][1]
            ]
            heapq.heapify(backend._heap)
        return not backend.running and not backend._heap

    def _run(self, next_job: int, now_ms: int, n_left: int) -> tuple[int, Ints]:
        engine, backend = self.engine, self.backend
        columns, world, total = engine.columns, backend.instant, len(self.specs)
        assert world is not None
        known = -1 if self._arrivals is None else self._arrivals.first + len(self._arrivals.specs)
        if self._arrivals is None or known <= next_job < total:
            last = min(next_job + CHUNK, total)
            while last < total and self.specs[last].submit_ms == self.specs[last - 1].submit_ms:
                last += 1  # what arrives at the same moment is seen together
            self._arrivals = _Arrivals(engine, backend.truth, self.specs, next_job, last)
        arrivals = self._arrivals
        capacity, used = columns.capacity, len(columns.rows)
        free = np.empty(capacity, np.int64)
        free[: len(columns.free_slots)] = columns.free_slots
        seq_of, index_of = np.zeros(capacity, np.int64), np.full(capacity, -1, np.int64)
        for slot, seq in engine.last_seq.items():
            seq_of[slot] = seq
        touched = np.zeros(capacity, np.int64)
        counters = np.array(
            [
                now_ms, columns.version, engine.seq, 0, 0, used, len(columns.free_slots), world.n_live,
                backend._counter, next_job - arrivals.first, 0, self.idle, engine.wake_at_ms, columns.n_arrivals,
                world.next_ms, 0,
            ], np.int64,
        )  # fmt: skip
        lost_gpu_s = np.array([backend.lost_gpu_s])
        ended_ints = np.empty((used + len(arrivals.specs), len(kernel.ENDED_INTS)), np.int64)
        ended_floats = np.empty((len(ended_ints), len(kernel.ENDED_FLOATS)))
        late = np.empty(capacity, np.int64)
        ledger, cluster = engine.planned, engine.cluster
        more = arrivals.first + len(arrivals.specs) < total
        common = (
            int(engine.settings.placement), engine.settings.placement == Strategy.COUNT,
            backend.options.restart_cost_ms, more, n_left, self.max_decisions,
            counters, lost_gpu_s, columns.int_block, columns.float_block, columns.allowed, columns.throughput,
            columns.throughput_spread, columns.allocations.rows(), columns.row_store, free, columns.prices, seq_of,
            index_of, touched, ledger.device_milli, ledger.whole, ledger.cpu_milli, ledger.mem_mib,
            cluster.type_of, engine.up, cluster.gpus, cluster.rack_of, *world.arrays, *arrivals.arrays,
            ended_ints, ended_floats, late,
        )  # fmt: skip
        code = self._follow(counters, common)
        columns.set_rows(int(counters[kernel.USED]), int(counters[kernel.ARRIVALS]))
        columns.free_slots = free[: counters[kernel.FREE]].tolist()
        columns.allocations.written(np.flatnonzero(touched).tolist())
        self._name_jobs(ended_ints[: counters[kernel.ENDED]], ended_floats, index_of)
        self._write_back(counters, seq_of)
        backend.lost_gpu_s = float(lost_gpu_s[0])
        self._afterwards(code, counters, late)
        return code, counters

    def _follow(self, counters: Ints, common: tuple[Any, ...]) -> int:
        rule, engine = self.rule, self.engine
        if isinstance(rule, QueueRule):
            return kernel.queue_passage(
                rule.by_remaining_time, rule.preemptive, rule.strict, int(rule.default), *common
            )  # fmt: skip
        round_ms = max(engine.settings.round_ms or rule.default_round_ms, 2 * engine.settings.restart_cost_ms)
        memo, renewed = engine.columns.memo, False
        order = type_order(engine.cluster.types)
        while True:
            values = engine.memo_values
            worker_s = np.array(values["worker_s"])
            code, round_end_ms = kernel.round_passage(
                renewed, rule.original, rule.time_dependent, rule.queueing, order, rule.patience_s, round_ms,
                int(Why.SHARE), int(Why.NEXT_ROUND), values["computed_jobs"], values["nodes_up"], rule.reset_ms,
                values["last_reset_ms"], values["round_end_ms"], worker_s, *(memo[name] for name in _MEMO), *common,
            )  # fmt: skip
            engine.memo_values = {**values, "round_end_ms": int(round_end_ms), "worker_s": worker_s.tolist()}
            if code != kernel.SOLVE or counters[kernel.LATE] or self._renewed_ms == counters[kernel.NOW]:
                return code
            self._renew_shares(counters)
            renewed = True

    def _renew_shares(self, counters: Ints) -> None:
        """Let the policy compute shares as `decide` would, in the midst of a passage."""
        engine, columns = self.engine, self.engine.columns
        self._renewed_ms = int(counters[kernel.NOW])
        columns.set_rows(int(counters[kernel.USED]), int(counters[kernel.ARRIVALS]))
        engine.now_ms = self._renewed_ms
        rows = columns.rows
        arrived = rows[columns.memo["known"][rows] < 1.0]  # since shares were computed last
        for name, column in columns.memo.items():
            if name not in _MEMO:
                column[arrived] = 0.0
        view = engine.snapshot()
        memo, notes = engine.policy.renew_shares(view)  # type: ignore[attr-defined]
        engine.remember(memo, view.jobs.slots)
        engine.notes.extend(notes)

    def _write_back(self, counters: Ints, seq_of: Ints) -> None:
        """What the engine and the backend keep beside the columns."""
        engine, backend = self.engine, self.backend
        world = backend.instant
        assert world is not None
        engine.now_ms = backend.now_ms = int(counters[kernel.NOW])
        engine.wake_at_ms = int(counters[kernel.WAKE])
        engine.decisions += int(counters[kernel.DECISIONS])
        engine.columns.version = int(counters[kernel.VERSION])
        engine.seq = backend.seen_up_to = int(counters[kernel.SEQ])
        backend._counter = int(counters[kernel.ORDER])
        world.went_on(int(counters[kernel.LIVE]), int(counters[kernel.END]), engine.columns.specs)
        running = world.running_slots()
        engine.last_seq = dict(zip(running.tolist(), seq_of[running].tolist(), strict=True))
        engine.held.all_as_planned(engine.last_seq)
        for physical, planned in zip(engine.physical.arrays, engine.planned.arrays, strict=True):
            physical[:] = planned  # nothing is under way

    def _name_jobs(self, ended_ints: Ints, ended_floats: npt.NDArray[np.float64], index_of: Ints) -> None:
        """Say which jobs came, and give the last word on those that went."""
        engine, backend, arrivals = self.engine, self.backend, self._arrivals
        columns = engine.columns
        assert arrivals is not None
        specs, finished = columns.specs, Phase.FINISHED
        for (index, slot, ended_ms, first_start_ms, preemptions, attempts), (service, run_s, work, cost) in zip(
            ended_ints.tolist(), ended_floats[: len(ended_ints)].tolist(), strict=True
        ):
            if index >= 0:
                spec = arrivals.specs[index]
                engine.known.add(spec.id)
            else:
                spec = columns.spec(slot)
                del columns.slot_of[spec.id]
                specs[slot] = None
                engine.details.pop(slot, None)
                columns.losses.pop(slot, None)
            assert spec.work_total is not None
            backend.saved[spec.id] = spec.work_total
            engine.ended_as[spec.id] = finished
            engine.ended.append(
                Ended(spec, finished, ended_ms, first_start_ms, service, run_s, work, preemptions, attempts, cost)
            )
        for slot in columns.rows.tolist():
            index = int(index_of[slot])
            if index >= 0:
                spec = arrivals.specs[index]
                engine.known.add(spec.id)
                columns.slot_of[spec.id] = slot
                specs[slot] = spec
                fresh = isinstance(self.rule, QueueRule) or columns.memo["known"][slot] < 1.0  # no shares since it came
                for name, column in columns.memo.items():
                    if fresh and name not in _MEMO:
                        column[slot] = 0.0

    def _afterwards(self, code: int, counters: Ints, late: Ints) -> None:
        """Make it possible to go on, by the engine or by another passage."""
        engine, columns = self.engine, self.engine.columns
        for slot in late[: counters[kernel.LATE]].tolist():  # the engine goes on with launches that are unanswered
            spec, allocation = columns.spec(slot), columns.allocations[slot]
            assert allocation is not None
            generation = int(columns.ints["generation"][slot])
            command = Launch(spec.id, generation, engine.last_seq[slot], allocation, spec)
            engine.outstanding[slot] = (command, engine.now_ms)
            work, productive_ms = self.backend.instant.begun(slot)  # type: ignore[union-attr]
            self.backend._report(ev.Started(spec.id, generation, work, productive_ms))
        if code == kernel.GROW:
            columns.grow()
        elif code in (kernel.DECIDE, kernel.SOLVE, kernel.WIDEN):
            engine.changed = True
        if code == kernel.WIDEN:
            columns.allocations.rows(2 * columns.allocations.rows().shape[1])
