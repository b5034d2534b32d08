"""The launchers of one incarnation: who is attached, who has begun, who belongs. No I/O but `AgentLine.send`.

The rules of `trainmaster.gang.protocol`: nobody begins before the whole gang is there; a gang whose members said that
they are elastic gains and loses members by memberships.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from trainmaster.backends.kubernetes.agent_lines import AgentLine
from trainmaster.backends.kubernetes.facts import PodSeat, RunFacts, RunKey
from trainmaster.gang.membership import Roster
from trainmaster.gang.protocol import (
    SERVER,
    WORKER,
    Attach,
    Began,
    Begin,
    Ended,
    Hello,
    Joined,
    Membership,
    Message,
    Noted,
    Progress,
    Refused,
    StopNotice,
    Suspect,
    Welcome,
)

FIRST_PORT, PORTS = 20_000, 12_000
"""Below the range that Linux gives to whoever asks for any port."""
LEAVE_S = 60.0
"""A member that a membership leaves out may take so long to hand over what it holds."""
JOIN_PATIENCE_S = 300.0
RENEW_AFTER_S = 0.5
"""A member that others cannot reach has mostly died, and its exit is here before this."""
SUSPICIONS = 3
DONE = "the job is done"


class HubListener(Protocol):
    """What the backend is told. Calls come from the loop, one at a time, and must not block."""

    def begun(self, run: RunKey) -> None:
        """Every member that was admitted has started its command."""
        ...

    def here(self, run: RunKey, member: str, elastic: bool) -> None:
        """Its runtime has said hello."""
        ...

    def settled(self, run: RunKey, version: int, members: tuple[str, ...]) -> None:
        """Everybody works under this membership, which is the last word."""
        ...

    def progress(self, run: RunKey, member: str, progress: Progress) -> None: ...

    def exited(self, run: RunKey, member: str, code: int, why: str) -> None:
        """Its command has ended, and nothing of it is left. -N: by signal N."""
        ...

    def refused(self, run: RunKey, member: str, why: str) -> None:
        """Its command could not be started."""
        ...

    def lapsed(self, run: RunKey, member: str) -> None:
        """Its lease has certainly run out: it has ended itself, and will not be renewed."""
        ...


@dataclass(eq=False)
class Trainer:
    """One member as its launcher shows it. `answered_ms` is in engine time."""

    seat: PodSeat
    run: AgentRun
    line: AgentLine | None = None
    boot: str = ""
    host: str = ""
    answered_ms: int | None = None
    """None: it has never had a lease, so its command has never run."""
    told_to_begin: bool = False
    begun: bool = False
    ended: bool = False
    fenced: str = ""
    """Why it is not renewed any more; its end is still waited for."""
    lapsed: bool = False
    leaving: bool = False
    joined: bool = False
    elastic: bool | None = None
    suspected: int = 0
    stop_at_s: float = math.inf
    adopted: bool = False
    notice: StopNotice | None = None
    """The order to end, told again when it attaches again."""

    @property
    def name(self) -> str:
        return self.seat.member

    @property
    def over(self) -> bool:
        return self.ended or bool(self.fenced)

    def tell(self, message: Message) -> bool:
        if self.line is None:
            return False
        self.line.send(message)
        return True


class AgentRun:
    """`clock_s` is monotonic, for patience only; leases are the hub's."""

    def __init__(
        self, facts: RunFacts, lease_s: float, listener: HubListener, clock_s: Callable[[], float], first_version: int
    ) -> None:
        self.facts = facts
        self.key = facts.key
        self.trainers: dict[str, Trainer] = {}
        self._lease_s = lease_s
        self._listener = listener
        self._clock_s = clock_s
        self.roster = Roster(self._host_of, self._next_port, first_version)
        self._told_begun = False
        self._told_settled = 0
        self._told_s = 0.0
        self._renew_at_s = math.inf
        self._finishing = False
        self.due_s = math.inf
        """When `tick` has something to do at the latest."""

    # -- the backend's orders ----------------------------------------------------------------------------

    def admit(self, seat: PodSeat, adopted: bool = False) -> Trainer:
        known = self.trainers.get(seat.member)
        if known is not None:
            return known
        trainer = self.trainers[seat.member] = Trainer(seat, self, adopted=adopted)
        self.roster.admit(seat.role, seat.node, why="a newcomer", name=seat.member)
        self._told_begun = False
        return trainer

    def dismiss(self, members: Iterable[str], why: str, died: bool) -> None:
        names = [name for name in members if name in self.trainers]
        for name in names:
            trainer = self.trainers[name]
            trainer.leaving = True
            if trainer.line is not None and not trainer.over:
                if trainer.joined:
                    trainer.stop_at_s = self._clock_s() + LEAVE_S
                    self.due_s = min(self.due_s, trainer.stop_at_s)
                else:  # nothing to hand over
                    trainer.tell(StopNotice(why, self.facts.grace_s))
        self.roster.dismiss(names, why)
        self.go_on(without_awaited=died)

    def stop(self, why: str, grace_s: float, members: Iterable[str] | None) -> None:
        notice = StopNotice(why, grace_s)
        for trainer in self._named(members):
            if not trainer.over:
                trainer.stop_at_s = math.inf
                trainer.leaving, trainer.notice = True, notice
                trainer.tell(notice)

    def fence(self, members: Iterable[str] | None, why: str) -> None:
        for trainer in self._named(members):
            trainer.fenced = trainer.fenced or why
            trainer.tell(Refused(why))  # the line stays: it has a last word, which is better than its lease's end

    def _named(self, members: Iterable[str] | None) -> list[Trainer]:
        names = self.trainers if members is None else members
        return [self.trainers[name] for name in names if name in self.trainers]

    # -- what comes in -----------------------------------------------------------------------------------

    def attach(self, line: AgentLine, attach: Attach, now_ms: int) -> Trainer | None:
        """None, and a refusal told, if this launcher may not run its command."""
        trainer = self.trainers.get(attach.member)
        why = ""
        if trainer is None:
            why = f"{attach.member} does not belong to incarnation {self.key.generation} of {self.key.job_id}"
        elif trainer.over:
            why = trainer.fenced or "its end was reported before"
            if not trainer.ended and not trainer.lapsed:
                trainer.line, line.owner = line, trainer
                line.send(Refused(why))
                return None
        elif trainer.boot not in ("", attach.boot) and (trainer.told_to_begin or trainer.begun):
            why = "its container was started again"
        if trainer is None or why:
            line.send(Refused(why))
            line.close()
            return None
        if trainer.line is not None and trainer.line is not line:
            trainer.line.owner = None
            trainer.line.close()
        trainer.line, line.owner = line, trainer
        trainer.boot, trainer.host = attach.boot, attach.host or line.remote_host
        trainer.begun |= attach.begun
        trainer.told_to_begin = trainer.begun  # what was sent on a line that broke may not have arrived
        trainer.answered_ms = now_ms
        line.send(Welcome(self._lease_s))
        if trainer.notice is not None:
            line.send(trainer.notice)
        elif trainer.leaving and not trainer.joined:
            line.send(StopNotice("no longer wanted", self.facts.grace_s))
        self.go_on()
        return trainer

    def hear(self, trainer: Trainer, message: Message) -> None:
        name = trainer.name
        if isinstance(message, Began):
            trainer.begun = True
        elif isinstance(message, Hello):
            trainer.elastic = message.elastic
            self.roster.hello(name, message.elastic, message.address)
            current = self.roster.current
            listed = current is not None and current.find(name) is not None
            trainer.tell(Welcome(self._lease_s, current if listed else None))
            self._listener.here(self.key, name, message.elastic)
        elif isinstance(message, Membership):
            self.roster.resume(message)
        elif isinstance(message, Joined):
            self.roster.joined(name, message.version)
            trainer.joined, trainer.suspected = True, 0
        elif isinstance(message, Progress):
            self._listener.progress(self.key, name, message)
            return
        elif isinstance(message, Suspect):
            self._suspect(message)
        elif isinstance(message, Ended):
            trainer.tell(Noted())
            self._ended(trainer, message)
        self.go_on()

    def _ended(self, trainer: Trainer, message: Ended) -> None:
        if trainer.ended:
            return
        trainer.ended = True
        if not message.started:
            self._listener.refused(self.key, trainer.name, message.why)
            return
        if message.code == 0 and not trainer.leaving and trainer.seat.role == WORKER:
            # Workers finish together: who is about to need not come together anew without those who have.
            self._finishing = True
            if self.elastic:
                for other in self.trainers.values():
                    if not other.joined and not other.over:
                        other.leaving = True
                        other.tell(StopNotice(DONE, self.facts.grace_s))
        self._listener.exited(self.key, trainer.name, message.code, message.why)

    def _suspect(self, message: Suspect) -> None:
        current = self.roster.current
        if current is None or message.version != current.version or self._renew_at_s < math.inf:
            return
        self._renew_at_s = self._clock_s() + RENEW_AFTER_S
        self.due_s = min(self.due_s, self._renew_at_s)
        for trainer in self._named(message.members):
            trainer.suspected += 1
            if trainer.suspected >= SUSPICIONS and not trainer.over:
                trainer.tell(StopNotice("its peers cannot reach it", 0.0))

    # -- what follows ------------------------------------------------------------------------------------

    @property
    def elastic(self) -> bool | None:
        """Whether all who belong go along with changes; None while that is not known."""
        if self.roster.current is None:
            return None
        listed = [self.trainers[peer.member] for peer in self.roster.current.peers if peer.member in self.trainers]
        return all(trainer.elastic for trainer in listed if not trainer.over and not trainer.leaving)

    def go_on(self, without_awaited: bool = False) -> None:
        if all(trainer.over or trainer.notice is not None for trainer in self.trainers.values()):
            return  # nobody stays
        self._begin_who_may()
        if not self._finishing:
            self._tell_membership(without_awaited)
        current = self.roster.current
        if current is not None and self.roster.settled and self._told_settled != current.version:
            self._told_settled = current.version
            self._listener.settled(self.key, current.version, tuple(peer.member for peer in current.peers))

    def tick(self, now_s: float) -> None:
        """What time has made due."""
        self.due_s = math.inf
        if now_s >= self._renew_at_s:
            self._renew_at_s = math.inf
            self.roster.renew("contact was lost")
            self.go_on()
        for trainer in self.trainers.values():
            if now_s >= trainer.stop_at_s and not trainer.over:
                trainer.stop_at_s = math.inf
                trainer.tell(StopNotice("no longer wanted", self.facts.grace_s))
        current = self.roster.current
        if current is not None and not self.roster.settled and now_s >= self._told_s + JOIN_PATIENCE_S:
            for trainer in self._named(self.roster.unjoined):
                if trainer.elastic is not None and not trainer.over:
                    trainer.tell(StopNotice("it does not join the others", 0.0))
        later = [trainer.stop_at_s for trainer in self.trainers.values() if not trainer.over]
        if current is not None and not self.roster.settled:
            later.append(max(self._told_s + JOIN_PATIENCE_S, now_s + 1.0))
        self.due_s = min([self.due_s, self._renew_at_s, *later])

    def _begin_who_may(self) -> None:
        wanted = [t for t in self.trainers.values() if not t.leaving and not t.over]
        if not self._told_begun and wanted and all(trainer.begun for trainer in wanted):
            self._told_begun = True
            self._listener.begun(self.key)
        waiting = [trainer for trainer in wanted if not trainer.begun]
        if self._in_place() is None and not all(trainer.line is not None for trainer in waiting):
            return
        for trainer in waiting:
            if trainer.line is not None and not trainer.told_to_begin:
                trainer.told_to_begin = True
                trainer.line.send(Begin(self._environment(trainer, wanted)))

    def _in_place(self) -> Membership | None:
        """The membership that newcomers will join: its workers are there, and go on."""
        current = self.roster.current
        if current is None:
            return None
        listed = [self.trainers.get(peer.member) for peer in current.workers]
        lives = any(t is not None and t.joined and not t.over and not t.leaving for t in listed)
        return current if lives else None

    def _environment(self, trainer: Trainer, gang: list[Trainer]) -> dict[str, str]:
        """What torchrun would set. One member per pod: its devices are all that it sees, so its local rank is 0."""
        seat = trainer.seat
        current = self._in_place()
        workers = sorted((t.seat.rank, t.name) for t in gang if t.seat.role == WORKER)
        master = current.master_addr if current is not None else self._host_of(workers[0][1] if workers else "")
        port = current.master_port if current is not None else port_of(self.key, 0)
        env = {"MASTER_ADDR": master, "MASTER_PORT": str(port)}
        if seat.role == SERVER:
            return env
        size = max(seat.workers, seat.rank + 1)
        return env | {
            "RANK": str(seat.rank), "WORLD_SIZE": str(size), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
            "GROUP_RANK": str(seat.rank), "GROUP_WORLD_SIZE": str(size), "ROLE_RANK": str(seat.rank),
            "ROLE_WORLD_SIZE": str(size), "ROLE_NAME": WORKER,
        }  # fmt: skip

    def _tell_membership(self, without_awaited: bool) -> None:
        membership = self.roster.advance(without_awaited)
        if membership is None:
            return
        self._told_s, self._renew_at_s = self._clock_s(), math.inf
        self.due_s = min(self.due_s, self._told_s + JOIN_PATIENCE_S)
        for trainer in self.trainers.values():
            if not trainer.over:
                trainer.tell(membership)

    def _host_of(self, member: str) -> str:
        return self.trainers[member].host if member in self.trainers else ""

    def _next_port(self, version: int) -> int:
        return port_of(self.key, version)


def port_of(run: RunKey, version: int) -> int:
    """The same for every leader; another one for every membership."""
    return FIRST_PORT + zlib.crc32(f"{run.job_id}/{run.generation}/{version}".encode()) % PORTS
