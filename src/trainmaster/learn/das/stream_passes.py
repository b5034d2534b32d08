# cython: cdivision=True
"""The world of DAS's streams, compiled: the next event, true rates, and what an order of jobs would cost."""

from __future__ import annotations

from trainmaster.core.int_list import Floats, Ints, new_ints

NEVER_S = float("inf")


class StreamWorld:
    """Views of the arrays of `World`: jobs first, machines second."""

    def __init__(
        self,
        state: Ints,
        submit: Floats,
        rate: Floats,
        left: Floats,
        end: Floats,
        held: Ints,
        held_type: Ints,
        gpus: Ints,
        free: Ints,
        type_speed: Floats,
        node_speed: Floats,
    ) -> None:
        self.state, self.submit, self.rate, self.left, self.end = state, submit, rate, left, end
        self.held, self.held_type, self.gpus, self.free = held, held_type, gpus, free
        self.type_speed, self.node_speed = type_speed, node_speed

    def next_event(self, now: float, touched: Ints) -> float:
        """Move to the next arrival or end, everything that falls on that instant included. Returns the time; marks
        the machines on which somebody ended."""
        when = NEVER_S
        for j in range(self.state.shape[0]):
            if self.state[j] == 3:
                when = min(when, self.submit[j])
            elif self.state[j] == 1:
                when = min(when, now + self.left[j] / self.rate[j])
        passed = when - now
        for j in range(self.state.shape[0]):
            if self.state[j] == 3 and self.submit[j] <= when:
                self.state[j] = 0
            elif self.state[j] == 1:
                self.left[j] -= passed * self.rate[j]
                if self.left[j] <= 1e-9 * max(1.0, passed * self.rate[j]):
                    self.left[j] = 0.0
                    self.state[j] = 2
                    self.end[j] = when
                    for k in range(self.free.shape[0]):
                        if self.held[j, k]:
                            self.free[k] += self.held[j, k]
                            touched[k] = 1
                            self.held[j, k] = 0
        return when

    def update_rates(
        self, touched: Ints, sensitivity: Floats, kind: Ints, luck: Floats, interference: float, spread_kept: float
    ) -> None:
        """True rates of the jobs that have a part on a touched machine (as `core.sim.world`)."""
        for j in range(self.state.shape[0]):
            if self.state[j] != 1 or not self._beside(j, touched):
                continue
            use = 0.0
            slowest = NEVER_S
            parts = 0
            for k in range(self.gpus.shape[0]):
                if self.held[j, k]:
                    parts += 1
                    use = max(use, (self.gpus[k] - self.free[k] - self.held[j, k]) / float(self.gpus[k]))
                    slowest = min(slowest, self.node_speed[k])
            speed = self.type_speed[self.held_type[j]] * slowest * luck[j]
            if parts > 1:
                speed *= spread_kept
            self.rate[j] = speed / (1.0 + interference * sensitivity[kind[j]] * use)

    def _beside(self, j: int, touched: Ints) -> bool:
        for k in range(self.gpus.shape[0]):  # noqa: SIM110 (compiled: no generator)
            if self.held[j, k] and touched[k]:
                return True
        return False


class ListSchedule:
    """Jobs started in an order as GPUs come free, the fastest type with room first; only GPUs are counted. A job that
    does not fit is passed by those that do."""

    def __init__(self, need: Ints, run_h: Floats, type_speed: Floats, price: Floats) -> None:
        self.need, self.run_h, self.type_speed, self.price = need, run_h, type_speed, price
        self.hours = self.dollars = 0.0

    def play(self, order: Ints, free: Ints, end_type: Ints, end_gpus: Ints, ends: Floats, live: int) -> None:
        """`hours`: sum of completion times; `dollars`: sum of fees. `free` and the ends (of `live` running jobs, with
        room for all) are used up."""
        n = len(order)
        placed = new_ints(n)
        now = 0.0
        left = n
        self.hours = self.dollars = 0.0
        while True:
            for i in range(n):
                if placed[i]:
                    continue
                j: int = order[i]
                best = self._fastest(self.need[j], free)
                if best >= 0:
                    took = self.run_h[j] / self.type_speed[best]
                    free[best] -= self.need[j]
                    placed[i] = 1
                    left -= 1
                    ends[live], end_type[live], end_gpus[live] = now + took, best, self.need[j]
                    live += 1
                    self.hours += now + took
                    self.dollars += took * self.price[best] * self.need[j]
            if left == 0 or live == 0:
                return
            soonest = 0
            for r in range(1, live):
                if ends[r] < ends[soonest]:
                    soonest = r
            now = ends[soonest]
            free[end_type[soonest]] += end_gpus[soonest]
            live -= 1
            ends[soonest], end_type[soonest], end_gpus[soonest] = ends[live], end_type[live], end_gpus[live]

    def _fastest(self, need: int, free: Ints) -> int:
        best = -1
        for t in range(self.type_speed.shape[0]):
            if free[t] >= need and (best < 0 or self.type_speed[t] > self.type_speed[best]):
                best = t
        return best
