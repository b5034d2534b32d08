"""The attempt's state machine under every order of messages, deaths, resizes, stops, lost nodes and new owners.

The world here keeps its own truth (who was started, told to begin, asked to end, how it ended); the attempt is compared
with that, never with itself. At the end faults stop, everybody does as told, and the attempt must converge.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from trainmaster.gang import actions as a
from trainmaster.gang import protocol as p
from trainmaster.gang.actions import EXITED, NOBODYS, OWN, STOPPED, Seat
from trainmaster.gang.attempt import Attempt, Rules

RULES = Rules(grace_s=5.0, hello_wait_s=2.0, join_patience_s=20.0, max_deaths=3)
NODES = ("n0", "n1")


@dataclass(repr=False)
class Member:
    """The truth about one member."""

    name: str
    seat: Seat
    rank: int
    attached: bool = False
    begun: bool = False
    hello: bool = False
    complete: bool = False
    asked: bool = False
    told: p.Membership | None = None
    joined: int = 0
    end: a.Exited | None = None
    gang: int = 0
    """Which (re)start of the whole gang it belongs to."""

    def __repr__(self) -> str:
        return self.name

    @property
    def alive(self) -> bool:
        return self.end is None


@dataclass
class World:
    elastic: bool
    members: dict[str, Member] = field(default_factory=dict)

    @property
    def alive(self) -> list[Member]:
        return [member for member in self.members.values() if member.alive]


class AttemptMachine(RuleBasedStateMachine):
    @initialize(elastic=st.booleans(), size=st.integers(1, 4), servers=st.integers(0, 1))
    def begin(self, elastic: bool, size: int, servers: int) -> None:
        self.world = World(elastic)
        self.now_s = 1e6
        self.seq = 1
        self.target = self.seats(size, servers)
        self.owner = 0
        self.attempt = Attempt(RULES, int)
        self.attempt.set_target(self.target, self.seq, launch=True)
        self.reports: list[object] = []
        self.stopped = False
        self.versions = [0]
        self.gang = 0
        self.go()

    def seats(self, size: int, servers: int = 0) -> list[Seat]:
        workers = [Seat(p.WORKER, NODES[k % 2], devices=(k,)) for k in range(size)]
        return workers + [Seat(p.SERVER, "n0", devices=(9 + k,)) for k in range(servers)]

    # -- carrying out ------------------------------------------------------------------------------------

    def go(self) -> None:
        rounds = 0
        while actions := self.attempt.advance(self.now_s):
            rounds += 1
            assert rounds < 100, self.attempt.story()
            for action in actions:
                self.carry_out(action)
        assert self.attempt.next_due_s() > self.now_s, f"due, but not done\n{self.attempt.story()}"

    def carry_out(self, action: a.Action) -> None:
        story = self.attempt.story
        if isinstance(action, a.Start):
            assert action.member not in self.world.members, f"{action.member} is started twice\n{story()}"
            if not self.world.alive:
                self.gang += 1
            self.world.members[action.member] = Member(action.member, action.seat, action.rank, gang=self.gang)
            return
        if isinstance(action, a.Report):
            self.hear(action.what)
            return
        member = self.world.members[action.member]
        if isinstance(action, a.Terminate):
            assert member.alive, f"{member.name} has ended\n{story()}"
            member.asked = True
        elif isinstance(action.message, p.Begin):
            assert member.attached and member.alive and not member.begun, f"{member.name} cannot begin\n{story()}"
            self.check_begin(member)
            member.begun = True
            self.attempt.on_member(member.name, a.Running())
        elif isinstance(action.message, p.Membership | p.Welcome):
            told = action.message if isinstance(action.message, p.Membership) else action.message.membership
            if member.attached and told is not None:
                member.told = told
                self.check_membership(told)

    def check_begin(self, member: Member) -> None:
        """The whole gang is there, or one that trains goes on."""
        trains = any(m.joined and m.alive for m in self.world.alive)
        wanted = [m for m in self.world.alive if not m.asked]
        if not trains:
            assert all(m.attached or m.begun for m in wanted), f"half a gang begins\n{self.attempt.story()}"
        unlisted = [m for m in wanted if m.told is not None and m.told.find(m.name) is None]  # they leave
        peers = [m for m in wanted if m.seat.role == member.seat.role and m not in unlisted]
        assert len({m.rank for m in peers}) == len(peers), f"a rank is given twice\n{self.attempt.story()}"

    def check_membership(self, told: p.Membership) -> None:
        names = [peer.member for peer in told.peers]
        assert len(set(names)) == len(names)
        for role in (p.WORKER, p.SERVER):
            assert [peer.rank for peer in told.peers if peer.role == role] == list(
                range(sum(peer.role == role for peer in told.peers))
            )
        assert all(self.world.members[name].begun for name in names), f"a stranger is listed\n{self.attempt.story()}"

    def hear(self, what: object) -> None:
        if isinstance(what, a.Over):
            assert not any(isinstance(before, a.Over) for before in self.reports), "over twice"
            assert not self.world.alive, f"over, but members live\n{self.attempt.story()}"
            self.check_outcome(what.outcome)
        if isinstance(what, a.Resized):
            places = sorted(m.seat.place for m in self.world.alive)
            assert what.seq == self.seq and places == sorted(seat.place for seat in self.target), self.attempt.story()
        self.reports.append(what)

    def check_outcome(self, outcome: a.Outcome) -> None:
        workers = [m for m in self.world.members.values() if m.seat.role == p.WORKER]
        by_itself = [m for m in workers if m.end and m.end.code == 0 and m.end.fault == OWN and not m.asked]
        complete = [m for m in workers if m.end and m.end.code == 0 and m.complete]
        if outcome.finished:
            assert by_itself or complete, f"nobody has finished\n{self.attempt.story()}"
            if not complete and not self.world.elastic:
                gang = [m for m in workers if m.gang == self.gang]
                assert set(map(id, gang)) <= set(map(id, by_itself)), f"not all finished\n{self.attempt.story()}"
        elif self.stopped:
            assert outcome.kind in (STOPPED, EXITED, a.START_FAILED)
        if outcome.kind == EXITED and outcome.code:
            ends = [(m.end.fault, m.asked) for m in self.world.members.values() if m.end]
            killed_or_failed = any(fault != NOBODYS or asked for fault, asked in ends)
            assert killed_or_failed, self.attempt.story()

    # -- what happens ------------------------------------------------------------------------------------

    def one(self, data: st.DataObject, members: list[Member]) -> Member:
        return data.draw(st.sampled_from(members))

    @rule(seconds=st.sampled_from([0.01, 0.3, 1.0, 3.0, 15.0, 70.0, 200.0]))
    def wait(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while (due_s := self.attempt.next_due_s()) <= end_s:
            self.now_s = max(self.now_s, due_s)
            self.go()
        self.now_s = end_s
        self.go()

    @precondition(lambda self: any(not m.attached for m in self.world.alive))
    @rule(data=st.data())
    def attach(self, data: st.DataObject) -> None:
        self.do_attach(self.one(data, [m for m in self.world.alive if not m.attached]))
        self.go()

    def do_attach(self, member: Member) -> None:
        member.attached = True
        if member.begun:
            self.attempt.on_member(member.name, a.Running())
        self.attempt.on_member(member.name, a.Attached(f"host-{member.name}"))
        if member.begun and member.hello:
            if member.told is not None:
                self.attempt.on_message(member.name, member.told)
            self.attempt.on_message(member.name, p.Hello("t", member.name, 1, self.world.elastic))
            if member.joined:
                self.attempt.on_message(member.name, p.Joined(member.joined))

    @precondition(lambda self: any(m.attached for m in self.world.alive))
    @rule(data=st.data())
    def lose_line(self, data: st.DataObject) -> None:
        member = self.one(data, [m for m in self.world.alive if m.attached])
        member.attached = False
        self.attempt.on_member(member.name, a.Detached())
        self.go()

    @precondition(lambda self: any(m.attached and m.begun and not m.hello for m in self.world.alive))
    @rule(data=st.data())
    def say_hello(self, data: st.DataObject) -> None:
        self.do_hello(self.one(data, [m for m in self.world.alive if m.attached and m.begun and not m.hello]))
        self.go()

    def do_hello(self, member: Member) -> None:
        if self.world.elastic:
            member.hello = True
            self.attempt.on_message(member.name, p.Hello("t", member.name, 1, True))

    @precondition(lambda self: any(m.told and m.told.version > m.joined for m in self.world.alive))
    @rule(data=st.data())
    def join(self, data: st.DataObject) -> None:
        self.do_join(self.one(data, [m for m in self.world.alive if m.told and m.told.version > m.joined]))
        self.go()

    def do_join(self, member: Member) -> None:
        """Or leave: who is not listed hands over, and ends with code 0."""
        assert member.told is not None
        member.joined = member.told.version
        if member.told.find(member.name) is None:
            self.do_end(member, 0, OWN)
        elif member.attached:
            self.attempt.on_message(member.name, p.Joined(member.joined))

    @precondition(lambda self: any(m.begun for m in self.world.alive))
    @rule(data=st.data(), code=st.sampled_from([0, 0, 1, -9, 75]), taken_away=st.booleans())
    def end(self, data: st.DataObject, code: int, taken_away: bool) -> None:
        member = self.one(data, [m for m in self.world.alive if m.begun])
        if member.seat.role == p.SERVER:  # servers serve until they are told
            code = code or 1
        self.do_end(member, code, NOBODYS if taken_away or code == 75 else OWN)
        self.go()

    def do_end(self, member: Member, code: int, fault: str, ran: bool = True) -> None:
        member.end = a.Exited(code, f"{member.name} ended", fault, ran)
        self.attempt.on_member(member.name, member.end)

    @precondition(lambda self: any(not m.begun for m in self.world.alive))
    @rule(data=st.data(), fault=st.sampled_from([OWN, a.NODES, NOBODYS]))
    def fail_to_start(self, data: st.DataObject, fault: str) -> None:
        self.do_end(self.one(data, [m for m in self.world.alive if not m.begun]), 126, fault, ran=False)
        self.go()

    @precondition(lambda self: any(m.begun and m.attached and m.joined for m in self.world.alive))
    @rule(data=st.data(), complete=st.booleans(), work=st.floats(0, 100))
    def progress(self, data: st.DataObject, complete: bool, work: float) -> None:
        member = self.one(data, [m for m in self.world.alive if m.begun and m.attached and m.joined])
        member.complete = member.complete or complete
        self.attempt.on_message(member.name, p.Progress(work, complete=complete))
        self.go()

    @precondition(lambda self: len([m for m in self.world.alive if m.joined]) > 1)
    @rule(data=st.data())
    def suspect(self, data: st.DataObject) -> None:
        joined = [m for m in self.world.alive if m.joined]
        member, other = self.one(data, joined), self.one(data, joined)
        self.attempt.on_message(member.name, p.Suspect(member.joined, (other.name,)))
        self.go()

    @rule(size=st.integers(1, 4), servers=st.integers(0, 1), stale=st.booleans())
    def resize(self, size: int, servers: int, stale: bool) -> None:
        if stale:
            self.attempt.set_target(self.seats(size), self.seq)
        elif self.attempt.outcome is None:
            self.seq, self.target = self.seq + 1, self.seats(size, servers)
            self.attempt.set_target(self.target, self.seq)
        self.go()

    @rule(grace_s=st.sampled_from([None, 0.0, 2.0]), rarely=st.integers(0, 3))
    def stop(self, grace_s: float | None, rarely: int) -> None:
        if rarely == 0:
            self.stopped = True
            self.attempt.stop("cancelled", grace_s)
            self.go()
            assert all(m.asked for m in self.world.alive)

    @rule(node=st.sampled_from(NODES), ready=st.booleans())
    def node(self, node: str, ready: bool) -> None:
        self.attempt.on_node(node, ready)
        self.go()

    @precondition(lambda self: self.attempt.outcome is None and self.world.alive and self.owner < 3)
    @rule()
    def new_owner(self) -> None:
        """The last one is gone; another finds the members and hears the rest from them."""
        self.owner += 1
        started, applied = self.attempt.started, self.attempt.applied_seq
        self.attempt = Attempt(RULES, int, first_version=1000 * self.owner)
        done = [member for member in self.world.members.values() if self.is_done(member)]
        present = [m for m in self.world.alive if not m.asked] + done
        stay = a.change_seats({member.name: member.seat for member in present}, self.target).stay
        for member in self.world.members.values():
            wanted = member.alive and not member.asked
            self.attempt.adopt(member.name, member.seat, member.rank, leaving=not wanted and member.name not in stay)
            member.attached = False
            if member.end is not None:
                self.attempt.on_member(member.name, member.end)
        if started:
            self.attempt.assume_started()
        self.attempt.set_target(self.target, self.seq, launch=applied >= self.seq)
        self.go()

    def is_done(self, member: Member) -> bool:
        """Its command has ended by itself, unasked, with 0."""
        return member.end is not None and member.end.code == 0 and member.end.fault == OWN and not member.asked

    # -- the end -----------------------------------------------------------------------------------------

    def teardown(self) -> None:
        """Faults stop. Everybody does as told: the target is reached, or the attempt is over."""
        if not hasattr(self, "attempt"):
            return
        for node in NODES:
            self.attempt.on_node(node, ready=True)
        for _ in range(400):
            if self.attempt.over or self.reached():
                break
            for member in list(self.world.alive):
                self.behave(member)
                self.go()
            self.wait(7.0)
        story = f"{self.attempt.story()}\n{self.world.alive}"
        assert self.attempt.over or self.reached(), f"neither over nor at its target\n{story}"
        if self.attempt.outcome is None:
            self.attempt.stop("the end")
            self.go()
            for member in list(self.world.alive):
                self.behave(member)
                self.go()
            assert self.attempt.over, self.attempt.story()
        assert any(isinstance(what, a.Over) for what in self.reports)

    def behave(self, member: Member) -> None:
        if not member.alive:
            return
        if not member.attached:
            self.do_attach(member)
            self.go()
        if member.asked and member.alive:
            self.do_end(member, 75 if self.world.elastic else 0, NOBODYS)
        elif member.begun and not member.hello and self.world.elastic:
            self.do_hello(member)
        elif member.told and member.told.version > member.joined:
            self.do_join(member)
        elif member.begun and any(self.is_done(m) and m.gang == member.gang for m in self.world.members.values()):
            self.do_end(member, 0, OWN)  # workers of a plain gang finish together

    def reached(self) -> bool:
        """Every seat of the target has a member whose command runs, and nobody else is there."""
        living = self.world.alive
        filled = sorted(m.seat.place for m in living) == sorted(seat.place for seat in self.target)
        running = filled and all(m.begun and not m.asked for m in living)
        return running and self.attempt.started and self.attempt.applied_seq == self.seq


TestAttempt = AttemptMachine.TestCase
TestAttempt.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
