"""The `deadline` policy: admission with promises, least slack with feasibility, sizes found for the user."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from trainmaster.core.arrays import Ints
from trainmaster.model.errors import InputError
from trainmaster.model.job import PhaseCode
from trainmaster.model.plan import Plan
from trainmaster.model.plan_builder import PlanBuilder
from trainmaster.model.policy import PolicyTraits
from trainmaster.model.policy_state import PolicyState
from trainmaster.model.reasons import Why
from trainmaster.model.snapshot import Snapshot
from trainmaster.model.units import MS_PER_S
from trainmaster.policies.deadline import reservation_layout as col
from trainmaster.policies.deadline import reservations as rs
from trainmaster.policies.deadline import verdicts
from trainmaster.policies.deadline.admission_value import EASY, Offers, area_ms, booked
from trainmaster.policies.deadline.answers import Answers
from trainmaster.policies.deadline.best_effort import grow_leftovers, in_use, start_leftovers
from trainmaster.policies.deadline.execution import carry_out, changeable
from trainmaster.policies.deadline.reservation_book import RETRIES, ReservationBook
from trainmaster.policies.registry import register
from trainmaster.policies.shared.arrival_order import decide_by_arrival

_RETRY_MS = 10_000
"""Looked at again so soon when a gang fitted by count but found no place."""
_PROBED_MS = 2_000
"""While a job is probed, it is looked at so often."""
_AGAIN_MS, _AGAIN = 60_000.0, 1.0 / 8.0
"""All is planned anew for a job without reservation not sooner than this, and than this part of its slack..."""
_PLANNED = 1
"""...and for so many refused jobs in one decision."""
_SHOWN = 64
"""Waiting jobs whose planned start is stated in the reason; the next to start."""


def _next_try(reservations: ReservationBook, slack_ms: float) -> float:
    return reservations.now + max(_AGAIN_MS, slack_ms * _AGAIN)


@register("deadline")
@dataclass(frozen=True)
class Deadline:
    """The user gives a deadline, the scheduler finds type and size; a hard deadline accepted is a promise."""

    admission: bool = field(default=True, metadata={"help": "refuse hard deadlines that cannot be promised"})
    keep_trying: bool = field(
        default=True,
        metadata={"help": "what cannot be promised now waits, runs where room is and is tried again; false: refused"},
    )
    selective: float = field(
        default=0.0,
        metadata={"help": "while room is short, promise small jobs up to this part of capacity (0: no choice)"},
    )
    confidence: float = field(
        default=0.9,
        metadata={"help": "plan with speeds reached with this probability, once deviations are measured"},
    )
    gain: float = field(default=0.05, metadata={"help": "least part of the time left that a growth must save"})
    min_run_s: float = field(default=60.0, metadata={"help": "best-effort jobs start where room lasts so long"})
    look_s: float = field(default=600.0, metadata={"help": "look again so often while speeds deviate"})
    traits = PolicyTraits(own_rounds=True, own_priority=True)

    def __post_init__(self) -> None:
        if not 0.5 <= self.confidence < 1.0:
            raise InputError(f"option 'confidence' of policy 'deadline' is {self.confidence}", "from 0.5 to below 1")
        for name in ("gain", "min_run_s"):
            if not getattr(self, name) >= 0.0:
                raise InputError(f"option '{name}' of policy 'deadline' is {getattr(self, name)}", "0 or more")
        if not self.look_s > 0.0:
            raise InputError(f"option 'look_s' of policy 'deadline' is {self.look_s}", "a positive number")

    def decide(self, view: Snapshot) -> Plan:
        return decide_by_arrival(view, self._decide)

    def _decide(self, view: Snapshot) -> Plan:
        builder = view.draft()
        reservations = ReservationBook(view, self.confidence, self.admission)
        asked = view.memo.columns.get("asked")
        asked = np.zeros(len(view.jobs)) if asked is None else asked.copy()
        offers = Offers.read(view.memo.values.get("offers"))
        answers = Answers(view)
        self._answer(builder, reservations, asked, offers, answers)
        self._probe(builder, reservations, answers)
        self._soften(builder, reservations, asked)
        gpu_type, size = reservations.jobs.held_kind.copy(), reservations.jobs.held.copy()
        rest = self._rest(builder, reservations)
        reservations.pull_forward(0.0, only_waiting=True, used=in_use(reservations, gpu_type, size, rest))
        rs.present(reservations.now, reservations.certs, gpu_type, size)
        waits = np.zeros(len(view.jobs), np.bool_)
        waits[view.waiting_rows()] = True
        window_ms = max(self.min_run_s * MS_PER_S, 4.0 * view.restart_cost_ms)
        if not start_leftovers(reservations, gpu_type, size, waits, rest, window_ms):
            grown = in_use(reservations, gpu_type, size, rest)
            reservations.pull_forward(self.gain, only_waiting=False, used=grown)
            kept_gpu_type, kept_size = gpu_type[rest], size[rest]
            rs.present(reservations.now, reservations.certs, gpu_type, size)
            gpu_type[rest], size[rest] = kept_gpu_type, kept_size
            grow_leftovers(reservations, gpu_type, size, rest, window_ms, self.gain)
        unable = ~changeable(view.jobs.phase)
        size[unable] = reservations.jobs.held[unable]
        gpu_type[unable] = reservations.jobs.held_kind[unable]
        for row in builder.rejections:
            size[row] = 0
        free_rows = reservations.certs[:, col.CLASS] == col.NONE
        rank = np.arange(len(size)) + 2**40
        by_due = np.flatnonzero(~free_rows)
        rank[by_due[np.argsort(reservations.due[by_due], kind="stable")]] = np.arange(by_due.size)
        failed = carry_out(builder, gpu_type, size, rank, free_rows)
        self._explain(builder, reservations, size)
        return builder.plan(
            memo=self._memo(reservations, asked, offers, answers),
            wake_at_ms=self._wake(reservations, bool(failed)),
            default=Why.OUTRANKED,
        )

    # -- the answers -----------------------------------------------------------------------------------

    def _answer(
        self,
        builder: PlanBuilder,
        reservations: ReservationBook,
        asked: npt.NDArray[np.float64],
        offers: Offers,
        answers: Answers,
    ) -> None:
        """Every hard deadline without a promise: new ones fully, kept ones by free room alone."""
        # A job that runs is asked about when its probe has shown what it is.
        ready = changeable(builder.view.jobs.phase) if builder.view.learns else builder.view.jobs.waiting
        open_rows = np.flatnonzero(
            reservations.is_hard & (reservations.certs[:, col.CLASS] == col.NONE) & ready & ~reservations.unknown
        )
        candidates: list[int] = []
        for row in open_rows[asked[open_rows] == 0].tolist():
            asked[row] = _next_try(reservations, float(reservations.slack()[row]))
            details = verdicts.impossible(reservations, row)
            if details is not None:
                if builder.view.jobs.waiting[row]:
                    builder.reject(row, Why.DEADLINE, **details)
                answers.refused(row, details)
                continue
            if self.selective > 0:
                offers.offered(reservations, row)
            details = self._too_large(reservations, row, offers)
            if details is not None:
                self._refuse(builder, row, details, answers)
            else:
                candidates.append(row)
        if len(candidates) == 1 or not reservations.promise_all(candidates):
            for row in candidates:
                if reservations.certs[row, col.CLASS] == col.NONE and not reservations.promise(row):
                    offers.refused()
                    self._refuse(builder, row, verdicts.refused(reservations, row), answers)
        for row in candidates:
            if reservations.certs[row, col.CLASS] == col.PROMISED:
                self._accept(builder, reservations, row)
        if self.keep_trying:
            self._try_again(builder, reservations, asked, offers)

    def _refuse(self, builder: PlanBuilder, row: int, details: dict[str, Any], answers: Answers) -> None:
        answers.refused(row, details)
        if self.keep_trying:
            builder.wait(row, Why.DEADLINE, -1, **details)
        elif builder.view.jobs.waiting[row]:
            builder.reject(row, Why.DEADLINE, **details)

    def _probe(self, builder: PlanBuilder, reservations: ReservationBook, answers: Answers) -> None:
        """Jobs of which too little is known: a short run at the smallest size shows more, least slack first."""
        for row in np.flatnonzero(reservations.unknown).tolist():
            details = reservations.unknowns.details(row)
            answers.noted(row, details)
            builder.wait(row, Why.DEADLINE, -1, **details)
        unbooked = reservations.probing & (reservations.certs[:, col.CLASS] == col.NONE)
        rows = np.flatnonzero(unbooked & changeable(builder.view.jobs.phase))
        for row in rows[np.lexsort((rows, reservations.due[rows]))].tolist():
            reservations.reserve_probe(row)

    def _too_large(self, reservations: ReservationBook, row: int, offers: Offers) -> dict[str, Any] | None:
        """The answer to a job that would take the room of many while room is short; else None."""
        if self.selective > 0:
            price = area_ms(reservations, row) / max(float(reservations.view.jobs.weight[row]), 1e-9)
            highest = offers.highest_price(self.selective)
            if price > highest and booked(reservations, row) > EASY:
                return verdicts.not_worth_it(reservations, row, price / highest)
        return None

    def _accept(self, builder: PlanBuilder, reservations: ReservationBook, row: int) -> None:
        builder.admit(row)
        builder.details[row] = verdicts.accepted(reservations, row)

    def _try_again(
        self, builder: PlanBuilder, reservations: ReservationBook, asked: npt.NDArray[np.float64], offers: Offers
    ) -> None:
        """Refused before: a promise after all if there is room by now, the end when it is hopeless."""
        phase = builder.view.jobs.phase
        rows = np.flatnonzero(
            reservations.is_hard & (asked > 0) & (reservations.certs[:, col.CLASS] == col.NONE) & changeable(phase)
        )
        slack = reservations.slack()[rows]
        for row in rows[(slack < 0) & (phase[rows] == PhaseCode.PENDING)].tolist():
            if row not in builder.rejections:
                builder.reject(
                    row, Why.DEADLINE, **(verdicts.impossible(reservations, row) or verdicts.refused(reservations, row))
                )
        rows, slack = rows[slack >= 0], slack[slack >= 0]
        planned = 0
        for row, spare in sorted(zip(rows.tolist(), slack.tolist(), strict=True), key=lambda r: (r[1], r[0]))[:RETRIES]:
            if self._too_large(reservations, row, offers) is not None:
                continue
            found = reservations.reservations(row, col.PROMISED, float(reservations.due[row]))
            if not found and asked[row] <= reservations.now and planned < _PLANNED:
                planned += 1
                asked[row] = _next_try(reservations, spare)
                found = reservations.fit_in(row, col.PROMISED)
            if found:
                self._accept(builder, reservations, row)

    def _soften(self, builder: PlanBuilder, reservations: ReservationBook, asked: npt.NDArray[np.float64]) -> None:
        """Reserve for soft deadlines in what the promises leave, least slack first."""
        jobs = builder.view.jobs
        rows = np.flatnonzero(
            reservations.is_soft & changeable(jobs.phase) & (reservations.certs[:, col.CLASS] == col.NONE)
        )
        if rows.size == 0:
            return
        slack = reservations.slack()
        steps_left = np.array(
            [reservations.steps(row)[-1] >= reservations.fastest_finish()[row] for row in rows.tolist()], np.bool_
        )
        rows = rows[steps_left]
        for row in rows[np.lexsort((rows, slack[rows], slack[rows] < 0))][:RETRIES].tolist():
            due = float(reservations.due[row])
            if slack[row] >= 0:
                if reservations.reservations(row, col.SOFT, due):
                    continue
                if reservations.now >= asked[row]:
                    asked[row] = _next_try(reservations, float(slack[row]))
                    if reservations.soften(row):
                        continue
            reservations.reserve_soft(row)

    def _rest(self, builder: PlanBuilder, reservations: ReservationBook) -> Ints:
        """Rows that fill what is left: priority, then deadlines still possible by slack, then arrival."""
        jobs = builder.view.jobs
        kept = (
            (reservations.certs[:, col.CLASS] == col.NONE)
            & (jobs.phase != PhaseCode.PAUSED)
            & (jobs.phase != PhaseCode.LOST)
        )
        if builder.rejections:
            kept[list(builder.rejections)] = False
        if self.admission and not self.keep_trying:
            kept &= ~reservations.is_hard | (jobs.admitted > 0)
        # Without a promise and too late by now: a hard deadline has no value afterwards.
        unsure = reservations.beliefs.pool.count or builder.view.learns
        hopeless = reservations.due <= reservations.now if unsure else reservations.slack() < 0
        kept &= ~(reservations.is_hard & (jobs.admitted == 0) & hopeless & ~reservations.unknown)
        rows = np.flatnonzero(kept)
        slack = np.where(reservations.is_soft | reservations.is_hard, reservations.slack(), np.inf)[rows]
        slack = np.where(slack < 0, np.inf, slack)
        return rows[np.lexsort((rows, slack, -jobs.priority[rows]))]

    # -- the end ---------------------------------------------------------------------------------------

    def _explain(self, builder: PlanBuilder, reservations: ReservationBook, size: Ints) -> None:
        """Reserved jobs that wait are told when their turn is."""
        certs = reservations.certs
        waits = np.flatnonzero((certs[:, col.CLASS] > 0) & (size == 0) & (certs[:, col.COUNT] > 0))
        if waits.size == 0:
            return
        next_ones = waits[np.argsort(certs[waits, col.FIRST], kind="stable")[:_SHOWN]]
        start_s, finish_s = (certs[next_ones][:, [col.FIRST, col.FINISH]].T / MS_PER_S).tolist()
        promised = (certs[next_ones, col.CLASS] == col.PROMISED).tolist()
        for row, start, finish, kept in zip(next_ones.tolist(), start_s, finish_s, promised, strict=True):
            if row not in builder.details:
                builder.details[row] = {"planned_start_s": start, "planned_finish_s": finish, "promised": kept}

    def _memo(self, reservations: ReservationBook, asked: Any, offers: Offers, answers: Answers) -> PolicyState:
        pool = reservations.beliefs.pool
        values = {"ratios": [pool.count, pool.total, pool.squares], "offers": offers.plain()}
        return PolicyState(
            values={**values, **answers.plain(reservations.certs[:, col.CLASS] == col.NONE)},
            columns={
                "plan": reservations.certs,
                "sizes": reservations.tables,
                "seen": reservations.beliefs.seen,
                "asked": asked,
            },
        )

    def _wake(self, reservations: ReservationBook, failed: bool) -> int | None:
        wake = rs.next_break(reservations.now, reservations.certs)
        if reservations.beliefs.pool.count:
            wake = min(wake, reservations.now + self.look_s * MS_PER_S)
        if reservations.unknown.any():
            probed = reservations.probing & (reservations.certs[:, col.CLASS] == col.SOFT)
            probed &= reservations.certs[:, col.FIRST] <= reservations.now
            wake = min(wake, reservations.now + (_PROBED_MS if probed.any() else self.look_s * MS_PER_S))
        if failed:
            wake = min(wake, reservations.now + _RETRY_MS)
        return int(wake) if wake < col.FOREVER else None
