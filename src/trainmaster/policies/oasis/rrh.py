"""RRH: FirstReward of Irwin, Grit and Chase (HPDC 2004), with the utility's true decline in place of a linear decay.

    reward_i = (alpha PV_i - (1 - alpha) cost_i) / run_i;  PV_i = yield_i / (1 + discount run_i)
    cost_i = share_i * sum over other waiting jobs j of what j loses if it starts one run of i later

The original prices one machine; here a job delays others only by the share of the cluster it holds. Admission:
slack_i = (PV_i - cost_i) / (loss of i per slot of delay) must exceed the threshold. `RiskReward` is the rule; time is
in seconds (engine) or slots (instances), `time_slot` is the length of a slot in it. Jobs of a fixed size run to their
end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from trainmaster.model.job import PhaseCode
from trainmaster.model.plan import Plan
from trainmaster.model.plan_builder import PlanBuilder
from trainmaster.model.reasons import Why
from trainmaster.model.snapshot import Snapshot
from trainmaster.model.units import GPU_MILLI, MS_PER_S
from trainmaster.model.utility import Utility
from trainmaster.policies.oasis.gang_options import fits_idle, servers_for
from trainmaster.policies.oasis.job_utility import UNKNOWN_WORK_S, worth_of
from trainmaster.policies.registry import register

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Candidate:
    """A job that waits: its worth by age, how old it is, how long it runs, what of the cluster it holds."""

    key: int
    name: str
    utility: Utility
    age: float
    run: float
    share: float

    def value(self, delay: float = 0.0) -> float:
        """Its utility if it starts after so long."""
        return float(self.utility.value(self.age + delay + self.run))


@dataclass(frozen=True)
class RiskReward:
    """The rule. `alpha`: weight of reward against risk; `discount` per slot of run time; `threshold` in slots."""

    time_slot: float
    alpha: float
    discount: float
    threshold: float

    def present_value(self, c: Candidate) -> float:
        return c.value() / (1 + self.discount * self._run_slots(c))

    def risks(self, candidates: Sequence[Candidate], waiting: Sequence[Candidate]) -> Floats:
        """What the others of `waiting` lose if each candidate starts first."""
        runs, keys = np.array([c.run for c in candidates]), np.array([c.key for c in candidates])
        lost = np.zeros(len(candidates))
        for other in waiting:
            loss = other.value() - other.utility.values(other.age + runs + other.run)
            lost += np.where(keys == other.key, 0.0, loss)
        return np.array([c.share for c in candidates]) * lost

    def ordered(self, candidates: Sequence[Candidate], waiting: Sequence[Candidate]) -> list[Candidate]:
        """Highest reward first; ties by age, then name."""
        if not candidates:
            return []
        rewards = [
            (self.alpha * self.present_value(c) - (1 - self.alpha) * risk) / self._run_slots(c)
            for c, risk in zip(candidates, self.risks(candidates, waiting).tolist(), strict=True)
        ]
        order = sorted(range(len(rewards)), key=lambda i: (-rewards[i], -candidates[i].age, candidates[i].name))
        return [candidates[i] for i in order]

    def slack(self, c: Candidate, waiting: Sequence[Candidate]) -> tuple[float, float]:
        """(its gain, its slack in slots)."""
        gain = self.present_value(c) - float(self.risks([c], waiting)[0])
        decline = c.value() - c.value(self.time_slot)
        return gain, gain / decline if decline > 0 else math.copysign(math.inf, gain)

    def _run_slots(self, c: Candidate) -> float:
        return max(c.run / self.time_slot, 1e-9)


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
        jobs, builder = view.jobs, view.draft()
        names, ready = jobs.ids, jobs.not_before_ms <= view.now_ms
        order = sorted(range(len(jobs)), key=lambda row: (int(jobs.submit_ms[row]), names[row]))
        waiting: list[Candidate] = []
        for row in order:
            if int(jobs.phase[row]) != PhaseCode.PENDING:
                continue
            if int(jobs.first_start_ms[row]) >= 0:
                if ready[row]:  # it ran before its node failed: it runs to its end
                    _start(view, builder, row)
            elif not jobs.admitted[row] and _size(view, row) is None:
                builder.reject(row, Why.NEVER_FITS)
            else:
                waiting.append(self._candidate(view, row, names[row]))
        rule = RiskReward(self.slot_s, self.alpha, self.discount, self.threshold)
        waiting = self._admitted(rule, builder, waiting)
        free = float(view.free_gpus_by_type.max(initial=0.0))
        least = jobs.workers_min * jobs.worker_gpu_milli / GPU_MILLI
        for c in rule.ordered([c for c in waiting if ready[c.key] and least[c.key] <= free], waiting):
            _start(view, builder, c.key)
        return builder.plan(default=Why.CAPACITY)

    def _candidate(self, view: Snapshot, row: int, name: str) -> Candidate:
        jobs = view.jobs
        spec = jobs.spec(row)
        speed = float(jobs.throughput[row][jobs.allowed[row]].max())
        total = float(jobs.work_total[row])
        run_s = UNKNOWN_WORK_S if math.isnan(total) else total / speed
        utility = worth_of(spec, run_s, self.patience, self.patience_min_s)
        share = float(jobs.ask_gpu_milli[row]) / GPU_MILLI / max(view.cluster.total_gpus, 1)
        return Candidate(row, name, utility, (view.now_ms - spec.submit_ms) / MS_PER_S, run_s, share)

    def _admitted(self, rule: RiskReward, builder: PlanBuilder, waiting: list[Candidate]) -> list[Candidate]:
        """Of the jobs that wait, those that stay: new ones with slack, and old ones still worth a start."""
        admitted = builder.view.jobs.admitted
        kept = [c for c in waiting if admitted[c.key] and c.value() > 0]
        for c in waiting:
            if admitted[c.key]:
                if c.value() <= 0:  # and never again, since utilities do not rise
                    builder.reject(c.key, Why.PRICE, payoff=0.0, slack_s=None)
                continue
            gain, slack = rule.slack(c, kept)
            if c.value() > 0 and slack > self.threshold:
                builder.admit(c.key)
                kept.append(c)
            else:
                slack_s = slack * self.slot_s if math.isfinite(slack) else None
                builder.reject(c.key, Why.PRICE, payoff=gain, slack_s=slack_s)
        return kept


def _size(view: Snapshot, row: int) -> int | None:
    """Its fixed number of workers: what it asks for, or the most below that the idle cluster could host."""
    jobs = view.jobs
    if not jobs.allowed[row].any():
        return None
    least, ask = int(jobs.workers_min[row]), int(jobs.workers_ask[row])
    spec = jobs.spec(row)
    return next((n for n in range(ask, least - 1, -1) if fits_idle(view, row, n, servers_for(spec, n))), None)


def _start(view: Snapshot, builder: PlanBuilder, row: int) -> None:
    size = _size(view, row)
    if size is not None:
        builder.place(row, workers=size, servers=servers_for(view.jobs.spec(row), size))
