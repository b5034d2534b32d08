"""OASiS in the engine: dual prices decide who is admitted, promises say who runs where in which slot.

Each decision: let go of what is over, repair what no longer holds (nodes, progress), offer what has arrived,
pull forward into what came free, then carry out the running slot. Everything remembered is in the memo.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trainmaster.model.job import P
from trainmaster.model.memo import Memo
from trainmaster.model.plan import Plan
from trainmaster.model.policy import PolicyTraits
from trainmaster.model.reasons import Why
from trainmaster.model.snapshot import Snapshot
from trainmaster.model.units import MS_PER_S, ms_from_s
from trainmaster.policies.oasis.book import Book, Run
from trainmaster.policies.oasis.gangs import Gangs
from trainmaster.policies.oasis.planner import Planner, PlanSettings
from trainmaster.policies.oasis.prices import PriceSettings
from trainmaster.policies.oasis.realise import Realised, Wanted, place_of, realise
from trainmaster.policies.oasis.rolling import Clock, refusal
from trainmaster.policies.registry import register

LATE_TOLERANCE = 1e-6
"""Work that promised slots may fall short of, as a fraction of what is left, before a repair."""


def _option(default: float, text: str) -> float:
    return field(default=default, metadata={"help": text})


@register("oasis")
@dataclass(frozen=True)
class Oasis:
    """Online admission by dual prices and elastic schedules over future slots (Bao et al., INFOCOM 2018)."""

    slot_s: float = _option(1200.0, "length of a slot in seconds")
    horizon_slots: int = field(default=72, metadata={"help": "slots that an offer looks ahead (more for longer jobs)"})
    patience: float = _option(10.0, "default utility: gone after so many ideal run times of delay")
    patience_min_s: float = _option(14400.0, "default utility: but not before so many seconds of delay")
    scale: float = _option(1.0, "U as a multiple of the top density seen")
    low: float = _option(0.5, "L as a fraction of the least density seen")
    spread_max: float = _option(5.5, "floor on L: the largest ln(U/L)")
    history_jobs: int = field(default=200, metadata={"help": "jobs that the constants are taken from"})
    advance_max: int = field(default=8, metadata={"help": "waiting jobs looked at when capacity comes free"})
    operations_max: int = field(default=20_000_000, metadata={"help": "steps of one search over slots and work"})
    traits = PolicyTraits(own_rounds=True)

    def decide(self, view: Snapshot) -> Plan:
        clock = Clock(view.now_ms, max(ms_from_s(self.slot_s), 1))
        book = Book.read(view.memo.values)
        settings = PlanSettings(
            max(self.horizon_slots, 1), self.patience, self.patience_min_s,
            PriceSettings("density", self.scale, self.low, self.spread_max), max(self.history_jobs, 1),
            self.operations_max,
        )  # fmt: skip
        return _Decision(view, Planner(view, book, clock, settings), self.advance_max).plan()


class _Decision:
    """The steps of one decision. Jobs are taken by submission, then id, whatever their rows."""

    def __init__(self, view: Snapshot, planner: Planner, advance_max: int) -> None:
        self.view = view
        self.planner = planner
        self.book = planner.book
        self.clock = planner.clock
        self.advance_max = advance_max
        jobs = view.jobs
        self.names = jobs.ids
        self.order = sorted(range(len(jobs)), key=lambda row: (int(jobs.submit_ms[row]), self.names[row]))
        self.notes: list[str] = []
        self.admitted: list[int] = []
        self.refused: dict[int, tuple[Why, dict[str, object]]] = {}
        self._gangs: dict[int, list[Gangs]] = {}

    def plan(self) -> Plan:
        freed = self._let_go()
        freed |= self._repair()
        self._offer()
        if freed:
            self._advance()
        realised = self._realise()
        self._enter_reality(realised)
        self.book.slot = self.clock.slot
        self.book.down = frozenset(np.flatnonzero(~self.view.up).tolist())
        return self._close(realised)

    def gangs(self, row: int) -> list[Gangs]:
        if row not in self._gangs:
            self._gangs[row] = self.planner.gangs(row)
        return self._gangs[row]

    # -- the books -------------------------------------------------------------------------------------

    def _let_go(self) -> bool:
        """Drop promises of jobs that ended or pause, and slots that are past. True: capacity came free."""
        phases = dict(zip(self.names, self.view.jobs.phase.tolist(), strict=True))
        gone = [name for name in self.book.promises if phases.get(name, P.PAUSED) == P.PAUSED]
        for name in gone:
            del self.book.promises[name]
        new_slot = self.book.slot != self.clock.slot
        if new_slot:
            self.book.promises = {n: p.from_slot(self.clock.slot) for n, p in self.book.promises.items()}
        return bool(gone) or new_slot

    def _repair(self) -> bool:
        """Plan anew what cannot be kept: nodes that are down, work that is behind or ahead of its slots."""
        view, clock = self.view, self.clock
        down = ~view.up
        now_down = frozenset(np.flatnonzero(down).tolist())
        new_slot = self.book.slot != clock.slot
        for row in self.order:
            name = self.names[row]
            promise = self.book.promises.get(name)
            phase = int(view.jobs.phase[row])
            if promise is None:
                started = view.jobs.admitted[row] or phase != P.PENDING or view.jobs.first_start_ms[row] >= 0
                if started and phase != P.PAUSED and self.gangs(row):
                    self._replan(row)
                    self.admitted.append(row)
                continue
            least, most = view.jobs.workers_min[row], view.jobs.workers_max[row]
            resized = any(not least <= run.workers <= most for run in promise.runs)  # by its user
            if not promise.runs or resized or (now_down and promise.uses(down)):
                self._replan(row)
            elif new_slot:
                self._check_progress(row)
        return bool(self.book.down - now_down)

    def _check_progress(self, row: int) -> None:
        """Behind: more slots. Ahead by at least a slot: the last ones go back. As planned: nothing."""
        promise = self.book.promises[self.names[row]]
        left = self.planner.steps_left(row, self.gangs(row))
        if promise.steps(self.clock.slot_ms, self.clock.now_ms) < left * (1.0 - LATE_TOLERANCE):
            self._replan(row)
            return
        ahead = promise
        while len(ahead.runs) and len(promise.runs):
            last = ahead.runs[-1]
            shorter = ahead.runs[:-1] if last.end - last.start == 1 else (*ahead.runs[:-1], _without_last(last))
            trial = type(ahead)(**{**ahead.__dict__, "runs": shorter})
            if trial.steps(self.clock.slot_ms, self.clock.now_ms) < left * (1.0 + LATE_TOLERANCE):
                break
            ahead = trial
        self.book.promises[self.names[row]] = ahead

    def _replan(self, row: int) -> None:
        note = self.planner.replan(row, self.gangs(row))
        if note:
            self.notes.append(note)

    # -- arrivals --------------------------------------------------------------------------------------

    def _offer(self) -> None:
        view, planner = self.view, self.planner
        for row in self.order:
            if self.names[row] in self.book.promises or int(view.jobs.phase[row]) != P.PENDING:
                continue
            gangs = self.gangs(row)
            if not gangs:
                self.refused[row] = (Why.NEVER_FITS, {})
                continue
            if not any((view.cluster.type_of[view.up] == g.accelerator).any() for g in gangs):
                continue  # no node of its types is up: neither taken nor refused yet
            planner.remember(row)
            ask, offer = planner.offer(row, gangs)
            if offer is not None and offer.payoff > 0:
                planner.commit(row, ask, offer)
                self.admitted.append(row)
                continue
            told = refusal(ask, offer, self.clock)
            self.refused[row] = (
                Why.PRICE,
                {"payoff": told.payoff, "price_factor": told.price_factor, "lateness_s": told.lateness_s},
            )

    def _advance(self) -> None:
        """Capacity came free: jobs that wait for a later slot may start now, the earliest promised first."""
        view, slot = self.view, self.clock.slot
        waiting = [
            row for row in self.order
            if int(view.jobs.phase[row]) == P.PENDING and int(view.jobs.not_before_ms[row]) <= view.now_ms
            and self.names[row] in self.book.promises and self.book.promises[self.names[row]].at(slot) is None
        ]  # fmt: skip
        waiting.sort(key=lambda row: (self.book.promises[self.names[row]].finish_ms, self.names[row]))
        free = self.planner.free_now()
        looked_at = 0
        for row in waiting:
            if looked_at == self.advance_max:
                return
            if self.planner.could_start_now(row, self.gangs(row), free):
                looked_at += 1
                if self.planner.advance(row, self.gangs(row)):
                    free = self.planner.free_now()

    # -- the running slot ------------------------------------------------------------------------------

    def _realise(self) -> Realised:
        wanted: dict[int, Wanted] = {}
        for row in self.order:
            promise = self.book.promises.get(self.names[row])
            run = None if promise is None else promise.at(self.clock.slot)
            if promise is not None and run is not None:
                wanted[row] = Wanted(promise.accelerator, run)
        return realise(self.view, wanted, [row for row in self.order if row not in self.refused])

    def _enter_reality(self, realised: Realised) -> None:
        """Make the books of the running slot say what the plan does, so that nothing is counted twice."""
        slot, jobs = self.clock.slot, self.view.jobs
        for row in self.order:
            promise = self.book.promises.get(self.names[row])
            if promise is None:
                continue
            allocation = realised.draft.allocation(row)
            run = promise.at(slot)
            if allocation is None:
                if row in realised.failed:
                    self.book.promises[self.names[row]] = promise.with_slot(slot, None)
                continue
            place = place_of(allocation)
            if run is not None and run.place == place:
                continue
            speed = jobs.rate_at(row, allocation.accelerator, allocation.workers, allocation.servers, allocation.spread)
            if promise.accelerator == allocation.accelerator:
                here = Run(slot, slot + 1, speed, place)
                self.book.promises[self.names[row]] = promise.with_slot(slot, here)

    def _close(self, realised: Realised) -> Plan:
        draft, slot = realised.draft, self.clock.slot
        for row in self.admitted:
            draft.admit(row)
        for row, (why, details) in self.refused.items():
            draft.reject(row, why, **details)
        for row in self.order:
            if row in self.refused or draft.allocation(row) is not None or row in draft.rejections:
                continue
            promise = self.book.promises.get(self.names[row])
            if promise is None or not promise.runs:
                draft.wait(row, Why.NO_NODE)
                continue
            start = promise.next_slot(slot + 1)
            facts: dict[str, Any] = {"promised_finish_s": promise.finish_ms / MS_PER_S}
            if start is not None:
                facts["next_slot_s"] = start * self.clock.slot_ms / MS_PER_S
            draft.wait(row, Why.SCHEDULED, **facts)
        for note in self.notes:
            draft.note(note)
        wake_ms = (slot + 1) * self.clock.slot_ms
        return draft.plan(memo=Memo(self.book.values()), wake_at_ms=wake_ms)


def _without_last(run: Run) -> Run:
    return Run(run.start, run.end - 1, run.steps_per_s, run.place)
