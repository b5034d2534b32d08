"""A seeded plan of misfortune: unreliable reports, outages, failing launches, slow stops, engine crashes.

Faults happen until `until_ms`, then never again, so that a sound engine must bring everything to its end.
Every draw comes from one generator in the order of the run, so a seed replays exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from trainmaster.model import event as ev
from trainmaster.model.job import JobId
from trainmaster.model.lease import LeaseRule
from trainmaster.sim.backend import SimulatedBackend


@dataclass(frozen=True)
class FaultRates:
    """How bad it is. Probabilities per report, command or step; means in milliseconds."""

    until_ms: int
    report_lost: float
    report_twice: float
    report_late: float
    late_ms_max: int
    launch_fails: float
    stop_is_slow: float
    slow_stop_ms_max: int
    engine_crash: float
    down_ms_max: int
    outage_mean_ms: int
    """Mean time between outages somewhere in the cluster."""
    job_crash_mean_ms: int


def draw_rates(rng: np.random.Generator) -> FaultRates:
    """Some worlds are calm, some are cruel."""
    cruelty = float(rng.choice([0.3, 1.0, 2.0]))
    return FaultRates(
        until_ms=int(rng.integers(150_000, 500_000)),
        report_lost=0.06 * cruelty * float(rng.random()),
        report_twice=0.10 * cruelty * float(rng.random()),
        report_late=0.20 * cruelty * float(rng.random()),
        late_ms_max=int(rng.choice([200, 5_000, 45_000])),
        launch_fails=0.06 * cruelty * float(rng.random()),
        stop_is_slow=0.3,
        slow_stop_ms_max=int(rng.choice([1_000, 20_000])),
        engine_crash=0.03 * cruelty * float(rng.random()),
        down_ms_max=int(rng.choice([1, 5_000, 60_000])),
        outage_mean_ms=int(rng.integers(25_000, 120_000) / cruelty),
        job_crash_mean_ms=int(rng.integers(60_000, 400_000) / cruelty),
    )


class CrashPoint(StrEnum):
    """Where the engine's process dies within a step."""

    BEFORE_COMMIT = "before commit"
    AFTER_COMMIT = "between commit and dispatch"
    MID_DISPATCH = "in the middle of dispatch"


@dataclass(frozen=True)
class Misfortune:
    """Something that befalls the world at a time of its own."""

    at_ms: int
    kind: str
    node: int = -1
    renewed_ago_ms: int = 0


class Faults:
    """Draws misfortune and inflicts it on a backend."""

    def __init__(
        self, rates: FaultRates, rng: np.random.Generator, backend: SimulatedBackend, lease: LeaseRule
    ) -> None:
        self.rates = rates
        self.rng = rng
        self.backend = backend
        self.lease = lease
        self.blamed: dict[JobId, int] = {}
        """Faults that count against a job: starts that failed by its own doing, and crashes."""
        self.agenda: list[Misfortune] = []
        self._schedule("outage", rates.outage_mean_ms, 0)
        self._schedule("job-crash", rates.job_crash_mean_ms, 0)
        backend.channel = self.channel
        backend.launch_fails = self._launch_fails
        backend.set_stop_delay(self._stop_delay_ms)
        for node in range(len(backend.cluster.nodes)):
            # Clocks may differ, but only as far as the lease rule allows for.
            backend.clock_drift[node] = lease.drift * float(rng.uniform(-1.0, 1.0))

    @property
    def over(self) -> bool:
        return self.backend.now_ms >= self.rates.until_ms

    @property
    def next_ms(self) -> int:
        return self.agenda[0].at_ms if self.agenda else self.rates.until_ms

    def channel(self, _: ev.Event) -> list[int]:
        """When a report arrives: never, once, twice; now or late (so that later ones overtake it)."""
        if self.over:
            return [0]
        rates, rng = self.rates, self.rng
        copies = 0 if rng.random() < rates.report_lost else 1 + int(rng.random() < rates.report_twice)
        return [
            int(rng.integers(1, rates.late_ms_max)) if rng.random() < rates.report_late else 0 for _ in range(copies)
        ]

    def _launch_fails(self, job_id: JobId) -> bool:
        fails = not self.over and bool(self.rng.random() < self.rates.launch_fails)
        if fails:
            self.blamed[job_id] = self.blamed.get(job_id, 0) + 1
        return fails

    def _stop_delay_ms(self) -> int:
        if not self.over and self.rng.random() < self.rates.stop_is_slow:
            return int(self.rng.integers(1, self.rates.slow_stop_ms_max + 1))
        return self.backend.options.stop_ms

    def crash_point(self) -> CrashPoint | None:
        """Whether the engine's process dies in this step, and where."""
        if self.over or self.rng.random() >= self.rates.engine_crash:
            return None
        return tuple(CrashPoint)[int(self.rng.integers(len(CrashPoint)))]

    def down_ms(self) -> int:
        return int(self.rng.integers(0, self.rates.down_ms_max))

    # -- the agenda ----------------------------------------------------------------------------------

    def _schedule(self, kind: str, mean_ms: int, after_ms: int) -> None:
        at_ms = after_ms + 1 + int(self.rng.exponential(mean_ms))
        if at_ms < self.rates.until_ms:
            self._add(Misfortune(at_ms, kind))

    def _add(self, item: Misfortune) -> None:
        self.agenda.append(item)
        self.agenda.sort(key=lambda m: (m.at_ms, m.kind, m.node))

    def act(self, now_ms: int) -> list[Misfortune]:
        """Inflict what is due; returns it for the story."""
        done: list[Misfortune] = []
        while self.agenda and self.agenda[0].at_ms <= now_ms:
            item = self.agenda.pop(0)
            done.extend(self._inflict(item))
        return done

    def _inflict(self, item: Misfortune) -> list[Misfortune]:
        backend = self.backend
        match item.kind:
            case "outage":
                self._schedule("outage", self.rates.outage_mean_ms, item.at_ms)
                return [self._outage(item.at_ms)]
            case "job-crash":
                self._schedule("job-crash", self.rates.job_crash_mean_ms, item.at_ms)
                names = sorted(backend.running)
                if names:
                    name = names[int(self.rng.integers(len(names)))]
                    if backend.crash(name):
                        self.blamed[name] = self.blamed.get(name, 0) + 1
                        return [item]
                return []
            case "power-on":
                backend.power_on(item.node)
            case "heal":
                backend.heal(item.node)
        return [item]

    def _outage(self, now_ms: int) -> Misfortune:
        """A power cut or a pulled cable, for a while: a blink, or longer than any lease."""
        rng = self.rng
        node = int(rng.integers(len(self.backend.cluster.nodes)))
        length_ms = int(rng.choice([3_000, 15_000, 60_000]) * (0.5 + rng.random()))
        back_ms = min(now_ms + length_ms, self.rates.until_ms)
        if rng.random() < 0.4:
            self.backend.power_off(node)
            self._add(Misfortune(back_ms, "power-on", node))
            return Misfortune(now_ms, "power-off", node)
        ago_ms = int(rng.integers(0, self.lease.lease_ms // 3))
        self.backend.cut(node, ago_ms)
        self._add(Misfortune(back_ms, "heal", node))
        return Misfortune(now_ms, "cut", node, ago_ms)

    def end(self) -> None:
        """The faults are over: power and network are back everywhere."""
        self.agenda.clear()
        for node in range(len(self.backend.cluster.nodes)):
            self.backend.power_on(node)
            self.backend.heal(node)
