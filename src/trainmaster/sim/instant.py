"""The part of the simulated world in which starting and stopping take no time, kept by columns.

`PassageBackend` keeps an object for each incarnation and an event for each answer. Where no fault, delay, noise,
interference or report is asked for, nothing but the job's work and speed matters, and whole plans are carried out in
one pass here. Incarnations change hands when a plan is carried out the other way (`hand_back`, `adopt`).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from numba import njit

from trainmaster.model import event as ev
from trainmaster.model.allocation import Allocation
from trainmaster.model.gangs import HEAD, KIND, PART, SHARE, AllocationColumn, gang_totals
from trainmaster.model.job import JobSpec
from trainmaster.model.units import NEVER_MS
from trainmaster.sim.incarnation import Incarnation
from trainmaster.sim.truth import TruthOptions

if TYPE_CHECKING:
    from trainmaster.sim.passage_backend import PassageBackend

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
REFUSED = -1


def is_instant(options: TruthOptions) -> bool:
    """Whether starts and stops are answered at once and nothing else happens. Restarts may cost time."""
    delays = (options.launch_ms, options.stop_ms, options.exit_ms, options.report_ms, options.report_period_ms)
    varied = (options.interference, options.noise, options.node_variation)
    return not any(delays) and not options.node_mtbf_ms and not options.loss_period_ms and not any(varied)


class InstantWorld:
    """Incarnations by slot of the engine's job columns: true work, speed and end."""

    def __init__(self, backend: PassageBackend) -> None:
        self.backend = backend
        self.next_ms: int = NEVER_MS
        n_types = len(backend.cluster.types)
        self._specs: list[JobSpec | None] = []
        """The job of a slot as far as it is kept here; None: it is the backend's."""
        self._work: Floats = np.zeros(0)
        """At `as_of_ms` while it runs; what is saved while it does not."""
        self._total: Floats = np.zeros(0)
        self._rate: Floats = np.zeros(0)
        self._as_of_ms, self._finish_ms, self._order, self._generation = (np.zeros(0, np.int64) for _ in range(4))
        self._live: Ints = np.zeros(0, np.int64)
        """Slots that run, in no order: the first `_n_live`."""
        self._n_live = 0
        self._speed: Floats = np.zeros((0, 2, n_types))
        """Steps per second at the reference size, on one node and on several, by type."""

    # -- commands ------------------------------------------------------------------------------------

    def exchange(
        self,
        now_ms: int,
        last_seq: int,
        specs: Sequence[JobSpec | None],
        stops: Ints,
        launches: Ints,
        first: Ints,
        flat: Ints,
        generation: Ints,
        answered: int,
    ) -> tuple[Floats, Floats, Ints] | None:
        """Stop and launch (see `trainmaster.engine.ports.Immediate`)."""
        self.make_room(len(specs))
        for slots in (stops, launches):
            for slot in slots.tolist():
                self.adopt(slot, specs[slot])
        backend = self.backend
        out = exchange_gangs(
            now_ms, backend.options.restart_cost_ms, stops, launches, first, flat, generation, self._generation,
            self._work, self._total, self._rate, self._as_of_ms, self._finish_ms, self._order, self._live,
            self._n_live, self._speed, backend._counter, backend.lost_gpu_s,
        )  # fmt: skip
        n_live, backend._counter, backend.lost_gpu_s, next_ms, saved, work_at_start, productive_ms = out
        self.next_ms = int(next_ms)
        if n_live == REFUSED:
            return None
        self._n_live = n_live
        backend.seen_up_to = max(backend.seen_up_to, last_seq)
        for k in range(answered, len(launches)):
            slot = int(launches[k])
            spec = self._specs[slot]
            assert spec is not None
            begun = ev.Started(spec.id, int(self._generation[slot]), float(work_at_start[k]), int(productive_ms[k]))
            backend._report(begun)
        return saved, work_at_start, productive_ms

    def hand_back(self, slots: Sequence[int], allocations: AllocationColumn) -> None:
        """These jobs are the backend's from now on, running or not."""
        for slot in slots:
            spec = self._specs[slot] if slot < len(self._specs) else None
            if spec is None:
                continue
            self._specs[slot] = None
            self.backend.saved[spec.id] = float(self._work[slot])
            self.backend.generations[spec.id] = int(self._generation[slot])
            if slot in self._live[: self._n_live]:
                allocation = allocations[slot]
                assert allocation is not None
                self._revive(slot, spec, allocation)
        self.next_ms = int(soonest(self._live, self._n_live, self._finish_ms))

    def _revive(self, slot: int, spec: JobSpec, allocation: Allocation) -> None:
        nodes = {part.node for part in allocation.parts}
        work, finish_ms, order = float(self._work[slot]), int(self._finish_ms[slot]), int(self._order[slot])
        incarnation = Incarnation(
            spec, int(self._generation[slot]), allocation, 0, work, work, int(self._as_of_ms[slot]),
            float(self._rate[slot]), nodes, started=True, epoch=1, finish_ms=finish_ms, finish_order=order,
        )  # fmt: skip
        self.backend.running[spec.id] = incarnation
        self.backend.launched_on[spec.id] = frozenset(nodes)
        if finish_ms < NEVER_MS:
            heapq.heappush(self.backend._heap, (finish_ms, order, "finish", (incarnation, 1)))
        self._n_live = _removed(slot, self._live, self._n_live)

    def adopt(self, slot: int, spec: JobSpec | None) -> None:
        """Take over a job that is new here, or that was carried out the other way until now."""
        if self._specs[slot] is spec:
            return
        assert spec is not None
        before, self._specs[slot] = self._specs[slot], spec
        if before is not None and before.id == spec.id:
            return  # the same job with another range of sizes: nothing that matters here
        total = spec.work_total
        self._total[slot] = math.nan if total is None else total
        self._work[slot] = self.backend.saved.get(spec.id, 0.0)
        self._generation[slot] = self.backend.generations.get(spec.id, 0)
        truth = self.backend.truth
        for kind, name in enumerate(self.backend.cluster.types):
            self._speed[slot, :, kind] = truth.reference_rate(spec, name, False), truth.reference_rate(spec, name, True)
        incarnation = self.backend.running.pop(spec.id, None)
        if incarnation is not None:
            incarnation.epoch += 1  # its end is no longer the backend's affair
            self._work[slot], self._rate[slot] = incarnation.work, incarnation.rate
            self._as_of_ms[slot] = incarnation.as_of_ms
            self._finish_ms[slot], self._order[slot] = incarnation.finish_ms, incarnation.finish_order
            self._live[self._n_live] = slot
            self._n_live += 1
            self.next_ms = min(self.next_ms, incarnation.finish_ms)

    def make_room(self, capacity: int) -> None:
        extra = capacity - len(self._specs)
        if extra <= 0:
            return
        self._specs.extend([None] * extra)
        for name in ("_work", "_total", "_rate", "_as_of_ms", "_finish_ms", "_order", "_generation", "_live", "_speed"):
            old = getattr(self, name)
            setattr(self, name, np.concatenate([old, np.zeros((extra, *old.shape[1:]), old.dtype)]))

    # -- passages (see `trainmaster.sim.passage`) ----------------------------------------------------

    @property
    def arrays(self) -> tuple[Ints | Floats, ...]:
        """What a compiled pass needs to let this world go on."""
        return (
            self._work, self._total, self._rate, self._as_of_ms, self._finish_ms, self._order, self._generation,
            self._live, self._speed,
        )  # fmt: skip

    @property
    def n_live(self) -> int:
        return self._n_live

    def running_slots(self) -> Ints:
        return self._live[: self._n_live]

    def begun(self, slot: int) -> tuple[float, int]:
        """With how much work done its present incarnation began, and when it gets on with it."""
        return float(self._work[slot]), int(self._as_of_ms[slot])

    def went_on(self, n_live: int, next_ms: int, specs: Sequence[JobSpec | None]) -> None:
        """A compiled pass has let this world go on; all jobs are its own."""
        self._n_live, self.next_ms = n_live, next_ms
        self._specs[: len(specs)] = specs

    # -- time ----------------------------------------------------------------------------------------

    def move_due(self, now_ms: int) -> None:
        """Put the ends that are due among the backend's, where they take their turn."""
        due, self._n_live, next_ms = _take_due(self._live, self._n_live, self._finish_ms, now_ms)
        self.next_ms = int(next_ms)
        for slot in due.tolist():
            at_ms, order = int(self._finish_ms[slot]), int(self._order[slot])
            heapq.heappush(self.backend._heap, (at_ms, order, "end", slot))

    def end(self, slot: int) -> None:
        """The job of a slot has done its work."""
        spec = self._specs[slot]
        assert spec is not None
        assert spec.work_total is not None
        self._specs[slot] = None
        self.backend.saved[spec.id] = spec.work_total
        self.backend._report(ev.Exited(spec.id, int(self._generation[slot]), 0, spec.work_total))


