"""The reservation book: what has been promised, whether it still holds, and room for more.

A promise is a reservation that covers the job's remaining work before its deadline. Later arrivals are
booked around the promises, or the promises are rearranged as a whole so that every one of them still
holds; if neither works, the arrival is refused. So nothing promised is broken by a later arrival.
"""

from __future__ import annotations

import numpy as np

from trainmaster.core.arrays import Floats, Ints
from trainmaster.model.job import DeadlineKind, PhaseCode
from trainmaster.model.snapshot import Snapshot
from trainmaster.model.units import GPU_MILLI, NEVER_MS
from trainmaster.policies.deadline import replanning
from trainmaster.policies.deadline import reservation_layout as col
from trainmaster.policies.deadline import reservations as rs
from trainmaster.policies.deadline.feasibility import demand_fits, fastest_rates
from trainmaster.policies.deadline.sizes import size_tables
from trainmaster.policies.deadline.speed_corrections import SpeedCorrections, believe
from trainmaster.policies.deadline.unknowns import probes, unknowns_of

ORDERS = 6
"""Orders tried when promises are rearranged around a newcomer..."""
RESERVES = 300
"""...and about how many reservations that may take: it bounds the time of a decision, not its rightness."""
RETRIES = 16
"""Jobs without a reservation that are tried again in one decision."""


_LATE_WORTH = 1e-6
"""Of a reservation for a later value step, when room is given to those in time."""


