"""The `deadline` policy: admission with promises, least slack with feasibility, sizes found for the user."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from trainmaster.model.draft import Draft
from trainmaster.model.errors import InputError
from trainmaster.model.job import P
from trainmaster.model.memo import Memo
from trainmaster.model.plan import Plan
from trainmaster.model.policy import PolicyTraits
from trainmaster.model.reasons import Why
from trainmaster.model.snapshot import Snapshot
from trainmaster.model.units import MS_PER_S
from trainmaster.policies.deadline import answers
from trainmaster.policies.deadline import layout as col
from trainmaster.policies.deadline import reservations as rs
from trainmaster.policies.deadline.book import RETRIES, Book
from trainmaster.policies.deadline.carrying_out import carry_out, changeable
from trainmaster.policies.deadline.leftovers import grow_leftovers, in_use, start_leftovers
from trainmaster.policies.deadline.worth import EASY, Offers, area_ms, booked
from trainmaster.policies.ordering import decide_by_arrival
from trainmaster.policies.registry import register

Ints = npt.NDArray[np.int64]

_RETRY_MS = 10_000
"""Looked at again so soon when a gang fitted by count but found no place."""
_AGAIN_MS, _AGAIN = 60_000.0, 1.0 / 8.0
"""All is planned anew for a job without reservation not sooner than this, and than this part of its slack..."""
_PLANNED = 1
"""...and for so many refused jobs in one decision."""
_SHOWN = 64
"""Waiting jobs whose planned start is stated in the reason; the next to start."""


def _next_try(book: Book, slack_ms: float) -> float:
    return book.now + max(_AGAIN_MS, slack_ms * _AGAIN)


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
    traits = PolicyTraits(own_rounds=True)

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
        draft = view.draft()
        book = Book(view, self.confidence, self.admission)
        asked = view.memo.columns.get("asked")
        asked = np.zeros(len(view.jobs)) if asked is None else asked.copy()
        offers = Offers.read(view.memo.values.get("offers"))
        self._answer(draft, book, asked, offers)
        self._soften(draft, book, asked)
        kind, size = book.jobs.held_kind.copy(), book.jobs.held.copy()
        rest = self._rest(draft, book)
        book.hasten(0.0, only_waiting=True, used=in_use(book, kind, size, rest))
        rs.present(book.now, book.certs, kind, size)
        waits = np.zeros(len(view.jobs), np.bool_)
        waits[view.waiting_rows()] = True
        window_ms = max(self.min_run_s * MS_PER_S, 4.0 * view.restart_cost_ms)
        if not start_leftovers(book, kind, size, waits, rest, window_ms):
            grown = in_use(book, kind, size, rest)
            book.hasten(self.gain, only_waiting=False, used=grown)
            kept_kind, kept_size = kind[rest], size[rest]
            rs.present(book.now, book.certs, kind, size)
            kind[rest], size[rest] = kept_kind, kept_size
            grow_leftovers(book, kind, size, rest, window_ms, self.gain)
        unable = ~changeable(view.jobs.phase)
        size[unable] = book.jobs.held[unable]
        kind[unable] = book.jobs.held_kind[unable]
        for row in draft.rejections:
            size[row] = 0
        free_rows = book.certs[:, col.CLASS] == col.NONE
        rank = np.arange(len(size)) + 2**40
        by_due = np.flatnonzero(~free_rows)
        rank[by_due[np.argsort(book.due[by_due], kind="stable")]] = np.arange(by_due.size)
        failed = carry_out(draft, kind, size, rank, free_rows)
        self._explain(draft, book, size)
        return draft.plan(
            memo=self._memo(book, asked, offers),
            wake_at_ms=self._wake(book, bool(failed)),
            default=Why.OUTRANKED,
        )

    # -- the answers -----------------------------------------------------------------------------------

    def _answer(self, draft: Draft, book: Book, asked: npt.NDArray[np.float64], offers: Offers) -> None:
        """Every hard deadline without a promise: new ones fully, kept ones by free room alone."""
        open_rows = np.flatnonzero(book.is_hard & (book.certs[:, col.CLASS] == col.NONE) & draft.view.jobs.waiting)
        candidates: list[int] = []
        for row in open_rows[asked[open_rows] == 0].tolist():
            asked[row] = _next_try(book, float(book.slack()[row]))
            details = answers.impossible(book, row)
            if details is not None:
                draft.reject(row, Why.DEADLINE, **details)
                continue
            if self.selective > 0:
                offers.offered(book, row)
            details = self._too_large(book, row, offers)
            if details is not None:
                self._refuse(draft, row, details)
            else:
                candidates.append(row)
        if len(candidates) == 1 or not book.promise_all(candidates):
            for row in candidates:
                if book.certs[row, col.CLASS] == col.NONE and not book.promise(row):
                    offers.refused()
                    self._refuse(draft, row, answers.refused(book, row))
        for row in candidates:
            if book.certs[row, col.CLASS] == col.PROMISED:
                self._accept(draft, book, row)
        if self.keep_trying:
            self._try_again(draft, book, asked, offers)

    def _refuse(self, draft: Draft, row: int, details: dict[str, Any]) -> None:
        if self.keep_trying:
            draft.wait(row, Why.DEADLINE, -1, **details)
        else:
            draft.reject(row, Why.DEADLINE, **details)

    def _too_large(self, book: Book, row: int, offers: Offers) -> dict[str, Any] | None:
        """The answer to a job that would take the room of many while room is short; else None."""
        if self.selective > 0:
            price = area_ms(book, row) / max(float(book.view.jobs.weight[row]), 1e-9)
            highest = offers.highest_price(self.selective)
            if price > highest and booked(book, row) > EASY:
                return answers.not_worth_it(book, row, price / highest)
        return None

    def _accept(self, draft: Draft, book: Book, row: int) -> None:
        draft.admit(row)
        draft.details[row] = answers.accepted(book, row)

    def _try_again(self, draft: Draft, book: Book, asked: npt.NDArray[np.float64], offers: Offers) -> None:
        """Refused before: a promise after all if there is room by now, the end when it is hopeless."""
        phase = draft.view.jobs.phase
        rows = np.flatnonzero(book.is_hard & (asked > 0) & (book.certs[:, col.CLASS] == col.NONE) & changeable(phase))
        slack = book.slack()[rows]
        for row in rows[(slack < 0) & (phase[rows] == P.PENDING)].tolist():
            if row not in draft.rejections:
                draft.reject(row, Why.DEADLINE, **(answers.impossible(book, row) or answers.refused(book, row)))
        rows, slack = rows[slack >= 0], slack[slack >= 0]
        planned = 0
        for row, spare in sorted(zip(rows.tolist(), slack.tolist(), strict=True), key=lambda r: (r[1], r[0]))[:RETRIES]:
            if self._too_large(book, row, offers) is not None:
                continue
            found = book.book(row, col.PROMISED, float(book.due[row]))
            if not found and asked[row] <= book.now and planned < _PLANNED:
                planned += 1
                asked[row] = _next_try(book, spare)
                found = book.fit_in(row, col.PROMISED)
            if found:
                self._accept(draft, book, row)

    def _soften(self, draft: Draft, book: Book, asked: npt.NDArray[np.float64]) -> None:
        """Reserve for soft deadlines in what the promises leave, least slack first."""
        jobs = draft.view.jobs
        rows = np.flatnonzero(book.is_soft & changeable(jobs.phase) & (book.certs[:, col.CLASS] == col.NONE))
        if rows.size == 0:
            return
        slack = book.slack()
        steps_left = np.array([book.steps(row)[-1] >= book.fastest_finish()[row] for row in rows.tolist()], np.bool_)
        rows = rows[steps_left]
        for row in rows[np.lexsort((rows, slack[rows], slack[rows] < 0))][:RETRIES].tolist():
            due = float(book.due[row])
            if slack[row] >= 0:
                if book.book(row, col.SOFT, due):
                    continue
                if book.now >= asked[row]:
                    asked[row] = _next_try(book, float(slack[row]))
                    if book.soften(row):
                        continue
            book.book_soft(row)

    def _rest(self, draft: Draft, book: Book) -> Ints:
        """Rows that fill what is left: priority, then deadlines still possible by slack, then arrival."""
        jobs = draft.view.jobs
        kept = (book.certs[:, col.CLASS] == col.NONE) & (jobs.phase != P.PAUSED) & (jobs.phase != P.LOST)
        if draft.rejections:
            kept[list(draft.rejections)] = False
        if self.admission and not self.keep_trying:
            kept &= ~book.is_hard | (jobs.admitted > 0)
        # Without a promise and too late by now: a hard deadline has no value afterwards.
        hopeless = book.due <= book.now if book.beliefs.pool.count else book.slack() < 0
        kept &= ~(book.is_hard & (jobs.admitted == 0) & hopeless)
        rows = np.flatnonzero(kept)
        slack = np.where(book.is_soft | book.is_hard, book.slack(), np.inf)[rows]
        slack = np.where(slack < 0, np.inf, slack)
        return rows[np.lexsort((rows, slack, -jobs.priority[rows]))]

    # -- the end ---------------------------------------------------------------------------------------

    def _explain(self, draft: Draft, book: Book, size: Ints) -> None:
        """Reserved jobs that wait are told when their turn is."""
        certs = book.certs
        waits = np.flatnonzero((certs[:, col.CLASS] > 0) & (size == 0) & (certs[:, col.COUNT] > 0))
        if waits.size == 0:
            return
        next_ones = waits[np.argsort(certs[waits, col.FIRST], kind="stable")[:_SHOWN]]
        start_s, finish_s = (certs[next_ones][:, [col.FIRST, col.FINISH]].T / MS_PER_S).tolist()
        promised = (certs[next_ones, col.CLASS] == col.PROMISED).tolist()
        for row, start, finish, kept in zip(next_ones.tolist(), start_s, finish_s, promised, strict=True):
            if row not in draft.details:
                draft.details[row] = {"planned_start_s": start, "planned_finish_s": finish, "promised": kept}

    def _memo(self, book: Book, asked: Any, offers: Offers) -> Memo:
        pool = book.beliefs.pool
        return Memo(
            values={"ratios": [pool.count, pool.total, pool.squares], "offers": offers.plain()},
            columns={"plan": book.certs, "sizes": book.tables, "seen": book.beliefs.seen, "asked": asked},
        )

    def _wake(self, book: Book, failed: bool) -> int | None:
        wake = rs.next_break(book.now, book.certs)
        if book.beliefs.pool.count:
            wake = min(wake, book.now + self.look_s * MS_PER_S)
        if failed:
            wake = min(wake, book.now + _RETRY_MS)
        return int(wake) if wake < col.FOREVER else None
