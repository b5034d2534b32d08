"""One incarnation as pods: who belongs to it, what is to be done next, and how it ended. No I/O.

The backend tells it what is wanted (`aim`, `stop`) and what was seen (pods, launchers); it says which pods to create,
bind and delete (`steps`), and what is to be reported. Every answer follows from what is there, so a new leader that
finds the same pods comes to the same conclusions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from trainmaster.backends.kubernetes import pods as p
from trainmaster.backends.kubernetes.facts import PodSeat, RunFacts, RunKey
from trainmaster.backends.kubernetes.pods import KILLED, NOBODYS, Object, PodEnd
from trainmaster.gang.protocol import SERVER, WORKER

EXITED, STOPPED, START_FAILED = "exited", "stopped", "start-failed"
MAX_REPLACEMENTS = 100


@dataclass(frozen=True)
class Slot:
    """A place for one member: a role on a node, with so many devices."""

    role: str
    node: str
    n_devices: int
    accelerator: str = ""


@dataclass(frozen=True)
class Ending:
    """Why an incarnation is ending; it is over when nobody lives any more."""

    kind: str
    code: int = 0
    why: str = ""
    node: str | None = None
    """Of a failed start: the node that refused; None: the job's own fault."""


@dataclass
class Member:
    """`pod` is what was last seen of it; None: nothing yet."""

    name: str
    role: str
    number: int
    slot: Slot
    rank: int
    pod_name: str
    pod: Object | None = None
    gone: bool = False
    """The pod object has vanished."""
    bound: bool = False
    end: PodEnd | None = None
    leaving: bool = False
    delete_asked: bool = False
    running: bool = False
    heard: bool = False
    """A launcher has spoken for it, so it runs under a lease."""
    released: bool = True
    """Its node has its devices back."""
    severed: bool = False
    """Its node is lost."""
    last_word: tuple[int, str] | None = None
    """Its launcher says that the command has ended: with what code, and why."""

    @property
    def alive(self) -> bool:
        return self.end is None