@njit(cache=True)
def _removed(slot, live, n_live):
    for k in range(n_live):
        if live[k] == slot:
            live[k] = live[n_live - 1]
            return n_live - 1
    return n_live


@njit(cache=True)
def soonest(live, n_live, finish_ms):
    soonest = np.int64(NEVER_MS)
    for k in range(n_live):
        soonest = min(soonest, finish_ms[live[k]])
    return soonest


@njit(cache=True)
def _take_due(live, n_live, finish_ms, now_ms):
    """(slots that end until now, how many stay, when the next of those ends)."""
    due = np.empty(n_live, np.int64)
    n = kept = 0
    for k in range(n_live):
        if finish_ms[live[k]] <= now_ms:
            due[n] = live[k]
            n += 1
        else:
            live[kept] = live[k]
            kept += 1
    return due[:n], kept, soonest(live, kept, finish_ms)


@njit(cache=True)
def _work_now(slot, now_ms, work, total, rate, as_of_ms):
    """As `PassageBackend._settle`."""
    done = work[slot]
    if now_ms > as_of_ms[slot]:
        done += rate[slot] * (now_ms - as_of_ms[slot]) / 1000
        if total[slot] < done:
            done = total[slot]
    return done


@njit(cache=True)
def exchange_gangs(
    now_ms, restart_cost_ms, stops, launches, first, flat, believed_generation, generation, work, total, rate,
    as_of_ms, finish_ms, order, live, n_live, speed, counter, lost_gpu_s,
):  # fmt: skip
    """Settle and stop, then launch, in the order of the commands. Refused (`REFUSED`, nothing changed) when a job
    would end at the very moment of its start: then the order of events matters."""
    runs = np.zeros(work.size, np.bool_)
    for k in range(n_live):
        runs[live[k]] = True
    saved, at_start = np.empty(stops.size), np.empty(launches.size)
    productive, ends = np.empty(launches.size, np.int64), np.empty(launches.size, np.int64)
    speeds = np.empty(launches.size)
    for i in range(launches.size):
        s, at = launches[i], first[i]
        at_start[i] = _work_now(s, now_ms, work, total, rate, as_of_ms) if runs[s] else work[s]
        productive[i] = now_ms + (restart_cost_ms if believed_generation[s] > 0 else 0)
        hosts = 0
        for part in range(flat[at]):
            hosts += int(flat[at + HEAD + PART * part + 1] > 0)
        speeds[i] = speed[s, 1 if hosts > 1 else 0, flat[at + KIND]]
        ends[i] = NEVER_MS
        if total[s] == total[s] and speeds[i] > 0.0:
            left_ms = -(-(total[s] - at_start[i]) * 1000 // speeds[i])
            ends[i] = productive[i] + max(np.int64(left_ms), 0)
            if ends[i] <= now_ms:
                return REFUSED, counter, lost_gpu_s, soonest(live, n_live, finish_ms), saved, at_start, productive
    for i in range(stops.size):
        s = stops[i]
        work[s] = saved[i] = _work_now(s, now_ms, work, total, rate, as_of_ms)
        n_live = _removed(s, live, n_live)
    for i in range(launches.size):
        s, at = launches[i], first[i]
        if believed_generation[s] > 0:
            _, _, devices = gang_totals(flat, at)
            lost_gpu_s += devices * flat[at + SHARE] / 1000 * restart_cost_ms / 1000
        generation[s] = believed_generation[s] + 1
        work[s], as_of_ms[s], rate[s], finish_ms[s] = at_start[i], productive[i], speeds[i], ends[i]
        if ends[i] < NEVER_MS:
            counter += 1
            order[s] = counter
        live[n_live] = s
        n_live += 1
    return n_live, counter, lost_gpu_s, soonest(live, n_live, finish_ms), saved, at_start, productive
