"""The engine's meaning as functions over its arrays: a job's life, the fence, what reports mean, how a plan becomes
commands. The live engine calls them one by one; the run loop of a simulation calls the same ones.

Two sets of free resources: `planned` is what policies see (devices of jobs being stopped count as free), `physical` is
what processes may really occupy.
"""

from __future__ import annotations

from trainmaster.core.codes import (
    CANCEL,
    CANCELLED,
    CAPACITY,
    FINISH,
    FINISHED,
    GIVE_UP,
    GPU_TYPE,
    HAS_RESIZED,
    HAS_STARTED,
    HEAD,
    LAUNCH_SENT,
    LAUNCHING,
    LOST,
    MOVE,
    MOVED,
    N_OVER_FLOATS,
    N_OVER_INTS,
    N_PARTS,
    N_TRIGGERS,
    NEVER_MS,
    PART,
    PAUSE,
    PAUSED,
    PENDING,
    PREEMPTED,
    REJECTED,
    REQUEUE,
    RESERVE,
    RESERVED,
    RESIZE_SENT,
    RESIZING,
    SHARE,
    STOP_SENT,
    STOPPING,
    UNRESERVE,
)
from trainmaster.core.engine.story import N_KEPT, told
from trainmaster.core.int_list import IntList, Ints, new_floats
from trainmaster.core.state.cluster_arrays import ClusterArrays
from trainmaster.core.state.free_resources import FreeResources, any_device_left, fits_gang, give_gang, take_gang
from trainmaster.core.state.job_arrays import JobArrays, free_index, log_phase, settle
from trainmaster.core.state.message_kinds import LAUNCH, RESIZE, STOP
from trainmaster.core.state.messages import Messages
from trainmaster.core.state.packed_allocation import (
    gang_devices,
    gang_hosts,
    gang_length,
    gang_servers,
    gang_workers,
    same_place,
    share_a_device,
    union_gang,
)

MAX_DOUBLINGS = 6


class IllegalTransition(AssertionError):
    """A fault of the engine, never of a user; it tells the job's last transitions."""


class EngineCore:
    """What the functions of this module work on. `named`: jobs have ids, and `job_ended` is called when one is over."""

    def __init__(
        self,
        columns: JobArrays,
        nodes: ClusterArrays,
        planned: FreeResources,
        physical: FreeResources,
        next_phase: Ints,
        resend_ms: int,
        backoff_ms: int,
    ) -> None:
        self.columns, self.nodes, self.planned, self.physical = columns, nodes, planned, physical
        self.next_phase = next_phase
        self.resend_ms, self.backoff_ms = resend_ms, backoff_ms
        self.now_ms = 0
        self.seq = 0
        self.changed = self.gate_changed = self.has_quotas = False
        """`changed`: something happened that the policy should look at."""
        self.named = True
        self.asks_after_start = False
        """Whether the policy is asked when a job runs that took time to start."""
        self.wake_at_ms = self.next_resend_ms = self.next_backoff_ms = NEVER_MS
        self.commands = Messages()
        self.reserved = IntList(64)
        """Jobs whose launch waits for devices that are being freed, in the order of reservation."""
        self.doubts: dict[int, dict[int, int]] = {}
        """By job and lost node: when its members there have certainly ended (their lease has run out)."""
        self.ended_on: dict[int, set[int]] = {}
        """Nodes on which the members of a live attempt have certainly ended."""
        self.short: set[int] = set()
        """Nodes of which not all that others use could be withheld yet."""
        self.decisions = 0
        self.round_ms, self.round_begun_ms, self.own_rounds = 0, -1, False
        """Length of a round (0: none), the step in which the last one began that did not begin at its very start, and
        whether the policy wants to see what happens in between."""
        self.n_waiting = 0
        """Jobs that are pending, of those that came by an event."""
        self.n_over = 0
        self.over_ints, self.over_floats = IntList(64 * N_OVER_INTS), new_floats(64 * N_OVER_FLOATS)
        """Of jobs without a name that are over: number, phase, end, first start, preemptions, attempts; service, run
        time, work, cost."""
        self.both, self.pending, self.spare = IntList(64), IntList(64), IntList(64)
        self.moves, self.n_moves = IntList(3 * N_KEPT), 0
        """The last transitions, for `IllegalTransition`: job index, trigger, time."""

    def label(self, i: int) -> str:
        """How messages call a job."""
        return f"job {self.columns.number[i]}"

    def job_ended(self, i: int, phase: int) -> None:
        """Called before the index of a job that is over is given back."""

    def lease_end_ms(self) -> int:
        """When the next lease of members that may live on has certainly run out; asked when there are `doubts`."""
        return NEVER_MS


