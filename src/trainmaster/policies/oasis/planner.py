"""One decision of the engine policy in the making: the view in the formulation's terms, and the commitments.

Offers a new job its best schedule at current prices, re-plans a promised one without asking its price, and
pulls a waiting one forward into capacity that came free.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from trainmaster.model.job import JobId, PhaseCode
from trainmaster.model.snapshot import Snapshot
from trainmaster.model.units import GPU_MILLI, MS_PER_S
from trainmaster.model.utility import Utility
from trainmaster.policies.oasis.best_schedule import Ask, Clock, RollingOffer, best_rolling
from trainmaster.policies.oasis.commitments import Commitments, Promise
from trainmaster.policies.oasis.execution import place_of
from trainmaster.policies.oasis.gang_options import Gangs, Pool, gangs_of, servers_for
from trainmaster.policies.oasis.job_utility import UNKNOWN_WORK_S, worth_of
from trainmaster.policies.oasis.prices import Extent, PriceSettings, PriceTable, densities, price_table

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
    """See the module's text. Rows are those of the view; changes go to `committed`."""

    def __init__(self, view: Snapshot, committed: Commitments, clock: Clock, settings: PlanSettings) -> None:
        self.view = view
        self.committed = committed
        self.clock = clock
        self.settings = settings
        self.pool = Pool.of(view.cluster)
        self._prices: PriceTable | None = None
        self._gangs: dict[int, list[Gangs]] = {}

    # -- a job in the formulation's terms --------------------------------------------------------------

    def gangs(self, row: int) -> list[Gangs]:
        """By accelerator type; none at all: the job could never run here."""
        if row not in self._gangs:
            found = (gangs_of(self.view, self.pool, row, gpu_type) for gpu_type in range(len(self.view.cluster.types)))
            self._gangs[row] = [gangs for gangs in found if gangs is not None]
        return self._gangs[row]

    def steps_left(self, row: int) -> float:
        left = float(self.view.jobs.remaining[row])
        if math.isnan(left):
            return UNKNOWN_WORK_S * max(g.fastest for g in self.gangs(row))
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

    def ask(self, row: int, urgency: float = 0.0) -> Ask:
        view, jobs = self.view, self.view.jobs
        spec = jobs.spec(row)
        phase = int(jobs.phase[row])
        present = jobs.allocation(row) if jobs.holding[row] and phase != PhaseCode.STOPPING else None
        overhead_ms = 0
        if present is None and jobs.first_start_ms[row] >= 0:
            overhead_ms = view.restart_cost_ms
        elif present is not None:
            overhead_ms = max(0, int(jobs.productive_ms[row]) - view.now_ms)
        return Ask(
            submit_ms=spec.submit_ms,
            steps_left=self.steps_left(row),
            utility=self.worth(row),
            worker=self.pool.demand(spec.worker),
            server=self.pool.demand(spec.server),
            held=() if present is None else place_of(present),
            now=phase not in (PhaseCode.STOPPING, PhaseCode.LOST, PhaseCode.PAUSED)
            and int(jobs.not_before_ms[row]) <= view.now_ms,
            overhead_ms=overhead_ms,
            urgency=urgency,
        )

    # -- prices ----------------------------------------------------------------------------------------

    def remember(self, row: int) -> None:
        """Enter an arriving job into the history: ln of worth per unit of each resource and slot."""
        spec = self.view.jobs.spec(row)
        ln_best = self.worth(row).log_value(self.ideal_s(row))
        if not math.isfinite(ln_best):
            return  # a job that can never be worth anything teaches nothing about prices
        time_slots = max(self.ideal_s(row) * MS_PER_S / self.clock.slot_ms, 1e-9)
        jobs = self.view.jobs
        workers = int(jobs.workers_ask[row])
        slots = workers * time_slots, servers_for(spec, workers) * time_slots
        demands = self.pool.demand(spec.worker), self.pool.demand(spec.server)
        amounts = [demand * role for demand, role in zip(demands, slots, strict=True)]
        found = densities(ln_best, [*amounts[0].tolist(), *amounts[1].tolist()])
        committed, kept = self.committed, -self.settings.history_jobs
        extents: list[list[float | None]] = []
        if self.settings.prices.rule == "paper":
            horizon_s = self.settings.horizon_slots * self.clock.slot_ms / MS_PER_S
            totals = [float(demand.sum()) for demand in demands]
            extent = Extent.of(self.worth(row).log_value(horizon_s), slots, totals)
            if len(committed.extents) != len(committed.densities):  # the last jobs came under the other rule
                committed.densities, committed.extents = [], []
            extents = [*committed.extents, extent.to_json()]
        committed.densities, committed.extents = [*committed.densities, found][kept:], extents[kept:]
        self._prices = None

    @property
    def prices(self) -> PriceTable:
        if self._prices is None:
            nodes, resources = self.pool.capacity.shape
            both_roles = np.ones((nodes, 2), np.bool_)
            supply = self.pool.capacity.sum() * self.settings.horizon_slots
            extents = [Extent.from_json(data) for data in self.committed.extents]
            self._prices = price_table(
                self.committed.densities, resources, both_roles, self.settings.prices, extents, (supply, supply)
            )
        return self._prices

    # -- schedules -------------------------------------------------------------------------------------

    @cached_property
    def _type_nodes(self) -> list[NDArray[np.bool_]]:
        gpu_types = self.view.cluster.type_of
        return [self.view.up & (gpu_types == gpu_type) for gpu_type in range(len(self.view.cluster.types))]

    def best(self, row: int, ask: Ask, time_slots: int, without: JobId | None) -> RollingOffer | None:
        """The best offer of any type over so many slots; equal ones: the type first by name."""
        nodes, resources = self.pool.capacity.shape
        used = self.committed.used(self.clock.time_slot, time_slots, nodes, resources, without)
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
            for g in self.gangs(row)
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

    def slots_for(self, row: int, ask: Ask) -> int:
        """The horizon, or twice the shortest run if that is more."""
        fewest = math.ceil(ask.steps_left / max(g.fastest for g in self.gangs(row)) * MS_PER_S / self.clock.slot_ms)
        return max(self.settings.horizon_slots, 2 * fewest + 1)

    def commit(self, row: int, ask: Ask, offer: RollingOffer) -> None:
        promise = Promise(
            offer.accelerator,
            offer.runs,
            offer.finish_ms,
            offer.utility,
            offer.payoff,
            tuple(ask.worker.tolist()),
            tuple(ask.server.tolist()),
        )
        self.committed.put(self.view.jobs.id(row), promise)

    def offer(self, row: int) -> tuple[Ask, RollingOffer | None]:
        """The best schedule of a job that arrives; commits nothing."""
        ask = self.ask(row)
        return ask, self.best(row, ask, self.slots_for(row, ask), None)

    def replan(self, row: int) -> str | None:
        """Plan a promised job anew, whatever it costs. Returns a note when the horizon had to be extended or
        nothing fits at all; then it stays committed without slots and is tried again."""
        name = self.view.jobs.id(row)
        old = self.committed.promises.get(name)
        ask = self.ask(row, URGENCY * max(old.utility if old else 0.0, 1e-6))
        time_slots = self.slots_for(row, ask)
        for doubling in range(HORIZON_DOUBLINGS_MAX + 1):
            offer = self.best(row, ask, time_slots << doubling, name)
            if offer is not None:
                self.commit(row, ask, offer)
                if doubling:
                    return f"job {name}: repaired beyond the horizon, over {time_slots << doubling} slots"
                return None
            if not any(self._type_nodes[g.accelerator].any() for g in self.gangs(row)):
                break  # no node of its types is up: no horizon helps
        finish = old.finish_ms if old else self.clock.now_ms
        gpu_type = self.gangs(row)[0].accelerator
        demands = tuple(ask.worker.tolist()), tuple(ask.server.tolist())
        self.committed.put(name, Promise(gpu_type, (), finish, 0.0, 0.0, *demands))
        return f"job {name}: promised, but no node can take it now; it is tried again"

    def advance(self, row: int) -> bool:
        """Give a waiting promised job an earlier end if there is one at the prices of the moment."""
        name = self.view.jobs.id(row)
        old = self.committed.promises[name]
        ask = self.ask(row, URGENCY * max(old.utility, 1e-6))
        offer = self.best(row, ask, self.slots_for(row, ask), name)
        if offer is None or offer.finish_ms >= old.finish_ms:
            return False
        self.commit(row, ask, offer)
        return True

    def free_gpus(self) -> list[float]:
        """GPUs of each type that no promise takes in the running slot."""
        nodes, resources = self.pool.capacity.shape
        free = self.pool.capacity[:, 0] - self.committed.used(self.clock.time_slot, 1, nodes, resources)[0, :, 0]
        return [float(free[of_type].sum()) for of_type in self._type_nodes]

    def could_start_now(self, row: int, free_gpus: list[float]) -> bool:
        """A quick look, by GPUs of one type in all, whether the smallest gang could fit now."""
        jobs = self.view.jobs
        need = int(jobs.worker_gpu_milli[row]) / GPU_MILLI * max(int(jobs.workers_min[row]), 1) - 1e-9
        if not any(gpus >= need for gpus, allowed in zip(free_gpus, jobs.allowed[row], strict=True) if allowed):
            return False
        return any(free_gpus[g.accelerator] >= need for g in self.gangs(row))
