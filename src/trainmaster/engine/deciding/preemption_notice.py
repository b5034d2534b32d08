"""Notice before a preemption that would lose much work: the job is spared for a while, and its user is told.

Every plan is looked at before it is carried out. If it stops or moves a job that has worked long since its last
checkpoint, the job counts as not preemptible until its notice is over, and the policy is asked again. A job that saves
in the meantime may be preempted at once. One that is seen to save when it is stopped gets no further notice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from trainmaster.engine.records import Notice
from trainmaster.engine.state import State
from trainmaster.model.allocation import Allocation
from trainmaster.model.job import PhaseCode
from trainmaster.model.plan import Plan
from trainmaster.model.snapshot import Snapshot
from trainmaster.model.units import MS_PER_S

ASKED_AGAIN = 4
"""A policy that goes on choosing others is then shown all of them as not preemptible."""
HOLDS_MS = 3_600_000
"""A preemption that has not come so long (or two rounds) after its notice was over needs another notice."""


def loss_s(state: State, rows: np.ndarray) -> np.ndarray:
    """Seconds of work that running jobs (job indices) would lose by a stop: since their last checkpoint, or start."""
    ints, floats = state.columns.ints, state.columns.floats
    productive_ms, rate = ints["productive_ms"][rows], floats["rate"][rows]
    since_s = np.maximum(state.now_ms - np.maximum(ints["as_of_ms"][rows], productive_ms), 0) / MS_PER_S
    unsaved = np.maximum(floats["work_done"][rows] - floats["work_saved"][rows], 0.0)
    known = rate > 0.0
    return np.where(known, since_s + unsaved / np.where(known, rate, 1.0), (state.now_ms - productive_ms) / MS_PER_S)


def _loss_s(state: State, i: int) -> float:
    return float(loss_s(state, np.array([i]))[0])


def costly(state: State) -> np.ndarray:
    """Job indices of running jobs that a policy may stop only after a notice."""
    ints, columns = state.columns.ints, state.columns
    rows = columns.rows
    rows = rows[(ints["phase"][rows] == PhaseCode.RUNNING) & (ints["preemptible"][rows] > 0)]
    rows = rows[loss_s(state, rows) * MS_PER_S > state.settings.loss_max_ms]
    over = [i for i in rows.tolist() if columns.spec(i).id in state.saves_at_stop or _is_over(state, i)]
    return np.setdiff1d(rows, over) if over else rows


def _is_over(state: State, i: int) -> bool:
    given = state.notices.get(i)
    return given is not None and given.until_ms <= state.now_ms


def review(state: State) -> None:
    """Forget notices to attempts that are over, those of long ago, and those to jobs that have saved since: these may
    be preempted at once."""
    ints, index_of = state.columns.ints, state.columns.job_index_of
    oldest_ms = state.now_ms - max(HOLDS_MS, 2 * state.round_ms)
    for i, notice in list(state.notices.items()):
        lives = index_of.get(notice.job_id) == i and int(ints["generation"][i]) == notice.generation
        running = lives and PhaseCode.RUNNING <= ints["phase"][i] <= PhaseCode.RESIZING
        saved = running and _loss_s(state, i) * MS_PER_S <= state.settings.loss_max_ms
        if not running or saved or notice.until_ms < oldest_ms:
            del state.notices[i]
            state.changed = True


def stopped(state: State, i: int, work_saved: float) -> None:
    """An attempt ends as it was told to. One that would have lost much, and has saved instead, will do so again."""
    most_s, rate = state.settings.loss_max_ms / MS_PER_S, state.columns.floats["rate"][i]
    lost = float(state.columns.floats["work_done"][i]) - work_saved
    if _loss_s(state, i) > most_s and lost <= most_s / 2 * rate:
        state.saves_at_stop.add(state.columns.spec(i).id)


@contextmanager
def spared(state: State) -> Iterator[Callable[[Snapshot, Plan], bool]]:
    """While this holds, jobs under notice count as not preemptible. What it yields gives notice to those that a plan
    would stop, and says whether there were any: then the policy has to be asked again."""
    preemptible = state.columns.ints["preemptible"]
    candidates = costly(state)
    held = [i for i in candidates.tolist() if i in state.notices]
    preemptible[held] = 0
    asked = 0

    def give(view: Snapshot, plan: Plan) -> bool:
        nonlocal asked
        asked += 1
        found = [i for i in _stopped_by(view, plan, candidates) if preemptible[i]]
        for i in found:
            _give(state, i)
        more = found if asked < ASKED_AGAIN or not found else candidates.tolist()
        preemptible[more] = 0
        held.extend(more)
        return bool(found)

    try:
        yield give
    finally:
        preemptible[held] = 1
        for notice in state.notices.values():
            if notice.until_ms > state.now_ms:
                state.wake_at_ms = min(state.wake_at_ms, notice.until_ms)


def _give(state: State, i: int) -> None:
    columns = state.columns
    state.notices[i] = Notice(
        columns.spec(i).id,
        int(columns.ints["generation"][i]),
        state.now_ms + state.settings.notice_ms,
        _loss_s(state, i),
        bool(columns.floats["work_saved"][i] > 0),
    )
    state.new_notices.append(state.notices[i])


def _stopped_by(view: Snapshot, plan: Plan, candidates: np.ndarray) -> Iterator[int]:
    """Of these jobs, those whose present attempt the plan ends: to wait, or to go on elsewhere."""
    jobs = view.jobs
    for row in np.flatnonzero(np.isin(jobs.job_indices, candidates)).tolist():
        if row not in plan.changes:
            continue
        i, old, new = int(jobs.job_indices[row]), jobs.allocation(row), plan.changes[row]
        if new is None or old is None or new.accelerator != old.accelerator:
            stops = True
        elif new.share_milli != old.share_milli:
            stops = _devices(new) != _devices(old)
        else:
            stops = not jobs.columns.ints["elastic"][i] or (_devices(new) and _devices(new).isdisjoint(_devices(old)))
        if stops:
            yield i


def _devices(allocation: Allocation) -> set[tuple[int, int]]:
    return {(part.node, device) for part in allocation.parts for device in part.devices}