@dataclass
class Run:
    key: RunKey
    facts: RunFacts
    target: tuple[Slot, ...] = ()
    seq: int = 0
    """Of the command whose allocation is the target."""
    applied_seq: int = 0
    members: dict[str, Member] = field(default_factory=dict)
    started: bool = False
    told_started: bool = False
    begun: bool = False
    """Launchers say that every command runs."""
    begun_s: float = 0.0
    settled: frozenset[str] = frozenset()
    """Who works under the last membership."""
    speaks: bool | None = None
    """Whether its runtime goes along with changes of size; None: not known."""
    ending: Ending | None = None
    over: bool = False
    reported_silent: frozenset[str] = frozenset()
    restarting: bool = False
    """A gang that does not speak is resized by a restart: all go, then all come."""
    creating: bool = False
    replaced: int = 0
    work: float = float("nan")
    work_saved: float = float("nan")
    ended_s: float = 0.0
    emptied_s: float | None = None
    """When the last of its members had ended."""

    # -- wishes ----------------------------------------------------------------------------------------

    def aim(self, slots: Sequence[Slot], seq: int) -> None:
        if seq > self.seq:
            self.target, self.seq = tuple(slots), seq

    def stop(self, why: str) -> None:
        if self.ending is None:
            self.ending = Ending(STOPPED, why=why)

    # -- who is there ------------------------------------------------------------------------------------

    @property
    def alive(self) -> list[Member]:
        return [member for member in self.members.values() if member.alive]

    def staying(self) -> list[Member]:
        return [member for member in self.alive if not member.leaving]

    def unfilled(self) -> list[Slot]:
        """Places of the target that nobody has."""
        have = [(m.slot.role, m.slot.node) for m in self.members.values() if not m.leaving and not self._replaceable(m)]
        missing = []
        for slot in self.target:
            if (slot.role, slot.node) in have:
                have.remove((slot.role, slot.node))
            else:
                missing.append(slot)
        return missing

    def _replaceable(self, member: Member) -> bool:
        """A dead member whose place is open to another. One that finished its work is not."""
        return member.end is not None and (member.end.code != 0 or member.leaving)

    def surplus(self) -> list[Member]:
        """Members that the target has no place for: the junior ones of each node."""
        wanted = [(slot.role, slot.node) for slot in self.target]
        out = []
        for member in sorted(self.staying(), key=lambda m: m.number):
            if (member.slot.role, member.slot.node) in wanted:
                wanted.remove((member.slot.role, member.slot.node))
            else:
                out.append(member)
        return out

    def enlist(self, slots: Sequence[Slot]) -> list[Member]:
        """New members for these places; numbers go on from the highest ever seen."""
        new = []
        for slot in sorted(slots, key=lambda slot: slot.role, reverse=True):  # workers first
            number = max((m.number for m in self.members.values() if m.role == slot.role), default=-1) + 1
            name = f"{slot.role}-{number}"
            rank = sum(m.role == slot.role and m.alive and not m.leaving for m in self.members.values())
            member = Member(name, slot.role, number, slot, rank, p.pod_name(self.facts, slot.role, number))
            self.members[name] = member
            new.append(member)
        return new

    def seat(self, member: Member) -> PodSeat:
        here = [m for m in self.staying() if m.slot.node == member.slot.node and m.role == member.role]
        local = next((k for k, m in enumerate(here) if m is member), 0)
        count = {role: sum(slot.role == role for slot in self.target) for role in (WORKER, SERVER)}
        return PodSeat(
            member.name, member.role, member.rank, member.slot.node, local, member.slot.n_devices, count[WORKER],
            count[SERVER], member.slot.accelerator,
        )  # fmt: skip

    def adopt(self, pod: Object) -> Member:
        """A pod that another process has made."""
        name, role, number = p.member_of(pod)
        slot = Slot(role, p.node_of(pod) or pod["metadata"]["annotations"].get(p.f.NODE, ""), 0)
        rank = pod["metadata"]["labels"].get(p.f.RANK, "0")
        member = Member(name, role, number, slot, int(rank) if rank.isdigit() else 0, pod["metadata"]["name"])
        self.members[name] = member
        return member

    # -- what was seen -----------------------------------------------------------------------------------

    def saw(self, member: Member, pod: Object, gone: bool, node_ready: bool) -> None:
        """A pod's present state, or its last one before it vanished."""
        member.pod, member.gone = pod, gone
        member.bound = member.bound or p.node_of(pod) is not None
        member.running = p.is_running(pod)
        member.released = gone or p.is_released(pod)
        if member.end is None:
            member.end = p.end_of(pod, self.facts.launcher)
        if member.end is not None or not gone:
            return
        # It vanished before its status told the end. Where a lease runs, that is waited for (the launcher's word, or
        # the lease's end), whatever the status says: it lags, or is that of a silent kubelet. Where none does, the
        # node is believed as long as it answers.
        if member.last_word is not None:
            self.certainly_over(member, *member.last_word)
        elif not member.bound or (not member.heard and (not member.running or node_ready)):
            why = f"{member.pod_name}: deleted"
            member.end = PodEnd(KILLED, why, NOBODYS, ran=member.running)

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
        if member.end is None and member.last_word is not None:
            code, why = member.last_word
            fault = NOBODYS if code in p.NOBODYS_FAULT else p.OWN
            member.end, member.released = PodEnd(code, "" if code == 0 else f"{member.pod_name}: {why}", fault), True

    def certainly_over(self, member: Member, code: int = KILLED, why: str = "its lease ran out") -> None:
        if member.end is None:
            member.end = PodEnd(code, f"{member.pod_name}: {why}", NOBODYS)

    # -- conclusions ---------------------------------------------------------------------------------------

    def conclude(self, max_replacements: int = MAX_REPLACEMENTS) -> list[Member]:
        """Decide whether it is ending. Returns the dead whose places are to be filled again."""
        if self.ending is not None or self.restarting:
            return []
        dead = [m for m in self.members.values() if m.end is not None and not m.leaving and m.end.code != 0]
        for member in dead:
            assert member.end is not None
            end = member.end
            if self.started and self._goes_on_without(member) and self.replaced < max_replacements:
                continue
            if not end.ran and not self.started:
                if end.fault == NOBODYS:
                    self.ending = Ending(STOPPED, why=end.why)
                else:
                    node = member.slot.node if end.fault == p.NODES else None
                    self.ending = Ending(START_FAILED, end.code, end.why, node)
            elif end.fault == NOBODYS or end.fault == p.NODES:
                self.ending = Ending(STOPPED, why=end.why)
            else:
                self.ending = Ending(EXITED, end.code, end.why)
            return []
        for member in self.staying():
            hopeless = None if member.pod is None else p.hopeless(member.pod)
            if hopeless is not None:
                self.ending = Ending(START_FAILED, 1, f"{member.pod_name}: {hopeless}")
                return []
        workers = [m for m in self.members.values() if m.role == WORKER and not m.leaving]
        done = [m for m in workers if m.end is not None and m.end.code == 0]
        if done and all(m.end is not None for m in workers):
            self.ending = Ending(EXITED, 0)
            return []
        return dead

    def _goes_on_without(self, member: Member) -> bool:
        """Whether the others can: the runtime speaks, and someone who has joined is left."""
        if not self.speaks:
            return False
        others = [m for m in self.staying() if m.role == member.role and m.name in self.settled]
        return bool(others)

    def is_started(self, hello_wait_s: float, now_s: float) -> bool:
        """Whether the gang runs as a whole."""
        if not self.facts.launcher:
            members = self.staying()
            return len(members) >= len(self.target) > 0 and all(m.running for m in members)
        if not self.begun:
            return False
        if not self.facts.spec.elastic or self.speaks is False:
            return True
        return bool(self.settled) or now_s >= self.begun_s + hello_wait_s

    def is_applied(self) -> bool:
        """Whether the target is reached, and nobody is left who is not of it."""
        if self.unfilled() or self.surplus() or any(m.leaving for m in self.alive) or self.restarting:
            return False
        if not self.facts.launcher:
            return all(m.running for m in self.staying())
        if self.speaks:
            return {m.name for m in self.staying()} <= self.settled
        return self.begun

    def is_released(self) -> bool:
        """Whether its nodes have their devices back."""
        return all(m.released or m.severed or m.gone for m in self.members.values() if m.pod is not None)

    def silent_nodes(self) -> frozenset[str]:
        """Nodes that are lost, with members on them of which nothing is known."""
        return frozenset(m.slot.node for m in self.alive if m.severed)
