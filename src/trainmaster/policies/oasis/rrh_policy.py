"""RRH in the engine: jobs of fixed size start by risk and reward and run to their end.

The rule is `RiskReward` of `baselines.py` in seconds of the engine instead of slots of an instance; slots
remain as the unit of its discount and of the delay that others suffer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from trainmaster.model.draft import Draft
from trainmaster.model.job import P
from trainmaster.model.plan import Plan
from trainmaster.model.reasons import Why
from trainmaster.model.snapshot import Snapshot
from trainmaster.model.units import GPU_MILLI, MS_PER_S
from trainmaster.model.utility import Utility
from trainmaster.policies.oasis.gangs import fits_idle, servers_for
from trainmaster.policies.oasis.worth import worth_of
from trainmaster.policies.registry import register

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Candidate:
    """A job that waits: its worth by age, how old it is, how long it runs, what of the cluster it holds."""

    row: int
    name: str
    utility: Utility
    age_s: float
    run_s: float
    share: float

    def value(self, delay_s: float) -> float:
        """Its utility if it starts after so long."""
        return float(self.utility.value(self.age_s + delay_s + self.run_s))

    def values(self, delays_s: Floats) -> Floats:
        return self.utility.values(self.age_s + delays_s + self.run_s)


@register("rrh")
@dataclass(frozen=True)
class RiskRewardHeuristic:
    """Starts jobs by reward against the risk of delaying others; refuses what has no slack (Irwin 2004)."""

    slot_s: float = field(default=1200.0, metadata={"help": "length of a slot in seconds"})
    alpha: float = field(default=0.5, metadata={"help": "weight of reward against risk"})
    discount: float = field(default=0.01, metadata={"help": "discount per slot of run time"})
    threshold: float = field(default=0.0, metadata={"help": "least slack, in slots, to be admitted"})
    patience: float = field(default=10.0, metadata={"help": "default utility: gone after so many ideal runs of delay"})
    patience_min_s: float = field(default=14400.0, metadata={"help": "default utility: but not before so long"})

    def decide(self, view: Snapshot) -> Plan:
        jobs, draft = view.jobs, view.draft()
        names = jobs.ids
        order = sorted(range(len(jobs)), key=lambda row: (int(jobs.submit_ms[row]), names[row]))
        pending = [row for row in order if int(jobs.phase[row]) == P.PENDING]
        waiting: list[Candidate] = []
        for row in pending:
            ready = int(jobs.not_before_ms[row]) <= view.now_ms
            if int(jobs.first_start_ms[row]) >= 0:
                if ready:  # it ran before its node failed: it was promised to run to its end
                    _start(view, draft, row)
            elif not jobs.admitted[row] and _size(view, row) is None:
                draft.reject(row, Why.NEVER_FITS)
            else:
                waiting.append(self._candidate(view, row, names[row]))
        waiting = self._admitted(view, draft, waiting)
        free = float(view.free_gpus_by_type.max(initial=0.0))
        least = jobs.workers_min * jobs.worker_gpu_milli / GPU_MILLI
        startable = [c for c in waiting if least[c.row] <= free]
        rewards = {c.row: self._reward(c, waiting) for c in startable}
        for c in sorted(startable, key=lambda c: (-rewards[c.row], -c.age_s, c.name)):
            _start(view, draft, c.row)
        return draft.plan(default=Why.CAPACITY)

    def _candidate(self, view: Snapshot, row: int, name: str) -> Candidate:
        jobs = view.jobs
        spec = jobs.spec(row)
        speed = float(jobs.throughput[row][jobs.allowed[row]].max())
        total = float(jobs.work_total[row])
        run_s = 3600.0 if math.isnan(total) else total / speed
        utility = worth_of(spec, run_s, self.patience, self.patience_min_s)
        share = float(jobs.ask_gpu_milli[row]) / GPU_MILLI / max(view.cluster.total_gpus, 1)
        return Candidate(row, name, utility, (view.now_ms - spec.submit_ms) / MS_PER_S, run_s, share)

    def _admitted(self, view: Snapshot, draft: Draft, waiting: list[Candidate]) -> list[Candidate]:
        """Of the jobs that wait, those that stay: new ones with slack, and old ones still worth a start."""
        kept: list[Candidate] = [c for c in waiting if view.jobs.admitted[c.row] and c.value(0.0) > 0]
        for c in waiting:
            if view.jobs.admitted[c.row]:
                if c.value(0.0) <= 0:  # and never again, since utilities do not rise
                    draft.reject(c.row, Why.PRICE, payoff=0.0, slack_s=None)
                continue
            present, risk = self._present_value(c), self._risk(c, kept)
            decline = c.value(0.0) - c.value(self.slot_s)
            slack = (present - risk) / decline if decline > 0 else math.copysign(math.inf, present - risk)
            if c.value(0.0) > 0 and slack > self.threshold:
                draft.admit(c.row)
                kept.append(c)
            else:
                slack_s = slack * self.slot_s if math.isfinite(slack) else None
                draft.reject(c.row, Why.PRICE, payoff=present - risk, slack_s=slack_s)
        return kept

    def _reward(self, c: Candidate, waiting: list[Candidate]) -> float:
        value = self.alpha * self._present_value(c) - (1 - self.alpha) * self._risk(c, waiting)
        return value / self._run_slots(c)

    def _run_slots(self, c: Candidate) -> float:
        return max(c.run_s / self.slot_s, 1e-9)

    def _present_value(self, c: Candidate) -> float:
        return c.value(0.0) / (1 + self.discount * self._run_slots(c))

    def _risk(self, c: Candidate, waiting: list[Candidate]) -> float:
        """What the others lose if they start one run of `c` later, by the share of the cluster it holds."""
        delays = np.array([0.0, c.run_s])
        lost = 0.0
        for other in waiting:
            if other.row != c.row:
                now, later = other.values(delays)
                lost += float(now - later)
        return c.share * lost


def _size(view: Snapshot, row: int) -> int | None:
    """Its fixed number of workers: what it asks for, or the most below that the idle cluster could host."""
    jobs = view.jobs
    if not jobs.allowed[row].any():
        return None
    least, ask = int(jobs.workers_min[row]), int(jobs.workers_ask[row])
    spec = jobs.spec(row)
    return next((n for n in range(ask, least - 1, -1) if fits_idle(view, row, n, servers_for(spec, n))), None)


def _start(view: Snapshot, draft: Draft, row: int) -> bool:
    size = _size(view, row)
    return size is not None and draft.place(row, workers=size, servers=servers_for(view.jobs.spec(row), size))
