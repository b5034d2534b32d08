"""The life of one incarnation inside its keeper: who is started, who is told what, and when it is over.

Orders, messages and exits of processes come in by methods; `tick` does what time has made due. The rules
are those of `trainmaster.gang.protocol`: a gang that is elastic loses members and gains others under new
memberships; any other gang stands and falls together, and is resized by a restart.
"""

from __future__ import annotations

import contextlib
import math
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from trainmaster.backends.local import ending
from trainmaster.backends.local import member_process as processes
from trainmaster.backends.local.launch_record import LaunchRecord
from trainmaster.backends.local.layout import RunFolder, replace_json
from trainmaster.backends.local.member_process import CannotStart, Member, Seat
from trainmaster.backends.local.outcome import EXITED, START_FAILED, STOPPED, Outcome
from trainmaster.backends.local.replacing import Replacements
from trainmaster.backends.local.slots import Change, Slot, change, in_rank_order
from trainmaster.backends.local.work_record import WorkRecord
from trainmaster.gang.endpoint import Endpoint, Gone
from trainmaster.gang.membership import Roster
from trainmaster.gang.protocol import (
    EXIT_LEASE_OVER,
    EXIT_STOPPED,
    Hello,
    Joined,
    Message,
    Progress,
    Renew,
    Renewed,
    StopNotice,
    Suspect,
    Welcome,
)

HELLO_LIMIT_S = 120.0
"""When some members have spoken, the others are awaited for so long before the gang is taken for a plain one."""
PLAIN_AFTER = 6
"""When nobody has, so many times as long as the report of the start waits: a restart for nothing is costly."""
LEAVE_S = 60.0
"""A member that a membership leaves out may take so long to hand over what it holds."""
RENEW_AFTER_S = 0.5
"""A member that others cannot reach has mostly died, and its exit is here before this."""
SUSPICIONS = 3
"""Suspected under so many memberships in a row, a member that lives is taken for stuck."""
DONE = "the job is done"
NOT_ITS_FAULT = (EXIT_STOPPED, EXIT_LEASE_OVER)
"""Of a member that speaks; what a plain command means by these codes is its own affair."""


