# cython: cdivision=True
"""Passes over machines and pending jobs, compiled (see `features`, `holding`, `patience`)."""

from __future__ import annotations

from trainmaster.core.int_list import Bools, Floats, Ints, new_floats, new_ints

NEVER_S = float("inf")


def earliest(
    need: int,
    whole_only: bool,
    speed: Floats,
    free_now: Ints,
    type_of: Ints,
    part_machine: Ints,
    part_gpus: Ints,
    part_left_s: Floats,
) -> tuple[float, int, int, int]:
    """Running jobs end as expected, one after the other, until there is room; and those that end with the one that
    makes it, since a gang comes free at once."""
    free, room = new_ints(len(free_now)), new_ints(len(speed))
    best = -1
    for k in range(len(free_now)):
        free[k] = free_now[k]
        if speed[type_of[k]] <= 0.0:
            continue
        if free[k] >= need:
            return 0.0, k, type_of[k], free[k] - need
        room[type_of[k]] += free[k]
    for t in range(len(speed)):
        if best < 0 or room[t] > room[best]:
            best = t
    if not whole_only and room[best] >= need:
        return 0.0, -1, best, room[best] - need
    when = NEVER_S
    machine = found = -1
    for p in range(len(part_machine)):
        if part_left_s[p] > when:
            break
        k: int = part_machine[p]
        free[k] += part_gpus[p]
        if speed[type_of[k]] <= 0.0:
            continue
        room[type_of[k]] += part_gpus[p]
        if found < 0 and free[k] >= need:
            when, machine, found = part_left_s[p], k, type_of[k]
        elif found < 0 and not whole_only and room[type_of[k]] >= need:
            when, found = part_left_s[p], type_of[k]
    if found < 0:
        return NEVER_S, -1, -1, 0
    return when, machine, found, (free[machine] if machine >= 0 else room[found]) - need


def startable(
    need: Ints,
    whole_only: Bools,
    speed: Floats,
    counted_s: Floats,
    free: Ints,
    type_of: Ints,
    held: Bools,
    until_s: float,
    spare: int,
    out: Bools,
) -> None:
    """Mark the pending jobs of which each, alone, could start now."""
    room = new_ints(speed.shape[1])
    for row in range(len(need)):
        for t in range(speed.shape[1]):
            room[t] = 0
        out[row] = False
        for k in range(len(free)):
            t = type_of[k]
            if speed[row, t] <= 0.0:
                continue
            if held[k] and need[row] > spare and counted_s[row] > until_s * speed[row, t]:
                continue
            if free[k] >= need[row]:
                out[row] = True
                break
            room[t] += free[k]
            if not whole_only[row] and room[t] >= need[row]:
                out[row] = True
                break
        if need[row] <= 0 and not whole_only[row]:
            out[row] = True


def open_types(
    order: Ints, need: Ints, time_s: Floats, speed: Floats, free_at: Floats, count: Ints, later: float, out: Bools
) -> None:
    """Mark the types on which each pending job may start now: see `patience`. `free_at` is used up."""
    n_types = speed.shape[1]
    for position in range(len(order)):
        row = order[position]
        gpus = max(need[row], 1)
        best = NEVER_S
        chosen = now = -1
        for t in range(n_types):
            if speed[row, t] > 0.0 and gpus <= count[t]:
                end = free_at[t, gpus - 1] + time_s[row] / speed[row, t]
                if end < best:
                    best, chosen = end, t
        for t in range(n_types):
            if speed[row, t] <= 0.0:
                continue
            out[row, t] = chosen < 0 or time_s[row] / speed[row, t] <= later * best
            if (
                out[row, t]
                and gpus <= count[t]
                and free_at[t, gpus - 1] <= 0.0
                and (now < 0 or speed[row, t] > speed[row, now])
            ):
                now = t
        if now >= 0:
            chosen = now
        if chosen >= 0:
            end = free_at[chosen, gpus - 1] + time_s[row] / speed[row, chosen]
            # The first GPUs are taken until then; of the rest, already sorted, what is earlier moves before them.
            k = gpus
            while k < count[chosen] and free_at[chosen, k] < end:
                free_at[chosen, k - gpus] = free_at[chosen, k]
                k += 1
            for i in range(k - gpus, k):
                free_at[chosen, i] = end


class Machines:
    """GPUs, free ones, types and racks of the machines, for `pairs`."""

    def __init__(
        self, gpus: Ints, free: Ints, type_of: Ints, rack_of: Ints, jobs_on: Ints, log_left: Floats, n_types: int
    ) -> None:
        self.gpus, self.free, self.type_of, self.rack_of = gpus, free, type_of, rack_of
        self.jobs_on, self.log_left = jobs_on, log_left
        racks = int(rack_of.max()) + 1 if len(rack_of) else 0
        self.free_of_type, self.all_of_type = new_floats(n_types), new_floats(n_types)
        self.free_of_rack, self.all_of_rack = new_floats(racks), new_floats(racks)
        self._sum()

    def _sum(self) -> None:
        for k in range(self.gpus.shape[0]):
            self.free_of_type[self.type_of[k]] += self.free[k]
            self.all_of_type[self.type_of[k]] += self.gpus[k]
            self.free_of_rack[self.rack_of[k]] += self.free[k]
            self.all_of_rack[self.rack_of[k]] += self.gpus[k]
        free = total = 0.0
        for t in range(self.free_of_type.shape[0]):
            free += self.free_of_type[t]
            total += self.all_of_type[t]
        self.free_in_all = free / max(total, 1.0)

    def pairs(self, speed: Floats, need: int, log_time: float, log_need: float, pressure: float, out: Floats) -> None:
        """Features of one job beside each machine, in the order of `PAIR_FEATURES`."""
        for k in range(self.gpus.shape[0]):
            t, rack = self.type_of[k], self.rack_of[k]
            whole, over = float(max(self.gpus[k], 1)), self.free[k] - need
            out[k, 0] = 1.0 if over >= 0 else 0.0
            out[k, 1] = min(max(over / whole, -1.0), 1.0)
            out[k, 2] = 1.0 if over == 0 else 0.0
            out[k, 3] = self.free[k] / whole
            out[k, 4] = 1.0 - out[k, 3]
            out[k, 5] = speed[t]
            out[k, 6] = (log_time - 8.0) / 2.0
            out[k, 7] = log_need
            if self.jobs_on[k] > 0:
                # Whether the others on the machine end long after this job would: those beside it stay.
                out[k, 8] = min(max(self.log_left[k] - log_time, -3.0), 3.0) / 3.0
            out[k, 9] = self.free_in_all
            out[k, 10] = pressure
            out[k, 11] = self.free_of_type[t] / max(self.all_of_type[t], 1.0)
            out[k, 12] = self.free_of_rack[rack] / max(self.all_of_rack[rack], 1.0)
            out[k, 13] = 1.0 if self.free[k] == self.gpus[k] else 0.0