# -- a job's life ------------------------------------------------------------------------------------


def move(e: EngineCore, i: int, trigger: int) -> int:
    """Go to the phase that the table names; anything it does not name is a fault."""
    jobs = e.columns
    phase = e.next_phase[jobs.phase[i] * N_TRIGGERS + trigger]
    if phase < 0:
        raise IllegalTransition(told(e, i, trigger))
    _remember(e, i, trigger)
    settle(jobs, i, e.now_ms)
    if jobs.phase[i] == PENDING:
        e.n_waiting -= 1
        log_phase(jobs, i)
    elif phase == PENDING:
        e.n_waiting += 1
        log_phase(jobs, i)
    jobs.phase[i] = phase
    if FINISHED <= phase <= REJECTED:
        _bury(e, i, phase)  # type: ignore
    elif phase == PENDING:
        jobs.waiting_since_ms[i] = e.now_ms
        jobs.reason[i], jobs.reasoned[i] = CAPACITY, e.decisions
    return 0


def _remember(e: EngineCore, i: int, trigger: int) -> None:
    values, at = e.moves.values, e.n_moves % N_KEPT * 3
    values[at], values[at + 1], values[at + 2] = i, trigger, e.now_ms
    e.n_moves += 1


def _bury(e: EngineCore, i: int, phase: int) -> None:
    jobs = e.columns
    release_physical(e, i)
    if jobs.workers[i] > 0:
        give_gang(e.planned, jobs.allocation, i * jobs.width, i, jobs)
    if e.reserved.n:
        unreserve(e, i)
    e.n_over += 1
    if e.named:
        e.job_ended(i, phase)
    else:
        _note_end(e, i, phase)
    free_index(jobs, i)
    e.changed = True


def _note_end(e: EngineCore, i: int, phase: int) -> None:
    """The last word on a job without a name."""
    jobs, ints, floats = e.columns, e.over_ints, e.over_floats
    k = ints.n // N_OVER_INTS
    ints.reserve(ints.n + N_OVER_INTS)
    if (k + 1) * N_OVER_FLOATS > len(floats):
        more = new_floats(2 * len(floats))
        more[: len(floats)] = floats
        e.over_floats = floats = more
    ints.append(jobs.number[i])
    ints.append(phase)
    ints.append(e.now_ms)
    ints.append(jobs.first_start_ms[i])
    ints.append(jobs.preemptions[i])
    ints.append(jobs.attempts[i])
    at = k * N_OVER_FLOATS
    floats[at], floats[at + 1] = jobs.service_gpu_s[i], jobs.run_s[i]
    floats[at + 2], floats[at + 3] = jobs.work_done[i], jobs.cost[i]


def unreserve(e: EngineCore, i: int) -> None:
    """Strike a job off the list of those whose launch waits."""
    reserved, n = e.reserved, 0
    for k in range(reserved.n):
        if reserved.values[k] != i:
            reserved.values[n] = reserved.values[k]
            n += 1
    reserved.n = n


def set_allocation(e: EngineCore, i: int, packed: IntList, at: int) -> None:
    """Write what the plan gives a job (`at` -1: nothing). The planned resources are the caller's affair."""
    settle(e.columns, i, e.now_ms)
    write_allocation(e.columns, i, packed, at)


def write_allocation(jobs: JobArrays, i: int, packed: IntList, at: int) -> None:
    """The same, where its work is known already."""
    jobs.touched[i] += 1
    if at < 0:
        jobs.allocation.values[i * jobs.width] = 0
        jobs.held_type[i] = -1
        jobs.workers[i] = jobs.servers[i] = jobs.nodes_held[i] = jobs.held_gpu_milli[i] = 0
        return
    length = gang_length(packed, at)
    if length > jobs.width:
        jobs.widen(length)
    for k in range(length):
        jobs.allocation.values[i * jobs.width + k] = packed.values[at + k]
    jobs.held_type[i] = packed.values[at + GPU_TYPE]
    jobs.workers[i], jobs.servers[i] = gang_workers(packed, at), gang_servers(packed, at)
    jobs.nodes_held[i] = packed.values[at + N_PARTS]
    jobs.held_gpu_milli[i] = gang_devices(packed, at) * packed.values[at + SHARE]