class Incarnation:
    def __init__(
        self,
        record: LaunchRecord,
        folder: RunFolder,
        endpoint: Endpoint,
        work: WorkRecord,
        clock_s: Callable[[], float],
        base_env: Mapping[str, str],
    ) -> None:
        self.record = record
        self.folder = folder
        self.work = work
        self.roster = Roster("127.0.0.1", processes.free_port)
        self.members: dict[str, Member] = {}
        """Alive or not, in the order of their start."""
        self.target: tuple[Slot, ...] = record.slots
        self.seen_seq = self.target_seq = self.applied_seq = record.seq
        self.started = False
        self.outcome: Outcome | None = None
        """How it will end, once that is decided; it is over when nobody lives any more."""
        self.over = False
        self._endpoint = endpoint
        self._clock_s = clock_s
        self._base_env = base_env
        self._begun_s = clock_s()
        self._restarting = False
        self._resize_waits = False
        self._finishing = False
        self._told_to_stop = False
        self._replacements = Replacements(record.max_attempts)
        self._renew_at_s: float | None = None
        self._told_s = 0.0
        self._finish_by_s = math.inf

    # -- what others may ask -----------------------------------------------------------------------

    @property
    def alive(self) -> list[Member]:
        return [member for member in self.members.values() if member.alive]

    @property
    def elastic(self) -> bool:
        """Whether the gang has come together, and all who belong to it go along with changes."""
        current = self.roster.current
        if current is None:
            return False
        listed = [self.members[peer.member] for peer in current.peers]
        return all(member.elastic for member in listed if member.alive and not member.leaving)

    def status(self) -> dict[str, Any]:
        """All that a driver must know, whether it was there from the beginning or not."""
        return {
            "started": self.started,
            "stopping": self.outcome is not None,
            "seen_seq": self.seen_seq,
            "applied_seq": self.applied_seq,
            "work_at_start": self.work.at_start,
            "work": self.work.done if self.work.known else None,
            "saved": self.work.saved,
            "rate": self.work.rate,
            "loss": self.work.loss,
            "elastic": self.elastic,
            "members": {member.name: member.process.pid for member in self.alive},
        }

    # -- orders --------------------------------------------------------------------------------------

    def begin(self) -> None:
        if self._start_all(self.target) and not self.record.hello_wait_s:
            self.started = True

    def order_resize(self, seq: int, target: Sequence[Slot]) -> None:
        if seq <= self.seen_seq:
            return
        self.seen_seq = seq
        if self.outcome is None and not self._finishing:
            self.target_seq, self.target = seq, tuple(target)
            self._resize()

    def order_stop(self, seq: int, why: str, grace_s: float | None = None) -> None:
        """A later order with a shorter grace still counts."""
        self.seen_seq = max(self.seen_seq, seq)
        self._told_to_stop = True
        self._end(Outcome(STOPPED, why=why), why, grace_s)

    # -- what happens --------------------------------------------------------------------------------

    def hear(self, name: str, message: Message | Gone) -> None:
        member = self.members.get(name)
        if member is None or isinstance(message, Gone):
            return
        if isinstance(message, Renew):
            self._endpoint.send(name, Renewed(message.number))
        elif isinstance(message, Hello):
            member.elastic = message.elastic
            self.roster.hello(name, message.elastic, message.address)
            current = self.roster.current
            listed = current is not None and current.find(name) is not None
            self._endpoint.send(name, Welcome(self.record.lease_s, current if listed else None))
            if member.leaving and self.outcome is not None:  # the notice went out before it listened
                self._endpoint.send(name, StopNotice(self.outcome.why, self.record.grace_s))
        elif isinstance(message, Joined):
            self.roster.joined(name, message.version)
            member.joined, member.suspected = True, 0
        elif isinstance(message, Progress):
            if self.work.report(name, message, self._is_alive):
                self._replacements.progressed(self.work.done)
        elif isinstance(message, Suspect):
            self._suspect(message)

    def exited(self, pid: int, code: int) -> None:
        """A child was reaped. Messages that it sent before have been heard."""
        member = next((m for m in self.alive if m.process.pid == pid), None)
        if member is None:
            return  # an orphan that was adopted
        member.code = member.process.returncode = code
        member.term_at_s = member.kill_at_s = None
        why = processes.describe_exit(member.name, code)
        with contextlib.suppress(OSError):  # a full disk must not take the gang down
            replace_json(self.folder.exit_record(member.name), {"code": code, "why": why})
        if self.outcome is not None or self._restarting or member.leaving:
            self.roster.dismiss([member.name], why)
        elif code == 0:
            self._finished_one(member)
        else:
            self._died(member, code, why)

    def tick(self) -> None:
        """Do what is due: escalations, replacements, memberships, decisions that waited."""
        now_s = self._clock_s()
        if self.outcome is None:
            self._keep_going(now_s)
        ending.escalate(self.alive, now_s)
        if not self.alive and not self.over:
            self._nobody_lives()

    def next_due_s(self) -> float:
        """When `tick` has something to do at the latest."""
        due = [math.inf, *ending.next_due_s(self.alive)]
        if self.outcome is None:
            due += [
                self._finish_by_s,
                self._replacements.next_due_s,
                math.inf if self._renew_at_s is None else self._renew_at_s,
            ]
            if not self.started:
                due.append(self._begun_s + self.record.hello_wait_s)
            if self._resize_waits:
                due.append(self._hello_limit_s())
            due += map(self._patience_ends_s, self._stragglers())
        return min(due)

    # -- starting ------------------------------------------------------------------------------------

    def _start_all(self, slots: Sequence[Slot]) -> bool:
        """All or nobody."""
        ordered = in_rank_order(slots)
        self._begun_s = self._clock_s()
        port = processes.free_port()
        try:
            for slot in ordered:
                self._start(slot, ordered, port)
        except (CannotStart, OSError) as error:
            own_fault = isinstance(error, CannotStart)
            why = str(error) if own_fault else f"this machine could not start the job: {error}"
            self._end(Outcome(START_FAILED, why=why, own_fault=own_fault), why, grace_s=0.0)
            return False
        return True

    def _start(self, slot: Slot, gang: Sequence[Slot], port: int, why: str = "") -> Member:
        name = self.roster.admit(slot.role, slot.node, slot.local_rank, why)
        of_role = [other for other in gang if other.role == slot.role]
        seat = Seat(
            rank=next((rank for rank, other in enumerate(of_role) if other is slot), len(of_role) - 1),
            size=sum(other.role == processes.WORKER for other in gang),
            master_addr="127.0.0.1",
            master_port=port,
            groups=len({other.node for other in gang}),
            extra={"TRAINMASTER_AGENT": self.folder.agent_address},
        )
        env = processes.environment(self.record, slot, name, seat, self._base_env)
        try:
            member = processes.start(self.record, slot, name, env, self.folder.log(name), self._clock_s())
        except BaseException:
            self.roster.dismiss([name])
            raise
        self.members[name] = member
        return member

    # -- resizing ------------------------------------------------------------------------------------

    def _resize(self) -> None:
        """Go for the target: in place if the gang is elastic, else by a restart; wait if that is not known yet."""
        if self._restarting:
            return  # it will start at the newest target
        wanted = self._change()
        if not wanted.leave and not wanted.fill:
            self._resize_waits = False
            self._replacements.clear()
            return
        if not self._kind_known():
            self._resize_waits = True
            return
        self._resize_waits = False
        self._replacements.clear()
        if not self.elastic or not wanted.workers_stay:
            self._restart()
            return
        for member in self.members.values():
            if member.name in wanted.stay:
                member.slot = wanted.stay[member.name]
        for name in wanted.leave:
            self.members[name].leaving = True
            if not self.members[name].joined:  # nothing to hand over
                self._ask_to_end(self.members[name], "resize")
        self.roster.dismiss(wanted.leave, "resize")
        for slot in wanted.fill:
            self._replacements.add(slot, self._clock_s())

    def _change(self) -> Change:
        return change({m.name: m.slot for m in self.alive if not m.leaving}, self.target)

    def _kind_known(self) -> bool:
        """Whether it is clear if the gang is elastic: it has come together, or it does not speak."""
        return self.roster.current is not None or self._clock_s() >= self._hello_limit_s()

    def _hello_limit_s(self) -> float:
        spoken = any(member.elastic is not None for member in self.alive)
        return self._begun_s + (HELLO_LIMIT_S if spoken else PLAIN_AFTER * self.record.hello_wait_s)

    def _restart(self) -> None:
        self._restarting = True
        for member in self.alive:
            self._ask_to_end(member, "resize")

    def _note_resized(self) -> None:
        """The target is reached when everybody works under the last membership and nobody else is left."""
        if self.applied_seq == self.target_seq or self._resize_waits or self._restarting:
            return
        wanted = self._change()
        if wanted.leave or wanted.fill or any(member.leaving for member in self.alive):
            return
        if self.roster.settled or not self.elastic:
            self.applied_seq = self.target_seq

    # -- going on ------------------------------------------------------------------------------------

    def _keep_going(self, now_s: float) -> None:
        if self._restarting:
            return
        for slot in self._replacements.due(now_s):
            try:
                self._start(slot, self.target, processes.free_port(), "a newcomer")
            except (CannotStart, OSError) as error:
                self._count_death(slot, f"a newcomer could not be started: {error}", 126)
        if self._renew_at_s is not None and now_s >= self._renew_at_s:
            self._renew_at_s = None
            self.roster.renew("contact was lost")
        if now_s >= self._finish_by_s:
            self._end(Outcome(EXITED, 0), DONE)
            return
        if not self._finishing:  # who is about to finish need not come together without those who have
            self._tell_membership()
        if not self.started and (self.roster.settled or now_s >= self._begun_s + self.record.hello_wait_s):
            self.started = True
        if self._resize_waits and self._kind_known():
            self._resize()
        self._note_resized()
        self._lose_patience(now_s)

    def _tell_membership(self, without_awaited: bool = False) -> None:
        membership = self.roster.advance(without_awaited)
        if membership is None:
            return
        self._told_s, self._renew_at_s = self._clock_s(), None
        for member in self.alive:
            self._endpoint.send(member.name, membership)
            if member.leaving and membership.find(member.name) is None:
                ending.let_go(member, self._told_s, LEAVE_S)

    def _patience_ends_s(self, member: Member) -> float:
        """Until when it must have said hello, or have joined: counted from its start, or from being told."""
        since_s = self._told_s if member.elastic is not None else member.begun_s
        return since_s + self.record.join_patience_s

    def _stragglers(self) -> list[Member]:
        """Who keeps an elastic gang from being settled."""
        if self.roster.current is None or self.roster.settled or self._finishing:
            return []
        late = [self.members[name] for name in self.roster.unjoined]
        return [member for member in late if member.alive and member.kill_at_s is None]

    def _lose_patience(self, now_s: float) -> None:
        for member in self._stragglers():
            if now_s >= self._patience_ends_s(member):
                member.kill_at_s = now_s

    def _suspect(self, message: Suspect) -> None:
        current = self.roster.current
        if current is None or message.version != current.version or self._renew_at_s is not None:
            return
        self._renew_at_s = self._clock_s() + RENEW_AFTER_S
        for name in message.members:
            member = self.members.get(name)
            if member is not None and member.alive:
                member.suspected += 1
                if member.suspected >= SUSPICIONS:
                    member.signal(signal.SIGKILL)

    def _is_alive(self, name: str) -> bool:
        return name in self.members and self.members[name].alive

    # -- members that end ----------------------------------------------------------------------------

    def _finished_one(self, member: Member) -> None:
        """Exit code 0. When all workers have it, the job is done; meanwhile nobody new is let in.

        Workers of an elastic gang finish together: those who never came to work need not, and the others are
        not awaited for ever.
        """
        if not member.is_worker:
            return
        self._finishing = True
        self._replacements.clear()
        self.roster.dismiss([member.name])
        if self.elastic:
            for other in self.alive:
                if not other.joined:
                    self._ask_to_end(other, DONE)
            self._finish_by_s = min(self._finish_by_s, self._clock_s() + self.record.join_patience_s)
        if not any(other.is_worker and not other.leaving for other in self.alive):
            self._end(Outcome(EXITED, 0), DONE)

    def _died(self, member: Member, code: int, why: str) -> None:
        current = self.roster.current
        survivors = [m for m in self.alive if m.is_worker and current is not None and current.find(m.name) is not None]
        if not self.elastic or not survivors:
            kind = STOPPED if code in NOT_ITS_FAULT and member.elastic is not None else EXITED
            self._end(Outcome(kind, code, why), why)
            return
        self.roster.dismiss([member.name], why)
        if not self._finishing:
            self._count_death(member.slot, why, code)
        if self.outcome is None:
            self._tell_membership(without_awaited=True)

    def _count_death(self, slot: Slot, why: str, code: int) -> None:
        """Fill the slot again after a pause, or give the incarnation up."""
        if not self._replacements.died(slot, self._clock_s(), self.work.done):
            self._end(Outcome(EXITED, code, f"{why}; {self.record.max_attempts} deaths without progress"), why)

    def _nobody_lives(self) -> None:
        if self._restarting and self.outcome is None:
            self._restarting = False
            self.roster.dismiss(self.roster.members)
            self.roster.current = None
            self._replacements.clear()
            self._finishing = False
            self.members = {name: replace(member, leaving=True) for name, member in self.members.items()}
            if self._start_all(self.target):
                self.applied_seq = self.target_seq
                return
        if self.outcome is None:
            self.outcome = Outcome(EXITED, 1, "all members ended")
        self.over = True

    # -- ending --------------------------------------------------------------------------------------

    def _end(self, outcome: Outcome, why: str, grace_s: float | None = None) -> None:
        """Decide how it ends, and ask everybody to. The first decision holds; a shorter grace still counts."""
        if self.outcome is None:
            self.outcome = outcome
            self._replacements.clear()
        for member in self.alive:
            self._ask_to_end(member, why, grace_s)

    def _ask_to_end(self, member: Member, why: str, grace_s: float | None = None) -> None:
        grace_s = self.record.grace_s if grace_s is None else grace_s
        ending.ask_to_end(self._endpoint, member, why, grace_s, self._clock_s())

    def last_word(self) -> Outcome:
        """The outcome in full. A job that finished while it was being stopped has finished."""
        assert self.outcome is not None
        outcome = self.outcome
        if self._told_to_stop and outcome.kind == STOPPED:
            last = [m for m in self.members.values() if m.is_worker and m.name in self._last_gang()]
            if last and all(member.code == 0 and member.elastic is not None for member in last):
                outcome = Outcome(EXITED, 0)
        finished = outcome.kind == EXITED and outcome.code == 0
        return replace(
            outcome,
            started=self.started or bool(self.members),
            work_at_start=self.work.at_start,
            work_saved=max(self.work.done, self.work.saved) if finished else self.work.saved,
            seq=self.seen_seq,
        )

    def _last_gang(self) -> set[str]:
        current = self.roster.current
        return set() if current is None else {peer.member for peer in current.workers}
