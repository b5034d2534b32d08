"""One decision of the engine policy in the making: the view in the formulation's terms, and the books.

Offers a new job its best schedule at current prices, re-plans a promised one without asking its price, and
pulls a waiting one forward into capacity that came free.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from trainmaster.model.job import JobId, P
from trainmaster.model.snapshot import Snapshot
from trainmaster.model.units import MS_PER_S
from trainmaster.model.utility import Utility
from trainmaster.policies.oasis.book import Book, Promise
from trainmaster.policies.oasis.gangs import Gangs, Pool, gangs_of
from trainmaster.policies.oasis.prices import PriceSettings, PriceTable
from trainmaster.policies.oasis.realise import place_of
from trainmaster.policies.oasis.rolling import Ask, Clock, RollingOffer, best_rolling, rolling_prices
from trainmaster.policies.oasis.worth import log_worth, worth_of

UNKNOWN_WORK_S = 3600.0
"""A job that does not say how long it is, is taken for one with another hour to go."""
URGENCY = 0.5
"""Part of its promised utility that a job adds to the worth of ending soon when it is planned again."""
HORIZON_DOUBLINGS_MAX = 8


@dataclass(frozen=True)
class PlanSettings:
    horizon_slots: int
    patience: float
    patience_s_min: float
    prices: PriceSettings
    history_jobs: int
    operations_max: int


class Planner:
    """See the module's text. Rows are those of the view; changes go to `book`."""

    def __init__(self, view: Snapshot, book: Book, clock: Clock, settings: PlanSettings) -> None:
        self.view = view
        self.book = book
        self.clock = clock
        self.settings = settings
        self.pool = Pool.of(view.cluster)
        self._prices: PriceTable | None = None

    # -- a job in the formulation's terms --------------------------------------------------------------

    def gangs(self, row: int) -> list[Gangs]:
        """By accelerator type; none at all: the job could never run here."""
        found = (gangs_of(self.view, self.pool, row, kind) for kind in range(len(self.view.cluster.types)))
        return [gangs for gangs in found if gangs is not None]

    def steps_left(self, row: int, gangs: list[Gangs]) -> float:
        left = float(self.view.jobs.remaining[row])
        if math.isnan(left):
            return UNKNOWN_WORK_S * max(g.fastest for g in gangs)
        return max(left, 1e-9)

    def ideal_s(self, row: int) -> float:
        """Run time alone, at the size asked for, on the fastest acceptable type."""
        jobs = self.view.jobs
        total = float(jobs.work_total[row])
        speed = max(float(s) for s, ok in zip(jobs.throughput[row], jobs.allowed[row], strict=True) if ok)
        return UNKNOWN_WORK_S if math.isnan(total) else total / speed

    def worth(self, row: int) -> Utility:
        s = self.settings
        return worth_of(self.view.jobs.spec(row), self.ideal_s(row), s.patience, s.patience_s_min)

    def ask(self, row: int, gangs: list[Gangs], urgency: float = 0.0) -> Ask:
        view, jobs = self.view, self.view.jobs
        spec = jobs.spec(row)
        phase = int(jobs.phase[row])
        present = jobs.allocation(row) if jobs.holding[row] and phase != P.STOPPING else None
        overhead_ms = 0
        if present is None and jobs.first_start_ms[row] >= 0:
            overhead_ms = view.restart_cost_ms
        elif present is not None:
            overhead_ms = max(0, int(jobs.productive_ms[row]) - view.now_ms)
        return Ask(
            submit_ms=spec.submit_ms,
            steps_left=self.steps_left(row, gangs),
            utility=self.worth(row),
            worker=self.pool.demand(spec.worker),
            server=self.pool.demand(spec.server),
            held=() if present is None else place_of(present),
            now=phase not in (P.STOPPING, P.LOST, P.PAUSED) and int(jobs.not_before_ms[row]) <= view.now_ms,
            overhead_ms=overhead_ms,
            urgency=urgency,
        )

    # -- prices ----------------------------------------------------------------------------------------

    def remember(self, row: int) -> None:
        """Enter an arriving job into the history: ln of worth per unit of each resource and slot."""
        spec = self.view.jobs.spec(row)
        ln_best = log_worth(self.worth(row), self.ideal_s(row))
        if ln_best == -math.inf:
            return  # a job that can never be worth anything teaches nothing about prices
        slots = max(self.ideal_s(row) * MS_PER_S / self.clock.slot_ms, 1e-9)
        density: list[float | None] = []
        for member, count in (
            (spec.worker, int(self.view.jobs.workers_ask[row])),
            (spec.server, int(self.view.jobs.servers_ask[row])),
        ):
            for amount in self.pool.demand(member) * count:
                density.append(ln_best - math.log(amount * slots) if amount > 0 else None)
        self.book.densities = [*self.book.densities, density][-self.settings.history_jobs :]
        self._prices = None

    @property
    def prices(self) -> PriceTable:
        if self._prices is None:
            self._prices = rolling_prices(self.book.densities, self.pool, self.settings.prices)
        return self._prices

    # -- schedules -------------------------------------------------------------------------------------

    @cached_property
    def _type_nodes(self) -> list[NDArray[np.bool_]]:
        kinds = self.view.cluster.type_of
        return [self.view.up & (kinds == kind) for kind in range(len(self.view.cluster.types))]

    def best(self, row: int, ask: Ask, gangs: list[Gangs], slots: int, without: JobId | None) -> RollingOffer | None:
        """The best offer of any type over so many slots; equal ones: the type first by name."""
        nodes, resources = self.pool.capacity.shape
        used = self.book.used(self.clock.slot, slots, nodes, resources, without)
        offers = [
            best_rolling(
                ask if g.accelerator == self.view.jobs.held_type[row] else replace(ask, held=()),
                g,
                self.clock,
                self.prices,
                self.pool,
                used,
                self._type_nodes[g.accelerator],
                self.view.up,
                self.settings.operations_max,
            )
            for g in gangs
            if self._type_nodes[g.accelerator].any()
        ]
        found = [offer for offer in offers if offer is not None]
        if not found:
            return None
        # Jobs that were promised are urgent: for them a better end counts before a better price.
        return max(
            found,
            key=lambda o: (o.payoff + ask.urgency / (1 + o.finish_ms - self.clock.now_ms), -o.accelerator),
        )

    def slots_for(self, ask: Ask, gangs: list[Gangs]) -> int:
        """The horizon, or twice the shortest run if that is more."""
        fewest = math.ceil(ask.steps_left / max(g.fastest for g in gangs) * MS_PER_S / self.clock.slot_ms)
        return max(self.settings.horizon_slots, 2 * fewest + 1)

    def commit(self, row: int, ask: Ask, offer: RollingOffer) -> None:
        self.book.promises[self.view.jobs.id(row)] = Promise(
            offer.accelerator,
            offer.runs,
            offer.finish_ms,
            offer.utility,
            offer.payoff,
            tuple(ask.worker.tolist()),
            tuple(ask.server.tolist()),
        )

    def offer(self, row: int, gangs: list[Gangs]) -> tuple[Ask, RollingOffer | None]:
        """The best schedule of a job that arrives; commits nothing."""
        ask = self.ask(row, gangs)
        return ask, self.best(row, ask, gangs, self.slots_for(ask, gangs), None)

    def replan(self, row: int, gangs: list[Gangs]) -> str | None:
        """Plan a promised job anew, whatever it costs. Returns a note when the horizon had to be extended or
        nothing fits at all; then it stays in the books without slots and is tried again."""
        name = self.view.jobs.id(row)
        old = self.book.promises.get(name)
        ask = self.ask(row, gangs, URGENCY * max(old.utility if old else 0.0, 1e-6))
        slots = self.slots_for(ask, gangs)
        for doubling in range(HORIZON_DOUBLINGS_MAX + 1):
            offer = self.best(row, ask, gangs, slots << doubling, name)
            if offer is not None:
                self.commit(row, ask, offer)
                if doubling:
                    return f"job {name}: repaired beyond the horizon, over {slots << doubling} slots"
                return None
            if not any(self._type_nodes[g.accelerator].any() for g in gangs):
                break  # no node of its types is up: no horizon helps
        finish = old.finish_ms if old else self.clock.now_ms
        self.book.promises[name] = Promise(
            gangs[0].accelerator, (), finish, 0.0, 0.0, tuple(ask.worker.tolist()), tuple(ask.server.tolist())
        )
        return f"job {name}: promised, but no node can take it now; it is tried again"

    def advance(self, row: int, gangs: list[Gangs]) -> bool:
        """Give a waiting promised job an earlier end if there is one at the prices of the moment."""
        name = self.view.jobs.id(row)
        old = self.book.promises[name]
        ask = self.ask(row, gangs, URGENCY * max(old.utility, 1e-6))
        offer = self.best(row, ask, gangs, max(self.slots_for(ask, gangs), 1), name)
        if offer is None or offer.finish_ms >= old.finish_ms:
            return False
        self.commit(row, ask, offer)
        return True

    def free_now(self) -> NDArray[np.float64]:
        """What of each node no promise takes in the running slot."""
        nodes, resources = self.pool.capacity.shape
        used = self.book.used(self.clock.slot, 1, nodes, resources)[0]
        return np.where(self.view.up[:, None], self.pool.capacity - used, 0.0)

    def could_start_now(self, row: int, gangs: list[Gangs], free: NDArray[np.float64]) -> bool:
        """A quick look, by GPUs of one type in all, whether the smallest gang could fit now."""
        each = self.pool.demand(self.view.jobs.spec(row).worker)[0]
        return any(free[self._type_nodes[g.accelerator], 0].sum() >= each * int(g.workers.min()) - 1e-9 for g in gangs)