def drop_allocation(e: EngineCore, i: int) -> None:
    """Give planned devices back (the job will wait, or is over)."""
    jobs = e.columns
    if jobs.allocation.values[i * jobs.width]:
        give_gang(e.planned, jobs.allocation, i * jobs.width, i, jobs)
        set_allocation(e, i, jobs.allocation, -1)


def set_physical(e: EngineCore, i: int, packed: IntList, at: int) -> None:
    """Write what processes of the job may occupy. The physical resources are the caller's affair."""
    jobs = e.columns
    jobs.touched[i] += 1
    length = gang_length(packed, at)
    if length > jobs.width:
        jobs.widen(length)
    for k in range(length):
        jobs.physical.values[i * jobs.width + k] = packed.values[at + k]


def release_physical(e: EngineCore, i: int) -> None:
    """No process of the job is left: its devices are physically free."""
    jobs = e.columns
    if jobs.physical.values[i * jobs.width]:
        give_gang(e.physical, jobs.physical, i * jobs.width, i, jobs)
        jobs.physical.values[i * jobs.width] = 0
        jobs.touched[i] += 1
        jobs.last_seq[i] = 0
        if e.doubts:
            e.doubts.pop(i, None)
        if e.ended_on:
            e.ended_on.pop(i, None)
    jobs.pending_kind[i] = 0


def is_current(e: EngineCore, i: int, generation: int) -> bool:
    """Whether a report is about the live attempt of this job: the fence."""
    jobs = e.columns
    return i >= 0 and jobs.generation[i] == generation and LAUNCHING <= jobs.phase[i] <= LOST


def wanted(e: EngineCore, i: int) -> int:
    """The phase a live job shall have when its present attempt is over."""
    phase = e.columns.phase[i]
    return e.columns.after_stop[i] if phase in (STOPPING, LOST) else PENDING


def gone(e: EngineCore, i: int, work_saved: float) -> None:
    """The present attempt has certainly ended without finishing: go where the job was to go."""
    jobs = e.columns
    settle(jobs, i, e.now_ms)
    jobs.work_done[i] = jobs.work_saved[i] = max(work_saved, 0.0)
    after = wanted(e, i)
    release_physical(e, i)
    jobs.after_stop[i] = PENDING
    if after == RESERVED and jobs.allocation.values[i * jobs.width] and _all_up(e, i):
        move(e, i, MOVE)
        e.reserved.reserve(e.reserved.n + 1)
        e.reserved.append(i)
        return
    drop_allocation(e, i)
    if e.has_quotas:
        e.gate_changed = True
    if after == CANCELLED:
        move(e, i, CANCEL)
    elif after == PAUSED:
        move(e, i, PAUSE)
    else:
        move(e, i, REQUEUE)
        if jobs.worker_gpu_milli[i] == 0 or any_device_left(e.planned):
            e.changed = True  # there may be room for it elsewhere


def _all_up(e: EngineCore, i: int) -> bool:
    """Whether every node that the plan gives a job is up."""
    packed, at = e.columns.allocation, i * e.columns.width
    for k in range(packed.values[at]):
        if not e.nodes.up[packed.values[at + HEAD + PART * k]]:
            return False
    return True


def failed(e: EngineCore, i: int, work_saved: float) -> None:
    """The attempt ended by its own fault: try again after a pause, or give up."""
    jobs = e.columns
    jobs.failures[i] += 1
    after = wanted(e, i)
    if jobs.failures[i] >= jobs.max_attempts[i] and after != CANCELLED and after != PAUSED:
        settle(jobs, i, e.now_ms)
        release_physical(e, i)
        move(e, i, GIVE_UP)
        return
    retry_later(e, i, work_saved, e.backoff_ms << min(jobs.failures[i] - 1, MAX_DOUBLINGS))


