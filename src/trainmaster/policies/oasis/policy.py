"""OASiS in the engine: dual prices decide who is admitted, promises say who runs where in which slot.

Each decision: let go of what is over, repair what no longer holds (nodes, progress), offer what has arrived,
pull forward into what came free, then carry out the running slot. Everything remembered is in the memo.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from trainmaster.model.errors import InputError
from trainmaster.model.job import PhaseCode
from trainmaster.model.plan import Plan
from trainmaster.model.policy import PolicyTraits
from trainmaster.model.policy_state import PolicyState
from trainmaster.model.reasons import Why
from trainmaster.model.snapshot import Snapshot
from trainmaster.model.units import MS_PER_S, ms_from_s
from trainmaster.policies.oasis.best_schedule import Clock
from trainmaster.policies.oasis.commitments import Commitments, Run
from trainmaster.policies.oasis.execution import Realised, Wanted, place_of, realise
from trainmaster.policies.oasis.offers import lacking
from trainmaster.policies.oasis.planner import Planner, PlanSettings
from trainmaster.policies.oasis.prices import PAPER_SETTINGS, PriceSettings
from trainmaster.policies.registry import register

TOP_QUANTILE = 0.95
HISTORY, PAPER = CONSTANTS = ("history", "paper")
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
    spread_max: float = _option(0.0, "floor on L: the largest ln(U/L); 0: 5.5, with the paper's constants none")
    constants: str = field(
        default="history",
        metadata={"help": "history: from the worth per GPU-hour of recent jobs; paper: from them as the paper does"},
    )
    history_jobs: int = field(default=200, metadata={"help": "jobs that the constants are taken from"})
    advance_max: int = field(default=8, metadata={"help": "waiting jobs looked at when capacity comes free"})
    operations_max: int = field(default=20_000_000, metadata={"help": "steps of one search over slots and work"})
    traits = PolicyTraits(own_rounds=True)

    def __post_init__(self) -> None:
        if self.constants not in CONSTANTS:
            named = f"option 'constants' of policy 'oasis' is '{self.constants}'"
            raise InputError(named, " or ".join(CONSTANTS))

    def decide(self, view: Snapshot) -> Plan:
        clock = Clock(view.now_ms, max(ms_from_s(self.slot_s), 1))
        settings = PlanSettings(
            max(self.horizon_slots, 1),
            self.patience,
            self.patience_min_s,
            self._prices(),
            max(self.history_jobs, 1),
            self.operations_max,
        )
        return _Decision(
            view, Planner(view, Commitments.read(view.memo.values), clock, settings), self.advance_max
        ).plan()

    def _prices(self) -> PriceSettings:
        if self.constants == PAPER:
            return replace(PAPER_SETTINGS, spread_max=self.spread_max or PAPER_SETTINGS.spread_max)
        spread_max = self.spread_max or PriceSettings.spread_max
        return PriceSettings("density", self.scale, self.low, spread_max, TOP_QUANTILE)


class _Decision:
    """The steps of one decision. Jobs are taken by submission, then id, whatever their rows."""

    def __init__(self, view: Snapshot, planner: Planner, advance_max: int) -> None:
        self.view = view
        self.planner = planner
        self.committed = planner.committed
        self.new_slot = self.committed.time_slot != planner.clock.time_slot
        self.entered = dict(self.committed.promises)
        """As the last decision left them: in the slot of that decision, they say what it did."""
        self.clock = planner.clock
        self.advance_max = advance_max
        jobs = view.jobs
        self.names = jobs.ids
        self.phase = jobs.phase.tolist()
        submit_ms = jobs.submit_ms.tolist()
        self.order = sorted(range(len(jobs)), key=lambda row: (submit_ms[row], self.names[row]))
        self.notes: list[str] = []
        self.admitted: list[int] = []
        self.refused: dict[int, tuple[Why, dict[str, object]]] = {}

    def plan(self) -> Plan:
        freed = self._let_go()
        freed |= self._repair()
        self._offer()
        if freed:
            self._advance()
        realised = self._realise()
        self._enter_reality(realised)
        self.committed.time_slot = self.clock.time_slot
        self.committed.down = frozenset(np.flatnonzero(~self.view.up).tolist())
        return self._close(realised)

    # -- commitments -------------------------------------------------------------------------------------

    def _let_go(self) -> bool:
        """Drop promises of jobs that ended or pause, and slots that are past. True: capacity came free."""
        phases = dict(zip(self.names, self.phase, strict=True))
        gone = [name for name in self.committed.promises if phases.get(name, PhaseCode.PAUSED) == PhaseCode.PAUSED]
        for name in gone:
            self.committed.drop(name)
        if self.new_slot:
            for name, promise in list(self.committed.promises.items()):
                self.committed.put(name, promise.from_slot(self.clock.time_slot))
        return bool(gone) or self.new_slot

    def _repair(self) -> bool:
        """Plan anew what cannot be kept: nodes that are down, work that is behind or ahead of its slots."""
        view = self.view
        down = ~view.up
        now_down = frozenset(np.flatnonzero(down).tolist())
        least, most = view.jobs.workers_min.tolist(), view.jobs.workers_max.tolist()
        for row in self.order:
            promise = self.committed.promises.get(self.names[row])
            phase = self.phase[row]
            if promise is None:
                started = view.jobs.admitted[row] or phase != PhaseCode.PENDING or view.jobs.first_start_ms[row] >= 0
                if started and phase != PhaseCode.PAUSED and self.planner.gangs(row):
                    self._replan(row)
                    self.admitted.append(row)
                continue
            resized = any(not least[row] <= run.workers <= most[row] for run in promise.runs)  # by its user
            if not promise.runs or resized or (now_down and promise.uses(down)):
                self._replan(row)
            elif self.new_slot:
                self._check_progress(row)
        return bool(self.committed.down - now_down)

    def _check_progress(self, row: int) -> None:
        """Behind: more slots. Ahead by at least a slot: the last ones go back. As planned: nothing."""
        promise = self.committed.promises[self.names[row]]
        left = self.planner.steps_left(row)
        if promise.steps(self.clock.slot_ms, self.clock.now_ms) < left * (1.0 - LATE_TOLERANCE):
            self._replan(row)
            return
        while promise.runs:
            shorter = promise.without_last_slot()
            if shorter.steps(self.clock.slot_ms, self.clock.now_ms) < left * (1.0 + LATE_TOLERANCE):
                break
            promise = shorter
        self.committed.put(self.names[row], promise)

    def _replan(self, row: int) -> None:
        note = self.planner.replan(row)
        if note:
            self.notes.append(note)

    # -- arrivals --------------------------------------------------------------------------------------

    def _offer(self) -> None:
        view, planner = self.view, self.planner
        for row in self.order:
            if self.names[row] in self.committed.promises or self.phase[row] != PhaseCode.PENDING:
                continue
            gangs = self.planner.gangs(row)
            if not gangs:
                self.refused[row] = (Why.NEVER_FITS, {})
                continue
            if not any((view.cluster.type_of[view.up] == g.accelerator).any() for g in gangs):
                continue  # no node of its types is up: neither taken nor refused yet
            planner.remember(row)
            ask, offer = planner.offer(row)
            if offer is not None and offer.payoff > 0:
                planner.commit(row, ask, offer)
                self.admitted.append(row)
                continue
            details: dict[str, object] = {"payoff": None, "price_factor": None, "lateness_s": None}
            if offer is not None:
                step_s = self.clock.slot_ms / MS_PER_S
                offered = offer.utility, offer.cost
                factor, lateness_s = lacking(ask.utility, offer.ages_s, offer.costs, offered, step_s)
                details = {"payoff": offer.payoff, "price_factor": factor, "lateness_s": lateness_s}
            self.refused[row] = (Why.PRICE, details)

    def _advance(self) -> None:
        """Capacity came free: jobs that wait for a later slot may start now, the earliest promised first."""
        view, time_slot = self.view, self.clock.time_slot
        waiting = [
            row
            for row in self.order
            if self.phase[row] == PhaseCode.PENDING
            and int(view.jobs.not_before_ms[row]) <= view.now_ms
            and self.names[row] in self.committed.promises
            and self.committed.promises[self.names[row]].at(time_slot) is None
        ]
        waiting.sort(key=lambda row: (self.committed.promises[self.names[row]].finish_ms, self.names[row]))
        free = self.planner.free_gpus()
        looked_at = 0
        for row in waiting:
            if looked_at == self.advance_max:
                return
            if self.planner.could_start_now(row, free):
                looked_at += 1
                if self.planner.advance(row):
                    free = self.planner.free_gpus()

    # -- the running slot ------------------------------------------------------------------------------

    def _realise(self) -> Realised:
        wanted: dict[int, Wanted] = {}
        for row in self.order:
            promise = self.committed.promises.get(self.names[row])
            run = None if promise is None else promise.at(self.clock.time_slot)
            if promise is not None and run is not None:
                wanted[row] = Wanted(promise.accelerator, run)
        return realise(self.view, wanted, [row for row in self.order if row not in self.refused])

    def _enter_reality(self, realised: Realised) -> None:
        """Make the commitments of the running slot say what the plan does, so that nothing is counted twice."""
        time_slot, jobs, holding, changes = (
            self.clock.time_slot,
            self.view.jobs,
            realised.holding(),
            realised.builder.changes,
        )
        for row in self.order:
            promise = self.committed.promises.get(self.names[row])
            unchanged = not self.new_slot and row not in changes and promise is self.entered.get(self.names[row])
            if promise is None or (unchanged and row not in realised.failed):
                continue
            allocation = realised.builder.allocation(row) if holding[row] else None
            if allocation is None:
                if row in realised.failed:
                    self.committed.put(self.names[row], promise.with_slot(time_slot, None))
                continue
            place, run = place_of(allocation), promise.at(time_slot)
            if run is not None and run.place == place:
                continue
            speed = jobs.rate_at(row, allocation.accelerator, allocation.workers, allocation.servers, allocation.spread)
            if promise.accelerator == allocation.accelerator:
                here = Run.of(time_slot, time_slot + 1, speed, place)
                self.committed.put(self.names[row], promise.with_slot(time_slot, here))

    def _close(self, realised: Realised) -> Plan:
        builder, time_slot, holding = realised.builder, self.clock.time_slot, realised.holding()
        for row in self.admitted:
            builder.admit(row)
        for row, (why, details) in self.refused.items():
            builder.reject(row, why, **details)
        for row in self.order:
            if row in self.refused or holding[row] or row in builder.rejections:
                continue
            promise = self.committed.promises.get(self.names[row])
            if promise is None or not promise.runs:
                builder.wait(row, Why.NO_NODE)
                continue
            start = promise.next_slot(time_slot + 1)
            facts: dict[str, Any] = {"promised_finish_s": promise.finish_ms / MS_PER_S}
            if start is not None:
                facts["next_slot_s"] = start * self.clock.slot_ms / MS_PER_S
            builder.wait(row, Why.SCHEDULED, **facts)
        for note in self.notes:
            builder.note(note)
        wake_ms = (time_slot + 1) * self.clock.slot_ms
        return builder.plan(memo=PolicyState(self.committed.values()), wake_at_ms=wake_ms)
