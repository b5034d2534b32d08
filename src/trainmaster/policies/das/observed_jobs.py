"""What the policy remembers between decisions: speeds seen, and how long jobs of a group took."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trainmaster.core.arrays import Floats, Ints
from trainmaster.model.snapshot import Snapshot
from trainmaster.model.units import GPU_MILLI, MS_PER_S
from trainmaster.policies.das.features import phi_of
from trainmaster.policies.das.gaussian import Kernel, SpeedHistory, walk_features

UNKNOWN_LOG_S, UNKNOWN_DEVIATION = 7.5, 1.5
"""Of a job of which nothing is known: about half an hour, rather uncertain."""
DECLARED_DEVIATION = 0.6
"""How far off the logarithm of a declared duration usually is; the agents were trained with this."""
PRIOR_JOBS = 4.0
GROUPS_MAX = 512
PACE_MIN = 0.02
OVERTIME = 0.2
"""A job that runs beyond what was expected is expected to go on for this part of what it ran."""
APART_PRIOR, APART_PRIOR_JOBS, APART_JOBS_MAX = -0.05, 3.0, 30.0
"""Before gangs have been seen on several machines they are taken to lose a twentieth of their speed there; the last
thirty or so are remembered."""
RATE_NEWS = 0.03
"""A running job is looked at again when its speed has changed by this part."""


@dataclass
class ObservedJobs:
    history: SpeedHistory
    declared: bool
    groups: dict[str, list[float]]
    """Mean and mean square deviation of the log-duration, and how many jobs, by group of jobs that have ended."""
    running: dict[str, list[Any]]
    """Group, start (ms) and last speed seen of jobs that run."""
    apart: list[float] = field(default_factory=lambda: [0.0, 0.0])
    """Of gangs seen on several machines: sum of the logarithms of measured over usual speed, and how many."""

    @classmethod
    def recall(cls, view: Snapshot, kernel: Kernel, declared: bool) -> ObservedJobs:
        """From the memo. Jobs that ran at the last decision and are gone have ended: their time becomes history."""
        values = view.memo.values
        groups = {key: list(known) for key, known in values.get("groups", {}).items()}
        seen, apart = (
            SpeedHistory.from_json(kernel, _history(values.get("seen"))),
            list(values.get("apart", (0.0, 0.0))),
        )
        beliefs = cls(seen, declared, groups, {}, apart)
        jobs = view.jobs
        present = {jobs.id(row): row for row in range(len(jobs))}
        before: dict[str, list[Any]] = {**values.get("running", {})}
        for job in sorted(before.keys() - present.keys()):
            group, start_ms, _ = before[job]
            if view.now_ms > start_ms:
                beliefs._ended(group, float(np.log((view.now_ms - start_ms) / MS_PER_S)))
        for row in np.flatnonzero(jobs.holding).tolist():
            job = jobs.id(row)
            start_ms = int(jobs.first_start_ms[row])
            since = before.get(job, [group_of(view, row), start_ms if start_ms >= 0 else view.now_ms, 0.0])
            beliefs.running[job] = list(since)
        return beliefs

    def _ended(self, group: str, log_s: float) -> None:
        mean, square, count = self.groups.pop(group, [UNKNOWN_LOG_S, UNKNOWN_DEVIATION**2, PRIOR_JOBS])
        away = log_s - mean
        count += 1.0
        self.groups[group] = [mean + away / count, square + (away**2 - square) / count, count]
        while len(self.groups) > GROUPS_MAX:
            del self.groups[next(iter(self.groups))]

    def expected(self, view: Snapshot, rows: Ints) -> tuple[Floats, Floats]:
        """Logarithm of the duration (s) on the fastest type, and its deviation."""
        known = [self.groups.get(group_of(view, row)) for row in rows.tolist()]
        mean = np.array([UNKNOWN_LOG_S if k is None else k[0] for k in known])
        deviation = np.array([UNKNOWN_DEVIATION if k is None else max(k[1], 0.05) ** 0.5 for k in known])
        if self.declared:
            jobs = view.jobs
            fastest = np.where(jobs.allowed[rows], jobs.throughput[rows], 0.0).max(axis=1, initial=0.0)
            with np.errstate(divide="ignore", invalid="ignore"):
                left_s = jobs.remaining[rows] / fastest
            told = np.isfinite(left_s) & (left_s > 0)
            mean = np.where(told, np.log(np.where(told, np.maximum(left_s, 1.0), 1.0)), mean)
            deviation = np.where(told, DECLARED_DEVIATION, deviation)
        return mean, deviation

    def left_s(self, view: Snapshot, rows: Ints) -> Floats:
        """Expected time left of jobs that run; those over time are expected to go on for a fifth of what they ran."""
        jobs = view.jobs
        ran, running = jobs.run_s[rows], jobs.rate[rows] > 0
        # Expectations are for the fastest type; a job on a slower one is at it for longer.
        throughput = np.where(jobs.allowed[rows], jobs.throughput[rows], 0.0)
        pace = np.where(running, jobs.rate[rows] / np.maximum(throughput.max(axis=1, initial=0.0), 1e-12), 1.0)
        expected = np.exp(self.expected(view, rows)[0]) / np.clip(pace, PACE_MIN, 1.0 / PACE_MIN)
        # A declared remainder shrinks by itself; an expectation from history is of the whole.
        ahead = expected if self.declared else expected - ran
        return np.maximum(ahead, OVERTIME * ran + 60.0)

    def kept_apart(self) -> float:
        """Part of its speed that a gang keeps on several machines, beyond what is stated for it."""
        total, count = self.apart
        return float(np.exp(min((total + APART_PRIOR_JOBS * APART_PRIOR) / (count + APART_PRIOR_JOBS), 0.0)))

    def observe(self, view: Snapshot) -> None:
        """Note how fast jobs run that have started, or whose speed has changed, since the last decision."""
        jobs, cluster = view.jobs, view.cluster
        news = []
        for row in np.flatnonzero(jobs.holding & (jobs.rate > 0)).tolist():
            job, rate = jobs.id(row), float(jobs.rate[row])
            if job in self.running and abs(rate - self.running[job][2]) > RATE_NEWS * rate:
                new = self.running[job][2] == 0.0
                self.running[job][2] = rate
                news.append((row, job, rate, new))
        for row, job, rate, new in news[-self.history.kernel.history :]:  # more than that would be forgotten at once
            allocation = jobs.allocation(row)
            if allocation is None or allocation.accelerator < 0:
                continue
            usual = jobs.rate_at(
                row, allocation.accelerator, allocation.workers, allocation.servers, spread=allocation.spread
            )
            if not usual > 0:
                continue
            if new and allocation.spread:
                self.seen_apart(float(np.log(rate / usual)) - self.history.overall())
            own = np.zeros(len(cluster.nodes), np.int64)
            for part in allocation.parts:
                own[part.node] = len(part.devices)
            throughput = np.where(jobs.allowed[row], jobs.throughput[row], 0.0)
            speed = (throughput / max(float(throughput.max()), 1e-12))[cluster.type_of]
            need = -(-int(jobs.workers[row]) * int(jobs.worker_gpu_milli[row]) // GPU_MILLI)
            gpus = cluster.gpus * view.up
            free = (view.free_capacity.whole * view.up).astype(np.int64)
            psi = walk_features(phi_of(speed, free, own * view.up, gpus, need), cluster.rack_of, self.history.kernel)
            self.history.add(job, jobs.spec(row).model, np.flatnonzero(own).tolist(), psi, rate / usual)

    def seen_apart(self, log_speed: float) -> None:
        total, count = self.apart
        kept = min(1.0, (APART_JOBS_MAX - 1.0) / max(count, 1.0))
        self.apart = [kept * total + log_speed, kept * count + 1.0]

    def to_json(self) -> dict[str, Any]:
        return {"groups": self.groups, "running": self.running, "seen": self.history.to_json(), "apart": self.apart}


def _history(kept: Any) -> dict[str, Any]:
    """What was remembered of speeds; an earlier version kept a list of jobs in another form, which is forgotten."""
    return kept if isinstance(kept, dict) else {}


def group_of(view: Snapshot, row: int) -> str:
    """Jobs of one team, model and size are taken to last alike."""
    spec = view.jobs.spec(row)
    return f"{spec.entity}/{spec.model}/{spec.gpus:g}"