def retry_later(e: EngineCore, i: int, work_saved: float, pause_ms: int) -> None:
    """The attempt is over; the next one waits for a while (unless the user wants something else)."""
    jobs = e.columns
    if wanted(e, i) == RESERVED:
        jobs.after_stop[i] = PENDING
    gone(e, i, work_saved)
    if jobs.phase[i] == PENDING:
        jobs.not_before_ms[i] = e.now_ms + pause_ms
        e.next_backoff_ms = min(e.next_backoff_ms, jobs.not_before_ms[i])
        e.changed = True


def end_backoffs(e: EngineCore) -> None:
    """Some pause is over: find the next one, and let the policy look."""
    jobs, order = e.columns, e.columns.order
    e.next_backoff_ms = NEVER_MS
    for k in range(order.n):
        i = order.values[k]
        if i >= 0 and jobs.not_before_ms[i] > e.now_ms:
            e.next_backoff_ms = min(e.next_backoff_ms, jobs.not_before_ms[i])  # type: ignore
    e.changed = True


def decision_is_due(e: EngineCore) -> bool:
    """Whether the policy is asked now, since something changed or it wanted to be: with rounds only when one begins. A
    clock that is not simulated hits a round's start only almost."""
    if e.round_ms and not e.own_rounds:
        if e.wake_at_ms <= e.now_ms and e.wake_at_ms % e.round_ms == 0:
            e.round_begun_ms = e.now_ms
        if e.now_ms % e.round_ms != 0 and e.round_begun_ms != e.now_ms:
            next_ms = (e.now_ms // e.round_ms + 1) * e.round_ms
            e.wake_at_ms = next_ms if e.wake_at_ms <= e.now_ms else min(e.wake_at_ms, next_ms)
            return False
    e.changed = False
    e.wake_at_ms = NEVER_MS
    return e.columns.n_jobs > 0


def next_wake_ms(e: EngineCore) -> int:
    """When the engine wants to be woken at the latest."""
    wake_ms = min(min(e.wake_at_ms, e.next_resend_ms), e.next_backoff_ms)
    return min(wake_ms, e.lease_end_ms()) if e.doubts else wake_ms


# -- what backends report ----------------------------------------------------------------------------


def or_saved(e: EngineCore, i: int, work: float) -> float:
    """What was measured; where nothing was (NaN), what is known to be saved."""
    return work if work == work else e.columns.work_saved[i]


def set_rate(e: EngineCore, i: int) -> None:
    """The estimated speed where the job is now."""
    jobs, at = e.columns, i * e.columns.width
    if not jobs.allocation.values[at]:
        return
    kind = max(jobs.allocation.values[at + GPU_TYPE], 0)
    base = jobs.speed_spread[i, kind] if gang_hosts(jobs.allocation, at) > 1 else jobs.speed[i, kind]
    if jobs.workers[i] != jobs.workers_ref[i] or jobs.servers[i] != jobs.servers_ref[i]:
        base = jobs.scaled_rate(i, base, jobs.workers[i], jobs.servers[i])
    jobs.rate[i] = base


def started(e: EngineCore, i: int, work: float, productive_ms: int) -> None:
    jobs = e.columns
    if jobs.phase[i] != LAUNCHING:
        return
    if e.asks_after_start and e.now_ms > jobs.pending_sent_ms[i]:
        e.changed = True  # decisions since its launch could neither stop nor resize it
    jobs.pending_kind[i] = 0
    jobs.work_saved[i] = or_saved(e, i, work)
    jobs.work_done[i] = jobs.work_saved[i]
    jobs.productive_ms[i] = productive_ms
    jobs.as_of_ms[i] = e.now_ms
    if jobs.first_start_ms[i] < 0:
        jobs.first_start_ms[i] = e.now_ms
    move(e, i, HAS_STARTED)
    set_rate(e, i)


def start_failed(e: EngineCore, i: int, node: int) -> None:
    """`node`: the one that could not be reached (-1: none, the job itself is to blame)."""
    if node < 0:
        failed(e, i, e.columns.work_saved[i])
    else:  # not its fault: it does not count as a failure, but the same place is not tried at once
        retry_later(e, i, e.columns.work_saved[i], e.backoff_ms)


def resized(e: EngineCore, i: int, seq: int, work: float, productive_ms: int) -> None:
    jobs = e.columns
    if jobs.phase[i] != RESIZING or jobs.pending_kind[i] == 0 or jobs.pending_seq[i] != seq:
        return
    jobs.pending_kind[i] = 0
    give_gang(e.physical, jobs.physical, i * jobs.width, i, jobs)
    take_gang(e.physical, jobs.allocation, i * jobs.width, i, jobs)
    set_physical(e, i, jobs.allocation, i * jobs.width)
    move(e, i, HAS_RESIZED)
    if work == work:
        jobs.work_done[i] = work
    jobs.productive_ms[i] = productive_ms
    set_rate(e, i)
    e.changed = True


def progressed(e: EngineCore, i: int, work: float, rate: float) -> None:
    """`rate`: NaN where it was not measured."""
    jobs = e.columns
    settle(jobs, i, e.now_ms)
    jobs.work_done[i] = work
    if rate >= 0.0:
        jobs.rate[i] = rate


def exited(e: EngineCore, i: int, code: int, work: float) -> None:
    jobs = e.columns
    saved = or_saved(e, i, work)
    if code != 0:
        failed(e, i, saved)
        return
    settle(jobs, i, e.now_ms)
    total = jobs.work_total[i]
    jobs.work_done[i] = total if total == total else saved
    release_physical(e, i)
    move(e, i, FINISH)


def stopped(e: EngineCore, i: int, work: float) -> None:
    """It has ended everywhere."""
    e.columns.work_saved[i] = or_saved(e, i, work)
    gone(e, i, e.columns.work_saved[i])


# -- from decisions to commands ----------------------------------------------------------------------


def send(e: EngineCore, i: int, kind: int, why: int, packed: IntList, at: int) -> None:
    """Issue a command (with a gang unless `at` is -1); it is sent again until it is answered."""
    jobs = e.columns
    e.seq += 1
    jobs.pending_kind[i], jobs.pending_seq[i], jobs.pending_why[i] = kind, e.seq, why
    jobs.pending_sent_ms[i] = e.now_ms
    jobs.last_seq[i] = e.seq
    e.next_resend_ms = min(e.next_resend_ms, e.now_ms + e.resend_ms)
    _write_command(e, i, packed, at)


def _write_command(e: EngineCore, i: int, packed: IntList, at: int) -> None:
    jobs, commands = e.columns, e.commands
    k = commands.add(jobs.pending_kind[i], i, jobs.generation[i], jobs.pending_seq[i])
    commands.code[k] = jobs.pending_why[i]
    if at >= 0:
        commands.extra[k] = commands.put_numbers(packed.values, at, gang_length(packed, at))


def resend(e: EngineCore) -> None:
    """Send again what has waited too long for an answer, in the order of issue."""
    jobs = e.columns
    list_pending(e)
    due = e.now_ms - e.resend_ms
    e.next_resend_ms = NEVER_MS
    for k in range(e.pending.n):
        i = e.pending.values[k]
        if jobs.pending_sent_ms[i] <= due:
            jobs.pending_sent_ms[i] = e.now_ms
            write_pending(e, i)
        e.next_resend_ms = min(e.next_resend_ms, jobs.pending_sent_ms[i] + e.resend_ms)  # type: ignore


def list_pending(e: EngineCore) -> None:
    """List the jobs with a command that has no answer, in the order of issue."""
    jobs, order, pending = e.columns, e.columns.order, e.pending
    pending.clear()
    pending.reserve(jobs.n_jobs)
    e.spare.reserve(jobs.n_jobs)
    for k in range(order.n):
        i = order.values[k]
        if i >= 0 and jobs.pending_kind[i]:
            pending.append(i)
    for k in range(1, pending.n):
        i, at = pending.values[k], k
        while at > 0 and jobs.pending_seq[pending.values[at - 1]] > jobs.pending_seq[i]:
            pending.values[at] = pending.values[at - 1]
            at -= 1
        pending.values[at] = i


def write_pending(e: EngineCore, i: int) -> None:
    """Write the command of a job that has no answer yet to the list of commands, as it was."""
    jobs = e.columns
    if jobs.pending_kind[i] == LAUNCH:
        _write_command(e, i, jobs.physical, i * jobs.width)
    elif jobs.pending_kind[i] == RESIZE:
        _write_command(e, i, jobs.allocation, i * jobs.width)
    else:
        _write_command(e, i, jobs.physical, -1)


def carry_out(e: EngineCore, i: int, packed: IntList, at: int) -> None:
    """Turn one verified change into a reservation, resize or stop. The planned resources are up to date."""
    jobs = e.columns
    phase = jobs.phase[i]
    if at < 0:
        set_allocation(e, i, packed, -1)
        if phase == RESERVED:
            unreserve(e, i)
            move(e, i, UNRESERVE)
        else:
            jobs.preemptions[i] += 1
            stop(e, i, PENDING, PREEMPTED)
    elif phase == PENDING:
        set_allocation(e, i, packed, at)
        move(e, i, RESERVE)
        e.reserved.reserve(e.reserved.n + 1)
        e.reserved.append(i)
    elif phase == RESERVED:
        set_allocation(e, i, packed, at)
    elif _in_place(e, i, packed, at):
        resize(e, i, packed, at)
    else:
        _relocate(e, i, packed, at)


def _in_place(e: EngineCore, i: int, packed: IntList, at: int) -> bool:
    """Whether a running job can be brought to its new allocation without stopping it."""
    jobs, old, row = e.columns, i * e.columns.width, e.columns.allocation
    if not row.values[old] or row.values[old + GPU_TYPE] != packed.values[at + GPU_TYPE]:
        return False
    if row.values[old + SHARE] != packed.values[at + SHARE]:
        return same_place(row, old, packed, at)
    if jobs.elastic[i] == 0:
        return False
    return share_a_device(row, old, packed, at)


def _relocate(e: EngineCore, i: int, packed: IntList, at: int) -> None:
    e.columns.preemptions[i] += 1
    set_allocation(e, i, packed, at)
    stop(e, i, RESERVED, MOVED)


def launch_reserved(e: EngineCore) -> None:
    """Send the launches whose devices are physically free, in the order of reservation."""
    jobs, reserved, n = e.columns, e.reserved, 0
    for k in range(reserved.n):
        i = reserved.values[k]
        at = i * jobs.width
        if not fits_physically(e, i, jobs.allocation, at) or not _all_up(e, i):
            reserved.values[n] = i
            n += 1
            continue
        take_gang(e.physical, jobs.allocation, at, i, jobs)
        set_physical(e, i, jobs.allocation, at)
        jobs.generation[i] += 1
        jobs.attempts[i] += 1
        move(e, i, LAUNCH_SENT)
        send(e, i, LAUNCH, 0, jobs.physical, at)
    reserved.n = n


def fits_physically(e: EngineCore, i: int, packed: IntList, at: int) -> bool:
    """Whether no process that may still live is in the way."""
    return fits_gang(e.physical, packed, at, i, e.columns)


def resize(e: EngineCore, i: int, packed: IntList, at: int) -> None:
    """Bring a running gang to this allocation without stopping it. The planned resources are up to date."""
    jobs, both, here = e.columns, e.both, i * e.columns.width
    union_gang(jobs.physical, here, packed, at, both)
    give_gang(e.physical, jobs.physical, here, i, jobs)
    if not fits_physically(e, i, both, 0):
        # The devices it grows onto are still being freed: stay as it is, the next decision tries again.
        take_gang(e.physical, jobs.physical, here, i, jobs)
        give_gang(e.planned, packed, at, i, jobs)
        if fits_gang(e.planned, jobs.allocation, here, i, jobs):
            take_gang(e.planned, jobs.allocation, here, i, jobs)
            e.changed = True
            return
        # What it was to leave has been given to others in the same plan: it must go, by a restart.
        take_gang(e.planned, packed, at, i, jobs)
        _relocate(e, i, packed, at)
        return
    take_gang(e.physical, both, 0, i, jobs)
    set_physical(e, i, both, 0)
    set_allocation(e, i, packed, at)
    move(e, i, RESIZE_SENT)
    send(e, i, RESIZE, 0, packed, at)


def stop(e: EngineCore, i: int, after: int, why: int) -> None:
    """Ask a live attempt to end; `after` is the phase the job shall have then."""
    jobs = e.columns
    jobs.after_stop[i] = after
    settle(jobs, i, e.now_ms)
    if jobs.phase[i] != STOPPING and jobs.phase[i] != LOST:
        move(e, i, STOP_SENT)
        send(e, i, STOP, why, jobs.physical, -1)
