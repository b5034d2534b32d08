"""Whether the members of several gangs fit on the servers of one slot: exact, by depth-first search.

Compiled (`packing.pxd`). Members come largest first, equal ones side by side; equal members go to servers in rising
order, so that one arrangement of them is tried once.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Packing:
    """A search over `free` (servers x resources). `at[k]` is the server of member k once `search` returned 1."""

    def __init__(self, free: Floats, dust: Floats, hosts: Ints, steps_max: int) -> None:
        self.free, self.dust, self.hosts = free, dust, hosts
        self.servers, self.resources = free.shape[0], free.shape[1]
        self.steps_max, self.steps = steps_max, 0

    def search(self, demand: Floats, role: Ints, twin: Ints, at: Ints) -> int:
        """1: fits, 0: does not, -1: `steps_max` reached. `twin[k]`: member k is equal to member k - 1."""
        self.demand, self.role, self.twin, self.at = demand, role, twin, at
        self.steps = 0
        return self._place(0)

    def bound_by(self, total: Floats, least: Floats) -> None:
        """Sums over the members from k on, (members + 1) x (3 resources: of workers, of PS, of both), and the least
        demand of each resource among them: what is left must fit into what is free and can be used at all."""
        self.total, self.least = total, least

    def _place(self, k: int) -> int:
        if k == self.demand.shape[0]:
            return 1
        self.steps += 1
        if self.steps > self.steps_max:
            return -1
        if self._hopeless(k):
            return 0
        first = self.at[k - 1] if self.twin[k] else 0
        result = 0
        for s in range(first, self.servers):
            if self.hosts[self.role[k], s] == 0 or not self._fits(s, k) or self._seen(first, s):
                continue
            for r in range(self.resources):
                self.free[s, r] -= self.demand[k, r]
            self.at[k] = s
            result = self._place(k + 1)
            for r in range(self.resources):
                self.free[s, r] += self.demand[k, r]
            if result != 0:
                return result
        return result

    def _fits(self, s: int, k: int) -> bool:
        for r in range(self.resources):
            if self.demand[k, r] > 0.0 and self.free[s, r] + self.dust[s, r] < self.demand[k, r]:
                return False
        return True

    def _seen(self, first: int, s: int) -> bool:
        """Whether an earlier server is free in the same way, so that trying this one too is in vain."""
        for other in range(first, s):
            same = True
            for r in range(self.resources):
                if self.free[other, r] != self.free[s, r]:
                    same = False
            if same and self.hosts[0, other] == self.hosts[0, s] and self.hosts[1, other] == self.hosts[1, s]:
                return True
        return False

    def _hopeless(self, k: int) -> bool:
        for r in range(self.resources):
            workers, ps, both = 0.0, 0.0, 0.0
            for s in range(self.servers):
                usable = True
                for q in range(self.resources):
                    if self.free[s, q] + self.dust[s, q] < self.least[k, q]:
                        usable = False
                if usable:
                    room = self.free[s, r] + self.dust[s, r]
                    both += room
                    if self.hosts[0, s]:
                        workers += room
                    if self.hosts[1, s]:
                        ps += room
            n = self.resources
            if self.total[k, r] > workers or self.total[k, n + r] > ps or self.total[k, 2 * n + r] > both:
                return True
        return False