def _tries(order: Ints) -> int:
    return min(ORDERS, 1 + RESERVES // max(order.size, 1))


class ReservationBook:
    """Reservations of one decision. `certs[row]` is a reservation (see `reservations`)."""

    def __init__(self, view: Snapshot, confidence: float, admission: bool) -> None:
        self.view = view
        t = view.jobs
        self.now = float(view.now_ms)
        self.tables = size_tables(view)
        kept = view.memo.columns.get("plan")
        self.certs: Floats = np.zeros((len(t), col.WIDTH)) if kept is None else kept.copy()
        self.certs[t.phase == PhaseCode.PAUSED, col.CLASS] = col.NONE
        deadline = t.deadline_ms < NEVER_MS
        hard = t.deadline_kind == DeadlineKind.HARD
        self.unknowns = unknowns_of(view, confidence)
        promised = self.certs[:, col.CLASS] == col.PROMISED
        self.unknown = self.unknowns.any & ~promised & admission
        self.probing = self.unknown & self.unknowns.probing
        # A probe is over when enough is known, or the job has shown nothing for so long.
        self.certs[hard & admission & ~promised & ~self.probing, col.CLASS] = col.NONE
        total = self.unknowns.work_total
        booked = self.certs[:, col.CLASS] > 0
        # One that has done its work and still runs is being taken down, which takes a while too.
        outlived = (self.certs[:, col.FINISH] + col.PAD_MS <= self.now) | (t.work_done >= total)
        overrun = booked & (t.phase == PhaseCode.RUNNING) & outlived
        self.beliefs: SpeedCorrections = believe(view, self.tables, total, confidence, overrun)
        self.jobs = self.beliefs.jobs
        if self.probing.any():
            self.jobs = probes(self.jobs, self.probing, t.run_s)
        self.capacity = self._capacity()
        known = ~np.isnan(total)
        if admission:
            self.is_hard = hard & deadline
            self.is_soft = deadline & ~hard & known
        else:
            self.is_hard = np.zeros(len(t), np.bool_)
            self.is_soft = deadline & known
        self.due: Floats = t.deadline_ms.astype(np.float64)
        self.finish = np.empty(len(t))
        rs.follow(self.now, self.jobs, self.certs, self.finish)
        self.profile = self.build(col.SOFT)
        self.late: list[int] = []
        self._repair()

    def _capacity(self) -> Ints:
        """Milli-GPUs of each type that can be planned with: all that is up, less what may not be taken."""
        t, view = self.view.jobs, self.view
        n_types = len(view.cluster.types)
        held = self.jobs.held * t.worker_gpu_milli
        fixed = (t.preemptible == 0) & (self.certs[:, col.CLASS] == col.NONE) & (self.jobs.held > 0)
        # What stays as it is also blocks the GPUs for which it leaves no CPU or memory.
        held = np.where(fixed, held - self.jobs.held * self.jobs.each, held)
        usable = self.jobs.held_kind >= 0
        mine = np.bincount(self.jobs.held_kind[usable], weights=held[usable], minlength=n_types)
        return np.round(view.free_gpus_by_type * GPU_MILLI + mine).astype(np.int64)

    def build(self, lowest: int, certs: Floats | None = None) -> rs.Profile:
        room = 4 * len(self.certs) + 8 * col.MAX_SEGMENTS
        used = self.certs if certs is None else certs
        return rs.Profile(self.now, self.capacity, used, self.jobs.each, lowest, room)

    # -- keeping what was promised --------------------------------------------------------------------

    def _repair(self) -> None:
        """Reservations that no longer suffice (noise, failures, lost nodes) are made anew."""
        certs = self.certs
        short = (certs[:, col.CLASS] > 0) & ((self.finish < 0) | (self.finish > certs[:, col.DUE]))
        over = any((self.profile.free[k, : self.profile.n[k]] < 0).any() for k in range(len(self.capacity)))
        if not short.any() and not over:
            return
        if not over and self._carry_on(np.flatnonzero(short & (self.jobs.held > 0))):
            certs = self.certs
            short &= self.jobs.held == 0
        certs[short & (certs[:, col.CLASS] == col.SOFT), col.CLASS] = col.NONE
        broken = np.flatnonzero(short & (certs[:, col.CLASS] == col.PROMISED))
        if broken.size and not over:
            certs[broken, col.COUNT] = 0
            self.profile = self.build(col.SOFT)
            left = [
                row
                for row in self._by_due(broken).tolist()
                if not self.reservations(row, col.PROMISED, float(self.due[row]))
            ]
            if not left:
                return
        if broken.size or over:
            self._replan_all()

    def _carry_on(self, rows: Ints) -> bool:
        """New reservations for jobs that run behind their plan, from now on and where they are: those that wait move.

        Else a job that comes up a little late would be stopped for the next reservation, and that one again:
        every start costs time, and with short pieces nothing gets done. False: nothing changed.
        """
        if rows.size == 0:
            return False
        idle = np.flatnonzero((self.certs[:, col.CLASS] > 0) & (self.jobs.held == 0))
        order = self._by_latest_start(rows)
        base = self.jobs.base.copy()
        base[rows] = np.where(np.arange(base.shape[1]) == self.jobs.held_kind[rows, None], base[rows], 0.0)
        here = self.jobs.replace(base=base)
        for moved in (idle[:0], idle):
            trial = self.certs.copy()
            trial[rows, col.COUNT] = trial[moved, col.COUNT] = 0
            p = self.build(col.SOFT, trial)
            ranked = np.concatenate([order, self._by_latest_start(moved)])
            done = p.reserve_in_order(here, ranked, self._dues(self.certs), col.PROMISED, trial)
            if done < ranked.size or (trial[rows, col.FIRST] > self.now).any():
                continue
            interrupted = trial[rows, col.COUNT] > np.maximum(self.certs[rows, col.COUNT], 1)
            if moved.size or idle.size == 0 or not interrupted.any():
                trial[:, col.CLASS] = self.certs[:, col.CLASS]
                self.certs, self.profile = trial, p
                return True
        return False

    def _by_due(self, rows: Ints) -> Ints:
        """Earliest deadline first."""
        return self._ordered(rows, self.due)

    def _by_latest_start(self, rows: Ints) -> Ints:
        """Least slack first: by the latest moment at which it could start at its fastest."""
        return self._ordered(rows, self.slack())

    def _by_step(self, rows: Ints) -> Ints:
        """Earliest deadline (or value step) first."""
        return self._ordered(rows, self._dues(self.certs))

    def _ordered(self, rows: Ints, key: Floats) -> Ints:
        """What may not be interrupted first of all; ties by arrival (row)."""
        pinned = self.jobs.whole[rows] & (self.jobs.held[rows] > 0)
        return rows[np.lexsort((rows, key[rows], ~pinned))]

    def reservations(self, row: int, cls: int, due: float) -> bool:
        return bool(self.profile.reserve(self.jobs, row, due, cls, self.certs[row]))

    def _replan_all(self) -> None:
        """All promises anew, earliest deadline first; one that cannot be kept gets the soonest finish."""
        order = self._by_due(np.flatnonzero(self.certs[:, col.CLASS] == col.PROMISED))
        softs = np.flatnonzero(self.certs[:, col.CLASS] == col.SOFT)
        self.certs[:, col.COUNT] = 0
        self.profile = p = self.build(col.SOFT)
        while order.size:
            done = p.reserve_in_order(self.jobs, order, self.due, col.PROMISED, self.certs)
            if done < order.size:
                self._reserve_late(int(order[done]))
            order = order[done + 1 :]
        self._rebook_soft(softs)

    def _reserve_late(self, row: int) -> None:
        p = self.profile
        cert = self.certs[row]
        self.late.append(row)
        if p.soonest(self.jobs, row, cert) < 0:
            cert[col.COUNT] = 0
        cert[col.CLASS] = col.PROMISED
        cert[col.DUE] = col.FOREVER
        p.occupy(cert, self.jobs.each[row], 1)

    # -- new jobs --------------------------------------------------------------------------------------

    def promise_all(self, rows: list[int]) -> bool:
        """Reservations for several newcomers at once, or for none of them."""
        rows = [row for row in rows if not self.reservations(row, col.PROMISED, float(self.due[row]))]
        if not rows:
            return True
        softs = np.flatnonzero(self.certs[:, col.CLASS] == col.SOFT)
        promised = np.flatnonzero(self.certs[:, col.CLASS] == col.PROMISED)
        if softs.size:
            return False  # one by one, so that soft reservations are kept where they can be
        idle = promised[(self.due[promised] >= self.due[rows].min()) & (self.jobs.held[promised] == 0)]
        return self._rearranged(np.array(rows), idle, softs)

    def promise(self, row: int) -> bool:
        """Find a reservation for a job with a hard deadline, rearranging others if need be."""
        due = float(self.due[row])
        if self.reservations(row, col.PROMISED, due):
            return True
        if not demand_fits(self.now, self.jobs, self.certs, self.capacity, row, due):
            return False
        if self._moved(row, col.PROMISED):
            return True
        softs = np.flatnonzero(self.certs[:, col.CLASS] == col.SOFT)
        if softs.size and self._keep_most(row, col.PROMISED):
            return True
        promised = np.flatnonzero(self.certs[:, col.CLASS] == col.PROMISED)
        later = promised[self.due[promised] >= due]
        idle = later[self.jobs.held[later] == 0]
        attempts = [later]
        if softs.size:
            attempts.insert(0, idle)  # first without touching what runs
        if later.size < promised.size <= RESERVES // 2:
            attempts.append(promised)
        return any(self._rearranged(np.array([row]), moved, softs) for moved in attempts)

    def _rearranged(self, rows: Ints, moved: Ints, softs: Ints) -> bool:
        """Book newcomers with these promises made anew around them; soft reservations give way."""
        order = self._by_latest_start(np.concatenate([moved, rows]))
        if not self._replan(moved, rows, col.PROMISED, order, lowest=col.PROMISED):
            return False
        self._rebook_soft(softs)
        return True

    def _dues(self, certs: Floats) -> Floats:
        """Deadlines to plan for: of a soft reservation its step; a promise already lost has none any more."""
        lost = (certs[:, col.CLASS] == col.PROMISED) & (certs[:, col.DUE] >= col.FOREVER)
        return np.where(lost | (certs[:, col.CLASS] == col.SOFT), certs[:, col.DUE], self.due)

    def _rebook_soft(self, rows: Ints) -> None:
        self.certs[rows, col.CLASS] = col.NONE
        for row in rows[np.lexsort((rows, self.certs[rows, col.DUE]))].tolist():
            self.reserve_soft(row)

    def reserve_probe(self, row: int) -> bool:
        """A short reservation at the smallest size, in what is free beside all others."""
        return self.reservations(row, col.SOFT, float(self.due[row]))

    def reserve_soft(self, row: int) -> bool:
        """A reservation for the best value step in reach; later hard arrivals may take it."""
        return any(
            due > self.now and self.fastest_finish()[row] <= due and self.reservations(row, col.SOFT, due)
            for due in self.steps(row)
        )

    def soften(self, row: int) -> bool:
        """Find a reservation for a job with a soft deadline, with no fewer of the others in time."""
        return self.fit_in(row, col.SOFT) or self._keep_most(row, col.SOFT)

    def fit_in(self, row: int, cls: int) -> bool:
        """Room with every reservation kept: first by moving what does not run yet, then by planning all anew."""
        fits = demand_fits(self.now, self.jobs, self.certs, self.capacity, row, float(self.due[row]))
        return bool(fits) and self._moved(row, cls)

    def _moved(self, row: int, cls: int) -> bool:
        certs = self.certs
        booked = np.flatnonzero(certs[:, col.CLASS] > 0)
        idle = booked[(self.jobs.held[booked] == 0) & (certs[booked, col.DUE] >= self.due[row])]
        new = np.array([row])
        if idle.size and self._replan(idle, new, cls, self._by_latest_start(np.append(idle, row))):
            return True
        if idle.size == booked.size or booked.size > RESERVES // 2:
            return False
        return self._replan(booked, new, cls, self._by_step(np.append(booked, row)), tries=2)

    def _replan(
        self, moved: Ints, rows: Ints, cls: int, order: Ints, tries: int = ORDERS, lowest: int = col.SOFT
    ) -> bool:
        """Make the reservations of `moved` anew around those of the newcomers `rows`, so that every one holds; False:
        nothing changed. Reservations below the class `lowest` give way."""
        trial = self.certs.copy()
        trial[moved, col.COUNT] = 0
        p = self.build(lowest, trial)
        if not replanning.rearrange(p, self.jobs, order, self._dues(self.certs), trial, min(tries, _tries(order))):
            return False
        trial[moved, col.CLASS] = self.certs[moved, col.CLASS]
        trial[rows, col.CLASS] = cls
        self.certs, self.profile = trial, p
        return True

    def _keep_most(self, row: int, cls: int) -> bool:
        """Plan all anew with the newcomer; soft reservations may lose their place, promises may not.

        For a soft newcomer this counts only when the weight that is in time does not become less.
        """
        booked = np.flatnonzero(self.certs[:, col.CLASS] > 0)
        if booked.size > RESERVES // 2:
            return False
        dues = self._dues(self.certs)
        trial = self.certs.copy()
        soft = trial[:, col.CLASS] == col.SOFT
        soft[row] = cls == col.SOFT
        in_time = soft & (dues <= self.due)
        # Who is after its first step anyway goes before those in time.
        weight = self.view.jobs.weight
        worth = np.where(soft, np.where(in_time, weight, _LATE_WORTH * weight), 0.0)
        trial[booked, col.COUNT] = 0
        p = self.build(col.SOFT, trial)
        dropped = np.zeros(len(trial), np.bool_)
        order = self._by_step(np.append(booked, row))
        tries = 1 + RESERVES // order.size
        if not replanning.keep_most(p, self.jobs, order, dues, trial, worth, dropped, tries):
            return False
        if cls == col.SOFT and (dropped[row] or weight[in_time & dropped].sum() > weight[row]):
            return False
        trial[booked, col.CLASS] = self.certs[booked, col.CLASS]
        trial[row, col.CLASS] = cls
        trial[dropped, col.CLASS] = col.NONE
        self.certs, self.profile = trial, p
        for lost in self._by_due(np.flatnonzero(dropped)).tolist():
            self.reserve_soft(lost)
        return True

    def steps(self, row: int) -> list[float]:
        spec = self.view.jobs.spec(row)
        steps = {float(self.due[row])}
        if spec.utility is not None and spec.utility.get("kind") == "step":
            steps |= {spec.submit_ms + float(age) * 1000.0 for age, value in spec.utility["steps"] if value > 0}
        return sorted(steps)

    def fastest_finish(self) -> Floats:
        """The earliest finish of each row if the whole cluster were its own."""
        if not hasattr(self, "_fastest_finish"):
            rate = fastest_rates(self.jobs, self.capacity)
            with np.errstate(divide="ignore"):
                left_ms = np.where(
                    rate > 0, np.ceil(self.jobs.work * 1000.0 / np.where(rate > 0, rate, 1.0)), col.FOREVER
                )
            self._fastest_finish = self.now + left_ms
        return self._fastest_finish

    def slack(self) -> Floats:
        """Milliseconds to spare if it ran at its fastest from now on."""
        return self.due - self.fastest_finish()

    def pull_forward(self, least_gain: float, only_waiting: bool, used: Ints) -> None:
        """Use what would stand idle now for reserved jobs, least slack first; `used` by type is not idle."""
        p = self.profile
        if not (p.free[:, 0] > used).any():
            return
        rows = np.flatnonzero(self.certs[:, col.CLASS] > 0)
        rows = rows[np.lexsort((rows, self.slack()[rows]))]
        p.free -= used[:, None]
        p.pull_forward(self.jobs, rows, self.certs, least_gain, only_waiting)
        p.free += used[:, None]
