"""One attempt's members as a state machine: who is started, told what, terminated when, and how the attempt ends.

No I/O and no clock. The owner feeds what it is asked (`set_target`, `stop`) and what it sees (`on_member`,
`on_message`, `on_node`), calls `advance(now_s)` until it returns nothing, and carries out the actions. The rules are
those of `gang.protocol`: nobody begins before the whole gang is there; an elastic gang loses members and gains others
under new memberships; a plain gang stands and falls together, and is resized by a restart.

Finished means that the command of every worker ended by itself, unasked, with code 0, or that the runtime said that
training is complete. A member that was stopped, evicted or deleted, or lost its lease, has not finished, whatever its
exit code.

Nothing is stored. A new owner calls `adopt` for every member that it finds, and hears the rest from the members.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from trainmaster.gang import actions as a
from trainmaster.gang import protocol as p
from trainmaster.gang import timeouts as t
from trainmaster.gang.actions import EXITED, NOBODYS, NODES, OWN, START_FAILED, STOPPED, Outcome, Seat
from trainmaster.gang.member_env import Rendezvous, rank_env
from trainmaster.gang.membership import Roster
from trainmaster.gang.progress import Work
from trainmaster.gang.protocol import WORKER, Membership, Message
from trainmaster.gang.replacements import Replacements

DONE = "training is complete"
STORY_LINES = 60


@dataclass(frozen=True)
class Rules:
    """Choices of the operator and of the job."""

    lease_s: float = 30.0
    grace_s: float = 20.0
    hello_wait_s: float = 0.0
    """The start of a gang that may speak is reported when it has come together, or after this time; 0: at once."""
    join_patience_s: float = 300.0
    """A member that keeps its gang from coming together for so long is terminated."""
    max_deaths: int = 3
    """An elastic gang is given up after so many deaths without progress in between."""
    release_s: float = 0.0
    """After the last member has ended, its nodes have so long to count their devices as free."""


@dataclass
class Member:
    name: str
    seat: Seat
    rank: int
    attached: bool = False
    host: str = ""
    told_to_begin: bool = False
    begun_s: float | None = None
    """When its command ran first; None: it does not run yet."""
    elastic: bool | None = None
    """None until it has said hello."""
    joined: bool = False
    """It has worked under a membership, so it holds state to hand over."""
    complete: bool = False
    leaving: bool = False
    """No longer wanted: its end is no death."""
    asked: a.Terminate | None = None
    kill_at_s: float = math.inf
    leave_by_s: float = math.inf
    suspected: int = 0
    severed: bool = False
    """Its node is lost."""
    end: a.Exited | None = None

    @property
    def alive(self) -> bool:
        return self.end is None

    @property
    def is_worker(self) -> bool:
        return self.seat.role == WORKER

    @property
    def succeeded(self) -> bool:
        if self.end is None or self.end.code != 0:
            return False
        return self.complete or (self.end.fault == OWN and self.asked is None)


@dataclass
class Attempt:
    """`new_port(version)` gives a port on the master's host; version 0 is for a gang without memberships."""

    rules: Rules
    new_port: Callable[[int], int]
    work: Work = field(default_factory=Work)
    first_version: int = 1
    """A new owner begins beyond whatever versions the one before may have sent."""

    def __post_init__(self) -> None:
        self.roster = Roster(self._host_of, self.new_port, self.first_version)
        self.members: dict[str, Member] = {}
        """Alive or not, in the order of their start."""
        self.target: tuple[Seat, ...] = ()
        self.target_seq = self.applied_seq = 0
        self.started = False
        self.outcome: Outcome | None = None
        """How it will end, once that is decided; it is over when no member is left."""
        self.over = False
        self._inbox: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._out: list[a.Action] = []
        self._story: deque[str] = deque(maxlen=STORY_LINES)
        self._now_s = 0.0
        self._told_started = False
        self._restarting = True
        self._target_changed = False
        self._finishing = False
        self._finish_by_s = self._renew_at_s = math.inf
        self._begun_s: float | None = None
        self._told_s = 0.0
        self._emptied_s = math.inf
        self._port = 0
        self._silent: frozenset[str] = frozenset()
        self._replacements = Replacements(self.rules.max_deaths)

    # -- what may be asked -------------------------------------------------------------------------------

    @property
    def alive(self) -> list[Member]:
        return [member for member in self.members.values() if member.alive]

    @property
    def staying(self) -> list[Member]:
        return [member for member in self.alive if not member.leaving]

    @property
    def elastic(self) -> bool:
        """The gang has come together, and all who belong to it go along with changes: a member that is listed has said
        so, perhaps to an owner before this one."""
        current = self.roster.current
        if current is None:
            return False
        listed = [self.members[peer.member] for peer in current.peers if peer.member in self.members]
        return not any(member.elastic is False for member in listed if member.alive and not member.leaving)

    @property
    def begun(self) -> bool:
        """Every member that is wanted runs its command."""
        staying = self.staying
        return bool(staying) and all(member.begun_s is not None for member in staying)

    def story(self) -> str:
        """The last transitions, for errors."""
        return "\n".join(self._story)

    # -- what is asked of it, and what is seen -------------------------------------------------------------

    def set_target(self, seats: Sequence[Seat], seq: int, *, launch: bool = False) -> None:
        """These seats are to be filled. Older commands are ignored. `launch`: nobody waits for a `Resized`."""
        self._take(self._on_target, tuple(seats), seq, launch)

    def stop(self, why: str, grace_s: float | None = None) -> None:
        """End every member. A later order with a shorter grace still counts; a lost node is reported again."""
        self._take(self._on_stop, why, grace_s)

    def fail_start(self, why: str, node: str | None = None) -> None:
        """Members cannot be provided for: a failed start, or the end of an attempt that had started."""
        self._take(self._on_refusal, why, node)

    def on_member(self, name: str, state: a.MemberState) -> None:
        self._take(self._on_member, name, state)

    def on_message(self, name: str, message: Message) -> None:
        """Progress is taken at once, for it is frequent and decides nothing; no `advance` is needed after it."""
        if isinstance(message, p.Progress):
            self._on_progress(name, message)
        else:
            self._take(self._on_message, name, message)

    def on_node(self, node: str, ready: bool) -> None:
        self._take(self._on_node, node, ready)

    def adopt(self, name: str, seat: Seat, rank: int, leaving: bool = False) -> Member:
        """A member that another owner has started, perhaps with its command, and perhaps has asked to leave."""
        self._restarting = False
        self.roster.admit(seat.role, seat.node, seat.local_rank, "a newcomer", name)
        member = self.members[name] = Member(name, seat, rank, told_to_begin=True, leaving=leaving)
        if leaving:
            self.roster.dismiss([name], "resize")
        return member

    def assume_started(self) -> None:
        """Another owner has reported the start."""
        self.started = self._told_started = True

    def _take(self, handle: Callable[..., None], *values: Any) -> None:
        """Handled in order by the next `advance`, which knows the time."""
        self._inbox.append((handle, values))

    def _on_target(self, seats: tuple[Seat, ...], seq: int, launch: bool) -> None:
        if seq <= self.target_seq:
            return
        if launch and self.target_seq == 0:
            self.applied_seq = seq
        if self.outcome is None and not self._finishing:
            self._tell(f"target {seq}: {len(seats)} seats")
            self.target_seq, self.target = seq, seats
            self._target_changed = not self._restarting

    def _on_stop(self, why: str, grace_s: float | None) -> None:
        self._silent = frozenset()
        self._end(Outcome(STOPPED, why=why), why, grace_s)

    def _on_refusal(self, why: str, node: str | None) -> None:
        self._end(Outcome(STOPPED, why=why) if self.started else Outcome(START_FAILED, 1, why, node), why)

    def _on_member(self, name: str, state: a.MemberState) -> None:
        member = self.members.get(name)
        if member is None:
            return
        if isinstance(state, a.Released | a.Emptied):
            self._emptied_s = math.inf
            released = isinstance(state, a.Released)
            member.end = None if member.end is None else replace(member.end, released=released, outlived=False)
        elif not member.alive:
            return
        elif isinstance(state, a.Exited):
            self._tell(f"{name}: {state.why or 'ended'} (code {state.code}, fault: {state.fault})")
            member.end, self._emptied_s = state, math.inf
            self._ended(member, state)
        elif isinstance(state, a.Attached):
            member.attached, member.host, member.told_to_begin = True, state.host, False
            if member.asked is not None:
                self._send(name, p.StopNotice(member.asked.why, member.asked.grace_s))
        elif isinstance(state, a.Detached):
            member.attached = False
        elif isinstance(state, a.Running):
            self._runs(member)
        elif not member.leaving:
            self._end(Outcome(START_FAILED, 1, state.why), state.why)

    def _on_message(self, name: str, message: Message) -> None:
        member = self.members.get(name)
        if member is None or not member.alive:
            return
        if isinstance(message, p.Began):
            self._runs(member)
        elif isinstance(message, p.Hello):
            self._runs(member)
            member.elastic = message.elastic
            self.roster.hello(name, message.elastic, message.address)
            current = self.roster.current
            listed = current is not None and current.find(name) is not None
            self._send(name, p.Welcome(self.rules.lease_s, current if listed else None))
            if current is not None and not listed and member.leaving:
                self._send(name, current)  # it may have missed that it is left out
            if member.asked is not None:  # the notice was sent before it listened
                self._send(name, p.StopNotice(member.asked.why, member.asked.grace_s))
        elif isinstance(message, Membership):
            self.roster.resume(message)
            self._told_s = max(self._told_s, self._now_s)
        elif isinstance(message, p.Joined):
            self.roster.joined(name, message.version)
            member.joined, member.suspected = True, 0
        elif isinstance(message, p.Suspect):
            self._suspect(message)

    def _on_progress(self, name: str, message: p.Progress) -> None:
        member = self.members.get(name)
        if member is None or not member.alive:
            return
        member.complete = member.complete or message.complete
        if self.work.report(name, message, lambda other: other in self.members and self.members[other].alive):
            self._replacements.progressed(self.work.done)

    def _on_node(self, node: str, ready: bool) -> None:
        for member in self.members.values():
            if member.seat.node == node:
                member.severed = not ready

    def _runs(self, member: Member) -> None:
        if member.begun_s is None:
            member.begun_s = self._now_s

    def _suspect(self, message: p.Suspect) -> None:
        current = self.roster.current
        if current is None or message.version != current.version or self._renew_at_s < math.inf:
            return
        self._renew_at_s = self._now_s + t.RENEW_AFTER_S
        for name in message.members:
            member = self.members.get(name)
            if member is not None and member.alive:
                member.suspected += 1
                if member.suspected >= t.SUSPICIONS:
                    self._kill(member, "its peers cannot reach it")

    # -- what follows ------------------------------------------------------------------------------------

    def advance(self, now_s: float) -> list[a.Action]:
        """What is to be done now. Call again after carrying it out, until nothing is."""
        self._now_s = now_s
        inbox, self._inbox = self._inbox, []
        for handle, values in inbox:
            handle(*values)
        if self.outcome is None and not self._restarting:
            self._go_on()
        for member in self.alive:
            if now_s >= member.leave_by_s:
                member.leave_by_s = math.inf
                self._ask(member, "no longer wanted")
        if not self.alive and not self.over:
            self._nobody_lives()
        elif self.outcome is not None:
            self._note_silence()
        out, self._out = self._out, []
        return out

    def next_due_s(self) -> float:
        """When `advance` has something to do at the latest."""
        due = [member.leave_by_s for member in self.alive]
        if self.outcome is not None or self._restarting:
            return min([self._emptied_s + self.rules.release_s, *due]) if not self.over else math.inf
        due += [self._finish_by_s, self._renew_at_s, self._replacements.next_due_s]
        due.append(self._emptied_s + self.rules.release_s)
        if self._begun_s is not None and not self.started:
            due.append(self._begun_s + self.rules.hello_wait_s)
        if self._target_changed:
            due.append(self._hello_limit_s())
        due += map(self._patience_ends_s, self._stragglers())
        return min(due)

    def _go_on(self) -> None:
        now_s = self._now_s
        if self._target_changed:
            self._resize()
            if self._restarting:
                return
        for seat in self._replacements.due(now_s):
            self._start(seat)
        if now_s >= self._renew_at_s:
            self._renew_at_s = math.inf
            self.roster.renew("contact was lost")
        if now_s >= self._finish_by_s:
            self._end(Outcome(EXITED, 0), DONE)
            return
        self._begin_who_may()
        if not self._finishing:  # who is about to finish need not come together without those who have
            self._send_membership()
        self._note_started()
        self._note_resized()
        for member in self._stragglers():
            if now_s >= self._patience_ends_s(member):
                self._kill(member, "it does not join the others")

    # -- starting ----------------------------------------------------------------------------------------

    def _start_all(self) -> None:
        self._restarting = self._target_changed = self._finishing = False
        self._begun_s = None
        self._finish_by_s = self._renew_at_s = math.inf
        self.roster.dismiss(self.roster.members)
        self.roster.current = None
        self._replacements.clear()
        self._port = self.new_port(0)
        for seat in a.in_rank_order(self.target):
            self._start(seat)

    def _start(self, seat: Seat) -> None:
        taken = {member.rank for member in self.staying if member.seat.role == seat.role}
        rank = next(rank for rank in range(len(taken) + 1) if rank not in taken)
        name = self.roster.admit(seat.role, seat.node, seat.local_rank, "a newcomer")
        self.members[name] = Member(name, seat, rank)
        self._tell(f"{name}: start on {seat.node}")
        self._out.append(a.Start(name, seat, rank))

    def _begin_who_may(self) -> None:
        staying = self.staying
        waiting = [member for member in staying if member.begun_s is None]
        if not waiting:
            if self._begun_s is None and (self._target_changed or len(staying) >= len(self.target)):
                self._begun_s = self._now_s
            return
        current = self._in_place()
        here = self._finishing or len(staying) >= len(
            self.target
        )  # who has succeeded was told to begin with the others
        whole = here and bool(self.target) and all(member.attached for member in waiting)
        if not whole and (current is None or not self.target):
            return
        for member in waiting:
            if member.attached and not member.told_to_begin:
                member.told_to_begin = True
                self._send(member.name, p.Begin(rank_env(member.seat, member.rank, self._rendezvous(current))))

    def _in_place(self) -> Membership | None:
        """The membership that newcomers will join: one of its workers is there, and stays."""
        current = self.roster.current
        if current is None:
            return None
        listed = [self.members.get(peer.member) for peer in current.workers]
        return current if any(m is not None and m.joined and m.alive and not m.leaving for m in listed) else None

    def _rendezvous(self, current: Membership | None) -> Rendezvous:
        size = sum(seat.role == WORKER for seat in self.target)
        groups = len({seat.node for seat in self.target})
        if current is not None:
            return Rendezvous(size, current.master_addr, current.master_port, groups)
        first = min((m for m in self.staying if m.is_worker), key=lambda m: m.rank, default=None)
        return Rendezvous(size, "" if first is None else first.host, self._port or self.new_port(0), groups)

    def _host_of(self, member: str) -> str:
        return self.members[member].host if member in self.members else ""

    def _note_started(self) -> None:
        if not self.started and self._begun_s is not None:
            mute = any(member.elastic is False for member in self.staying)
            self.started = self.roster.settled or mute or self._now_s >= self._begun_s + self.rules.hello_wait_s
        if self.started and not self._told_started and self.target_seq:
            self._told_started = True
            self._tell("started")
            self._out.append(a.Report(a.Started()))

    # -- resizing ----------------------------------------------------------------------------------------

    def _resize(self) -> None:
        """Go for the target: in place if the gang is elastic, or only grows before anybody has begun; else restart.
        Wait while that is not known."""
        if self.alive and not self.staying:  # an owner before this one has begun to restart it
            self._restarting, self._target_changed = True, False
            return
        wanted = self._change()
        if wanted.leave or wanted.fill:
            early = all(member.begun_s is None and not member.told_to_begin for member in self.alive)
            if not early and self.roster.current is None and self._now_s < self._hello_limit_s():
                return
            in_place = not wanted.leave if early else self.elastic and wanted.workers_stay
            if not in_place:
                self._restart()
                return
        self._target_changed = False
        self._replacements.clear()
        for name, seat in wanted.stay.items():
            self.members[name].seat = seat
        for name in wanted.leave:
            self.members[name].leaving = True
            if not self._holds_state(self.members[name]):
                self._ask(self.members[name], "resize")
        self.roster.dismiss(wanted.leave, "resize")
        for seat in a.in_rank_order(wanted.fill):
            self._start(seat)

    def _holds_state(self, member: Member) -> bool:
        """It has joined, or is listed and has not spoken to this owner yet."""
        current = self.roster.current
        return member.joined or (
            member.elastic is None and current is not None and current.find(member.name) is not None
        )

    def _change(self) -> a.SeatChange:
        return a.change_seats({member.name: member.seat for member in self.staying}, self.target)

    def _hello_limit_s(self) -> float:
        """When a gang that has not come together counts as plain."""
        if self._begun_s is None:
            return math.inf
        spoken = any(member.elastic is not None for member in self.alive)
        return self._begun_s + (t.HELLO_LIMIT_S if spoken else t.PLAIN_AFTER * self.rules.hello_wait_s)

    def _restart(self) -> None:
        self._tell("restart at the new size")
        self._restarting, self._target_changed = True, False
        for member in self.alive:
            self._ask(member, "resize")

    def _note_resized(self) -> None:
        """The target is reached when everybody works under the last membership and nobody else is left."""
        if self.applied_seq >= self.target_seq or self._target_changed or self._finishing or not self.started:
            return
        wanted = self._change()
        if wanted.leave or wanted.fill or len(self.staying) < len(self.alive) or not self.begun:
            return
        if (self.roster.settled or not self.elastic) and not self._devices_held():
            self._emptied_s = math.inf
            self.applied_seq = self.target_seq
            self._tell(f"resized ({self.target_seq})")
            self._out.append(a.Report(a.Resized(self.target_seq)))

    # -- memberships -------------------------------------------------------------------------------------

    def _send_membership(self, without_awaited: bool = False) -> None:
        membership = self.roster.advance(without_awaited)
        if membership is None:
            return
        self._tell(f"membership {membership.version}: {' '.join(peer.member for peer in membership.peers)}")
        self._told_s, self._renew_at_s = self._now_s, math.inf
        for member in self.alive:
            self._send(member.name, membership)
            if member.leaving and member.asked is None and membership.find(member.name) is None:
                member.leave_by_s = self._now_s + t.LEAVE_S

    def _stragglers(self) -> Iterable[Member]:
        """Who keeps an elastic gang from being settled."""
        if self.roster.current is None or self.roster.settled or self._finishing:
            return ()
        late = [self.members[name] for name in self.roster.unjoined]
        return [member for member in late if member.alive and member.begun_s is not None and member.asked is None]

    def _patience_ends_s(self, member: Member) -> float:
        """Until when it must have said hello, or have joined: counted from its start, or from the membership."""
        since_s = self._told_s if member.elastic is not None or member.begun_s is None else member.begun_s
        return since_s + self.rules.join_patience_s

    # -- members that end --------------------------------------------------------------------------------

    def _ended(self, member: Member, end: a.Exited) -> None:
        if self.outcome is not None or self._restarting or member.leaving:
            self.roster.dismiss([member.name], end.why)
        elif member.succeeded or (self._finishing and self._completed):
            self._succeeded(member)
        else:
            self._died(member, end)

    @property
    def _completed(self) -> bool:
        """The runtime said that training is complete, and ended with code 0."""
        return any(member.complete and member.succeeded and member.is_worker for member in self.members.values())

    def _succeeded(self, member: Member) -> None:
        """When all workers have succeeded, the job has finished; meanwhile nobody new is let in.

        Workers of an elastic gang finish together: those who never joined need not, and the others have a time limit.
        """
        if not member.is_worker:
            return
        elastic = self.elastic
        self._finishing, self._target_changed = True, False
        self._replacements.clear()
        self.roster.dismiss([member.name])
        if elastic:
            for other in self.alive:
                if not other.joined:
                    self._ask(other, DONE)
            self._finish_by_s = min(self._finish_by_s, self._now_s + self.rules.join_patience_s)
        if not any(other.is_worker for other in self.staying):
            self._end(Outcome(EXITED, 0), DONE)

    def _died(self, member: Member, end: a.Exited) -> None:
        current = self.roster.current
        survivors = current is not None and any(m.is_worker and current.find(m.name) for m in self.staying)
        if self.elastic and survivors:
            self.roster.dismiss([member.name], end.why)
            if not self._finishing:
                self._replace(member, end)
            if self.outcome is None:
                self._send_membership(without_awaited=True)
        elif end.ran or self.started or end.fault == NOBODYS:
            kind = EXITED if end.fault == OWN else STOPPED
            code = end.code or 1  # who was asked to end has not finished, however politely it ends
            self._end(Outcome(kind, code if kind == EXITED else 0, end.why), end.why)
        else:
            node = member.seat.node if end.fault == NODES else None
            self._end(Outcome(START_FAILED, end.code, end.why, node), end.why, grace_s=0.0)

    def _replace(self, member: Member, end: a.Exited) -> None:
        """Fill the seat again after a pause, or give the attempt up."""
        done = -math.inf if math.isnan(self.work.done) else self.work.done
        its_own = end.fault != NOBODYS or member.asked is not None
        if not self._replacements.died(member.seat, self._now_s, done, its_own):
            why = f"{end.why}; {self.rules.max_deaths} deaths without progress"
            self._end(Outcome(EXITED, end.code or 1, why), end.why)

    def _nobody_lives(self) -> None:
        if self.outcome is None and not self._restarting and not self._target_changed:
            own = any(member.end is not None and member.end.fault == OWN for member in self.members.values())
            self._end(Outcome(EXITED if own else STOPPED, int(own), "all members ended"), "")
        if self._devices_held():
            return
        if self.outcome is None:
            self._emptied_s = math.inf
            if self.target:
                self._start_all()
            return
        self.over = True
        outcome = self.outcome
        assert outcome is not None
        if outcome.kind == STOPPED and self._completed:
            outcome = self.outcome = Outcome(EXITED, 0)
        self._tell(f"over: {outcome.kind} {outcome.code} {outcome.why}")
        self._out.append(a.Report(a.Over(outcome)))

    def _devices_held(self) -> bool:
        """Whether a node may not count the devices of members that have ended as free yet."""
        held = [m.end for m in self.members.values() if m.end is not None and not m.end.released and not m.severed]
        outlived = any(end.outlived for end in held)
        self._emptied_s = math.inf if outlived else min(self._emptied_s, self._now_s)
        return outlived or (bool(held) and self._now_s < self._emptied_s + self.rules.release_s)

    # -- ending ------------------------------------------------------------------------------------------

    def _end(self, outcome: Outcome, why: str, grace_s: float | None = None) -> None:
        """Decide how it ends, and terminate everybody. The first decision holds; a shorter grace still counts."""
        if self.outcome is None:
            self._tell(f"ending: {outcome.kind} {outcome.code} {outcome.why}")
            self.outcome = outcome
            self._replacements.clear()
        for member in self.alive:
            self._ask(member, why, grace_s)

    def _ask(self, member: Member, why: str, grace_s: float | None = None) -> None:
        member.leaving, member.leave_by_s = True, math.inf
        self._terminate(member, why, self.rules.grace_s if grace_s is None else grace_s)

    def _kill(self, member: Member, why: str) -> None:
        """A member that is stuck. It is not leaving: its end is a death."""
        self._terminate(member, why, 0.0)

    def _terminate(self, member: Member, why: str, grace_s: float) -> None:
        if member.kill_at_s > self._now_s + grace_s:
            member.kill_at_s = self._now_s + grace_s
            member.asked = a.Terminate(member.name, why, grace_s)
            self._tell(f"{member.name}: terminate within {grace_s:g} s: {why}")
            self._out.append(member.asked)

    def _note_silence(self) -> None:
        """All that may live is on silent nodes, and everything on others is free."""
        nodes = frozenset(member.seat.node for member in self.alive)
        if not nodes or nodes == self._silent or not all(member.severed for member in self.alive):
            return
        if not self._devices_held():
            self._silent, self._emptied_s = nodes, math.inf
            self._out.append(a.Report(a.Silent(nodes)))

    def _send(self, member: str, message: Message) -> None:
        self._out.append(a.Send(member, message))

    def _tell(self, text: str) -> None:
        self._story.append(f"{self._now_s:.3f} {text}")
