"""Two jobs on the same GPUs: how the companions that a round has chosen are brought together.

A pair is one more unit of the round, beside its two jobs alone: its priority is its share over what it has received as
a pair, and a job is never taken twice (Gavel, OSDI'20, sections 3.1 and 5).
"""

from __future__ import annotations

import numpy as np

from trainmaster.core.arrays import Bools
from trainmaster.model.job import PhaseCode
from trainmaster.model.plan_builder import HALF_MILLI, PlanBuilder
from trainmaster.model.snapshot import Snapshot
from trainmaster.policies.gavel.pair_state import PairState
from trainmaster.policies.gavel.rounds import Rounds


def halved(view: Snapshot) -> Bools:
    """Jobs that have less of their devices than they asked for, because others have the rest, or had it."""
    jobs = view.jobs
    return np.asarray(jobs.held_gpu_milli < jobs.workers * jobs.worker_gpu_milli)


def take_whole_devices(view: Snapshot, builder: PlanBuilder) -> None:
    """Give running jobs whose companion has gone the whole of their devices again."""
    for row in np.flatnonzero(halved(view) & (view.jobs.phase == PhaseCode.RUNNING)).tolist():
        if builder.allocation(row) is not None:
            builder.reshare(row, int(view.jobs.share_milli[row]))


def assign(view: Snapshot, builder: PlanBuilder, rounds: Rounds, book: PairState) -> None:
    """Bring the jobs that may be changed to their chosen types and companions; a job that finds no room gets -1.

    Pairs that run together stay. Else the one of a pair that is on the type stays, and the other comes to it.
    """
    n = len(view.jobs)
    gpu_type, pair_of = np.asarray(rounds.gpu_type_of)[:n], np.asarray(rounds.pair_of)[:n]
    order = np.asarray(rounds.order.values)[:n]
    rows = np.asarray(rounds.movable)[:n].view(np.bool_)
    held = _Held(view, builder, rows)
    pairs = list(dict.fromkeys(p for p in pair_of[order].tolist() if p >= 0))
    members = {pair: (int(book.rows[pair, 0]), int(book.rows[pair, 1])) for pair in pairs}
    together = [p for p in pairs if held.stay_together(*members[p], int(gpu_type[members[p][0]]))]
    alone = [row for row in order.tolist() if rows[row] and gpu_type[row] >= 0 and pair_of[row] < 0]
    stays = {row for row in alone if held.stay(row, int(gpu_type[row]))}
    stays.update(row for pair in together for row in members[pair])
    host: dict[int, int] = {}
    for pair in pairs:
        if pair not in together:
            staying = next((row for row in members[pair] if held.stay(row, int(gpu_type[row]))), None)
            if staying is not None:
                host[pair] = staying
                stays.add(staying)
    for row in order.tolist():
        if rows[row] and row not in stays and builder.allocation(row) is not None:
            builder.release(row)
    for pair in pairs:
        if pair in host:
            a, b = members[pair]
            guest = b if host[pair] == a else a
            if not builder.place_beside(guest, host[pair]):
                gpu_type[guest] = pair_of[guest] = pair_of[host[pair]] = -1
    take_whole_devices(view, builder)
    for row in order.tolist():
        if not rows[row] or gpu_type[row] < 0 or builder.allocation(row) is not None:
            continue
        pair = int(pair_of[row])
        placed = builder.place(row, accelerator=int(gpu_type[row]))
        if not placed:
            gpu_type[row] = pair_of[row] = -1
        if pair >= 0:
            a, b = members[pair]
            guest = b if row == a else a
            if not placed or not builder.place_beside(guest, row):
                gpu_type[guest] = pair_of[guest] = pair_of[row] = -1


class _Held:
    """Who may stay on the devices that two have now: the first to ask, and its companion."""

    def __init__(self, view: Snapshot, builder: PlanBuilder, rows: Bools) -> None:
        self.jobs, self.builder, self.rows = view.jobs, builder, rows
        self._claimed: set[tuple[int, int]] = set()

    def _devices(self, row: int, gpu_type: int) -> list[tuple[int, int]] | None:
        """Devices that others may have too; None when the job is not on this type."""
        allocation = self.builder.allocation(row)
        if allocation is None or allocation.accelerator != gpu_type or not self.rows[row]:
            return None
        if allocation.share_milli >= int(self.jobs.share_milli[row]):
            return []
        return [(part.node, device) for part in allocation.parts for device in part.devices]

    def stay(self, row: int, gpu_type: int) -> bool:
        devices = self._devices(row, gpu_type)
        if devices is None or any(device in self._claimed for device in devices):
            return False
        self._claimed.update(devices)
        return True

    def stay_together(self, a: int, b: int, gpu_type: int) -> bool:
        one, two = self.builder.allocation(a), self.builder.allocation(b)
        if one is None or two is None or one.parts != two.parts or one.share_milli != HALF_MILLI:
            return False
        return self._devices(b, gpu_type) is not None and self.stay(a, gpu_type)
