"""One attempt as pods: its state machine, and what was seen of each member's pod and launcher. No I/O.

`gang.attempt` decides; here what pods and launchers say becomes what it is fed. Every answer follows from what is
there, so a new leader that finds the same pods comes to the same conclusions.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainmaster.backends.kubernetes.attempts import pod_objects as p
from trainmaster.backends.kubernetes.attempts.observations import PodSeat, RunFacts, RunKey
from trainmaster.backends.kubernetes.attempts.pod_objects import KILLED, Object
from trainmaster.gang.actions import (
    ALONE,
    NOBODYS,
    OWN,
    Emptied,
    Exited,
    Hopeless,
    Released,
    Running,
    Seat,
    Start,
    change_seats,
)
from trainmaster.gang.attempt import Attempt, Rules
from trainmaster.gang.attempt import Member as GangMember
from trainmaster.gang.protocol import SERVER, WORKER
from trainmaster.model.units import GPU_MILLI

FIRST_PORT, PORTS = 20_000, 12_000
"""Below the range that Linux gives to whoever asks for any port."""
RELEASE_S = 5.0
"""So long after the last container has ended, a kubelet that does not say that its devices are free is believed to have
freed them."""


def port_of(run: RunKey, version: int) -> int:
    """The same for every leader; another one for every membership."""
    return FIRST_PORT + zlib.crc32(f"{run.job_id}/{run.generation}/{version}".encode()) % PORTS


def pod_seat(role: str, node: str) -> Seat:
    """A member alone in its pod."""
    return Seat(role, node, group_rank=ALONE)


@dataclass
class Member:
    """`pod` is what was last seen of it; None: nothing yet."""

    name: str
    number: int
    gang: GangMember
    pod_name: str
    pod: Object | None = None
    making: bool = False
    """Its creation has been asked for."""
    gone: bool = False
    """The pod object has vanished."""
    bound: bool = False
    unwanted: bool = False
    """The attempt has asked for its end."""
    grace_s: float = 0.0
    """In which it is to end, once it is unwanted."""
    outlived: bool = False
    """Its command has ended, and other containers of its pod run on: they hold its devices."""
    delete_asked: bool = False
    running: bool = False
    heard: bool = False
    """A launcher has spoken for it, so it runs under a lease."""
    last_word: tuple[int, str] | None = None
    """Its launcher says that the command has ended: with what code, and why."""
    end: Exited | None = None
    """As the attempt was told."""

    @property
    def alive(self) -> bool:
        return self.end is None

    @property
    def node(self) -> str:
        return self.gang.seat.node

    @property
    def leaving(self) -> bool:
        return self.gang.leaving or self.unwanted


@dataclass
class Run:
    key: RunKey
    facts: RunFacts
    hello_wait_s: float = 10.0
    first_version: int = 1
    target: tuple[Seat, ...] = ()
    seq: int = 0
    """Of the command whose allocation is the target."""
    members: dict[str, Member] = field(default_factory=dict)
    told_progress: tuple[Any, ...] = ()
    n_granted: int | None = None
    """Workers that there were when a quota refused more."""
    timer: asyncio.TimerHandle | None = None

    def __post_init__(self) -> None:
        facts = self.facts
        may_speak = facts.launcher and facts.spec.elastic
        rules = Rules(
            facts.lease_s,
            facts.grace_s,
            self.hello_wait_s if may_speak else 0.0,
            max_deaths=facts.spec.max_attempts,
            release_s=RELEASE_S,
        )
        self.attempt = Attempt(rules, lambda version: port_of(self.key, version), first_version=self.first_version)

    # -- who is there ------------------------------------------------------------------------------------

    @property
    def started(self) -> bool:
        return self.attempt.started

    @property
    def over(self) -> bool:
        return self.attempt.over

    @property
    def alive(self) -> list[Member]:
        return [member for member in self.members.values() if member.alive]

    def staying(self) -> list[Member]:
        return [member for member in self.alive if not member.leaving]

    def aim(self, seats: Sequence[Seat], seq: int, launch: bool = False) -> None:
        if seq > self.seq:
            self.target, self.seq = tuple(seats), seq
            self.attempt.set_target(seats, seq, launch=launch)

    def enlist(self, start: Start) -> Member:
        """The attempt wants this member."""
        return self._enter(start.member, self.attempt.members[start.member])

    def _enter(self, name: str, gang: GangMember) -> Member:
        number = int(name.rpartition("-")[2])
        member = Member(name, number, gang, p.pod_name(self.facts, gang.seat.role, number))
        self.members[name] = member
        return member

    def pod_seat(self, member: Member, accelerator: str) -> PodSeat:
        seat = member.gang.seat
        here = [m for m in self.staying() if m.node == seat.node and m.gang.seat.role == seat.role]
        local = next((k for k, m in enumerate(here) if m is member), 0)
        count = {role: sum(other.role == role for other in self.target) for role in (WORKER, SERVER)}
        return PodSeat(
            member.name,
            seat.role,
            member.gang.rank,
            seat.node,
            local,
            self.n_devices(member),
            count[WORKER],
            count[SERVER],
            accelerator,
        )

    def n_devices(self, member: Member) -> int:
        """That its pod asks for."""
        worker = self.facts.spec.worker
        return worker.devices if member.gang.is_worker and worker.gpu_milli >= GPU_MILLI else 0

    def adopt(self, pod: Object) -> Member | None:
        """A pod that another process has made; None when what it says of itself cannot be."""
        name, role, number = p.member_of(pod)
        if name != f"{role}-{number}":
            return None
        seat = pod_seat(role, p.node_meant(pod))
        end = p.end_of(pod, self.facts.launcher)
        asked = pod["metadata"].get("deletionTimestamp") is not None
        leaving = asked if end is None else self._had_left(name, seat, end)
        gang = self.attempt.adopt(name, seat, p.rank_of(pod), leaving)
        gang.told_to_begin = self.facts.launcher  # without one, the pod's status tells whether the command runs
        member = self._enter(name, gang)
        member.unwanted = member.delete_asked = asked
        return member

    def _had_left(self, name: str, seat: Seat, end: Exited) -> bool:
        """Whether an adopted member that has ended had been replaced or left out before. One that a resize had left out
        ended with 0, as those do who finish, but the target has no seat for it. Adopt those who live first."""
        if end.code == 0 and end.fault == OWN and self.target:
            return name not in change_seats({**self._seated(), name: seat}, self.target).stay
        return bool(self.staying()) and self.facts.spec.elastic

    def empty_seats(self) -> tuple[Seat, ...]:
        """Seats of the target without a member that holds them, or has ended there."""
        return change_seats(self._seated(), self.target).fill

    def _seated(self) -> dict[str, Seat]:
        return {m.name: m.gang.seat for m in self.members.values() if not m.leaving}

    def vanish(self, is_ready: Callable[[str], bool], leased: bool) -> list[Member]:
        """Members of the target whose pods went while nobody watched, which says nothing of their trainers: they are
        waited for like those of any pod that vanishes."""
        lost = []
        for seat in self.empty_seats():
            number = max((m.number for m in self.members.values() if m.gang.seat.role == seat.role), default=-1) + 1
            name = f"{seat.role}-{number}"
            member = self._enter(name, self.attempt.adopt(name, seat, number))
            member.heard = leased
            lost.append(member)
        for member in lost:
            self.saw(member, p.unseen_pod(member.pod_name, member.node), True, is_ready(member.node))
        return lost

    # -- what was seen -----------------------------------------------------------------------------------

    def saw(self, member: Member, pod: Object, gone: bool, node_ready: bool) -> None:
        """A pod's present state, or its last one before it vanished."""
        member.pod, member.gone = pod, gone
        member.bound = member.bound or p.node_of(pod) is not None
        member.running = p.is_running(pod)
        was_outlived, member.outlived = member.outlived, not gone and p.is_outlived(pod)
        if member.end is not None:
            if gone or p.is_released(pod):
                self.attempt.on_member(member.name, Released())
            elif was_outlived and not member.outlived:
                self.attempt.on_member(member.name, Emptied())
            return
        end = p.end_of(pod, self.facts.launcher)
        if end is not None:
            released = gone or p.is_released(pod)
            if not gone:  # its kubelet has spoken, and will say when the devices are free
                self.attempt.on_node(member.node, ready=True)
            self.ended(member, Exited(end.code, end.why, end.fault, end.ran, released, member.outlived))
        elif gone:
            self._vanished(member, node_ready)
        elif member.running and not self.facts.launcher:
            self.attempt.on_member(member.name, Running())
        elif (hopeless := p.hopeless(pod)) is not None:
            self.attempt.on_member(member.name, Hopeless(f"{member.pod_name}: {hopeless}"))

    def _vanished(self, member: Member, node_ready: bool) -> None:
        """It vanished before its status told the end. Where a lease runs, that is waited for (the launcher's word, or
        the lease's end), whatever the status says: it lags, or is that of a silent kubelet. Where none does, the node
        is believed as long as it answers."""
        if member.last_word is not None:
            self.certainly_over(member, *member.last_word)
        elif not member.bound or (not member.heard and (not member.running or node_ready)):
            self.ended(member, Exited(KILLED, f"{member.pod_name}: deleted", NOBODYS, ran=member.running))

    def said_ended(self, member: Member, code: int, why: str, node_ready: bool = True) -> None:
        """The launcher's word. The pod follows and says it too, unless it has vanished, or vanishes before that, or its
        kubelet is silent."""
        member.last_word = (code, why or "ended")
        if member.gone:
            self.certainly_over(member, *member.last_word)
        elif not node_ready:
            self.believe_last_word(member)

    def believe_last_word(self, member: Member) -> None:
        """Its kubelet is silent: nobody else will tell. Nothing is started there, so nobody needs its devices."""
        if member.last_word is not None:
            code, why = member.last_word
            fault = NOBODYS if code in p.NOBODYS_FAULT or member.delete_asked else OWN
            self.ended(member, Exited(code, "" if code == 0 else f"{member.pod_name}: {why}", fault))

    def certainly_over(self, member: Member, code: int = KILLED, why: str = "its lease ran out") -> None:
        self.ended(member, Exited(code, f"{member.pod_name}: {why}", NOBODYS))

    def ended(self, member: Member, end: Exited) -> None:
        if member.end is None:
            member.end = end
            self.attempt.on_member(member.name, end)
