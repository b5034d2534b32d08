"""The attempt's state machine: one story at a time here, every order of events in `test_attempt_properties`."""

from __future__ import annotations

import math
from typing import Any

import pytest

from trainmaster.gang import actions as a
from trainmaster.gang import protocol as p
from trainmaster.gang.actions import EXITED, NOBODYS, NODES, START_FAILED, STOPPED, Outcome, Seat
from trainmaster.gang.attempt import Attempt, Rules
from trainmaster.gang.timeouts import HELLO_LIMIT_S, LEAVE_S, PLAIN_AFTER, SUSPICIONS

RULES = Rules(grace_s=2.0, hello_wait_s=10.0, max_deaths=3)


class Story:
    """An attempt whose members do as they are told, at once, until the test says otherwise."""

    def __init__(self, seats: int, rules: Rules = RULES, hold: bool = False, **options: Any) -> None:
        self.attempt = Attempt(rules, lambda version: 1000 + version, **options)
        self.now_s = 0.0
        self.log: list[a.Action] = []
        self.hold = hold
        """Members stay unattached."""
        if seats:
            self.attempt.set_target(places(seats), 1, launch=True)
            self.go()

    def go(self, for_s: float = 0.0) -> list[a.Action]:
        """Carry out what is wanted, now and for so long."""
        before, end_s = len(self.log), self.now_s + for_s
        while True:
            while actions := self.attempt.advance(self.now_s):
                for action in actions:
                    self.log.append(action)
                    self.carry_out(action)
            due_s = self.attempt.next_due_s()
            if due_s > end_s:
                self.now_s = end_s
                return self.log[before:]
            self.now_s = max(self.now_s, due_s)

    def carry_out(self, action: a.Action) -> None:
        if isinstance(action, a.Start) and not self.hold:
            self.attempt.on_member(action.member, a.Attached(f"host-{action.member}"))
        elif isinstance(action, a.Send) and isinstance(action.message, p.Begin):
            self.attempt.on_member(action.member, a.Running())

    def say(self, member: str, *messages: p.Message) -> None:
        for message in messages:
            self.attempt.on_message(member, message)
        self.go()

    def hello(self, *members: str, elastic: bool = True) -> None:
        for member in members:
            self.attempt.on_message(member, p.Hello("t", member, 1, elastic))
        self.go()

    def join(self) -> None:
        current = self.attempt.roster.current
        assert current is not None
        for peer in current.peers:
            self.say(peer.member, p.Joined(current.version))

    def end(self, member: str, code: int = 0, fault: str = a.OWN, why: str = "", **how: bool) -> None:
        self.attempt.on_member(member, a.Exited(code, why or f"{member}: {code}", fault, **how))
        self.go()

    def reports(self) -> list[object]:
        return [action.what for action in self.log if isinstance(action, a.Report)]

    def terminated(self) -> list[str]:
        return [action.member for action in self.log if isinstance(action, a.Terminate)]

    @property
    def outcome(self) -> Outcome:
        (over,) = [what for what in self.reports() if isinstance(what, a.Over)]
        return over.outcome

    @property
    def living(self) -> list[str]:
        return [member.name for member in self.attempt.alive]


def places(count: int, role: str = "worker") -> list[Seat]:
    return [Seat(role, "n0", devices=(index,)) for index in range(count)]


def elastic(count: int, rules: Rules = RULES) -> Story:
    story = Story(count, rules)
    story.hello(*story.living)
    story.join()
    assert story.reports() == [a.Started()]
    return story


def test_nobody_begins_before_the_whole_gang_is_there() -> None:
    story = Story(2, hold=True)
    story.attempt.on_member("worker-0", a.Attached("h0"))
    assert not [action for action in story.go() if isinstance(action, a.Send)]
    story.attempt.on_member("worker-1", a.Attached("h1"))
    begun = {act.member: act.message for act in story.go() if isinstance(act, a.Send)}
    assert begun == {
        name: p.Begin(
            {
                "MASTER_ADDR": "h0", "MASTER_PORT": "1000", "RANK": rank, "WORLD_SIZE": "2", "LOCAL_RANK": "0",
                "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1", "ROLE_RANK": rank,
                "ROLE_WORLD_SIZE": "2", "ROLE_NAME": "worker",
            }
        )
        for name, rank in (("worker-0", "0"), ("worker-1", "1"))
    }  # fmt: skip


def test_who_was_told_to_begin_and_attaches_again_without_having_is_told_again() -> None:
    story = Story(1, hold=True)
    for _ in range(2):
        story.attempt.on_member("worker-0", a.Attached("h"))
        assert [type(act.message) for act in story.go(1.0) if isinstance(act, a.Send)][:1] == [p.Begin]
        story.attempt.members["worker-0"].begun_s = None


@pytest.mark.parametrize("fault", [a.OWN, NOBODYS])
def test_finished_means_ended_by_itself_with_code_0(fault: str) -> None:
    story = Story(1, Rules())
    story.end("worker-0", 0, fault)
    assert story.outcome == (Outcome(EXITED, 0) if fault == a.OWN else Outcome(STOPPED, why="worker-0: 0"))


@pytest.mark.parametrize(("code", "complete", "finished"), [(0, True, True), (0, False, False), (9, True, False)])
def test_what_was_stopped_has_finished_only_if_the_runtime_said_so(code: int, complete: bool, finished: bool) -> None:
    story = Story(1, Rules())
    story.say("worker-0", p.Progress(5.0, complete=complete))
    story.attempt.stop("preempted")
    story.go()
    story.end("worker-0", code)
    assert story.outcome == (Outcome(EXITED, 0) if finished else Outcome(STOPPED, why="preempted"))


def test_a_worker_that_dies_after_another_said_that_training_is_complete_harms_nothing() -> None:
    story = elastic(2)
    story.say("worker-0", p.Progress(5.0, complete=True))
    story.end("worker-0", 0)
    story.end("worker-1", -9)
    assert story.outcome == Outcome(EXITED, 0)


def test_a_plain_gang_stands_and_falls_together_and_servers_end_with_the_workers() -> None:
    story = Story(2, Rules())
    story.end("worker-1", 3)
    assert story.terminated() == ["worker-0"]
    story.end("worker-0", -15)
    assert story.outcome == Outcome(EXITED, 3, "worker-1: 3")
    story = Story(0, Rules())
    story.attempt.set_target([*places(1), *places(1, "server")], 1, launch=True)
    story.go()
    story.end("worker-0", 0)
    assert story.terminated() == ["server-0"]
    story.end("server-0", -15)
    assert story.outcome == Outcome(EXITED, 0)


@pytest.mark.parametrize(
    ("fault", "outcome"),
    [(a.OWN, Outcome(START_FAILED, 126, "no")), (NODES, Outcome(START_FAILED, 126, "no", "n0")),
     (NOBODYS, Outcome(STOPPED, why="no"))],
)  # fmt: skip
def test_a_command_that_never_ran_is_a_failed_start_by_whose_fault_it_is(fault: str, outcome: Outcome) -> None:
    story = Story(1, hold=True)
    story.end("worker-0", 126, fault, "no", ran=False)
    assert story.outcome == outcome


def test_a_plain_gang_is_resized_by_a_restart_and_refills() -> None:
    story = Story(4)
    story.go(10.0)
    assert story.reports() == [a.Started()]
    story.attempt.set_target(places(2), 2)
    assert story.go(PLAIN_AFTER * 10.0 - 10.1) == [], "it may still say that it is elastic"
    story.go(0.2)
    assert story.terminated() == [f"worker-{n}" for n in range(4)]
    for n in range(4):
        story.end(f"worker-{n}", 0)
    assert story.living == ["worker-4", "worker-5"]
    assert story.reports() == [a.Started(), a.Resized(2)]
    assert [story.attempt.members[name].rank for name in story.living] == [0, 1]


def test_an_elastic_gang_is_resized_in_place() -> None:
    story = elastic(2)
    story.attempt.set_target(places(3), 2)
    story.go()
    story.hello("worker-2")
    story.join()
    assert story.reports() == [a.Started(), a.Resized(2)]
    story.attempt.set_target(places(3)[1:], 3)
    story.go()
    assert story.terminated() == [], "it hands over what it holds, and leaves by itself"
    story.join()
    story.end("worker-0", 0)
    assert story.reports() == [a.Started(), a.Resized(2), a.Resized(3)]
    story.attempt.set_target(places(3)[2:], 4)
    story.go(LEAVE_S + 0.1)
    assert story.terminated() == ["worker-1"], "it did not"


def test_a_dead_member_of_an_elastic_gang_is_replaced_after_a_pause() -> None:
    story = elastic(3)
    story.end("worker-1", -9)
    current = story.attempt.roster.current
    assert current is not None and [peer.member for peer in current.peers] == ["worker-0", "worker-2"]
    assert story.living == ["worker-0", "worker-2"]
    story.go(0.3)
    assert story.living == ["worker-0", "worker-2", "worker-3"]


@pytest.mark.parametrize("fault", [a.OWN, NOBODYS])
def test_deaths_without_progress_are_given_up_unless_the_members_were_taken_away(fault: str) -> None:
    story = elastic(2)
    for number in range(1, 6):
        story.join()
        story.end(f"worker-{number}", 9, fault)
        story.go(15.0)
        if story.attempt.outcome is not None:
            break
        story.hello(f"worker-{number + 1}")
    if fault == a.OWN:
        story.end("worker-0", 75)
        assert story.outcome.code == 9 and "3 deaths without progress" in story.outcome.why
    else:
        assert story.attempt.outcome is None


def test_a_stuck_member_is_terminated_when_its_peers_keep_missing_it() -> None:
    story = elastic(2)
    for version in range(1, SUSPICIONS + 1):
        story.say("worker-0", p.Suspect(version, ("worker-1",)))
        story.go(1.0)
    assert story.terminated() == ["worker-1"]
    story.end("worker-1", -9)
    story.go(1.0)
    assert story.living == ["worker-0", "worker-2"], "that was a death"


def test_members_that_speak_late_are_awaited_longer() -> None:
    story = Story(2)
    story.hello("worker-0")
    story.attempt.set_target(places(1), 2)
    story.go(HELLO_LIMIT_S - 1.0)
    assert story.terminated() == []
    story.go(2.0)
    assert sorted(story.terminated()) == ["worker-0", "worker-1"], "a plain gang, after all"


def test_a_new_owner_goes_on_where_the_last_one_stood() -> None:
    story = Story(0, first_version=1000)
    for name in ("worker-0", "worker-1"):
        story.attempt.adopt(name, places(2)[int(name[-1])], int(name[-1]))
    story.attempt.assume_started()
    story.attempt.set_target(places(1), 2)
    story.go(100.0)
    assert story.log == [], "nobody has said yet how it is resized"
    last = p.Membership(7, (p.Peer("worker-0", "worker", 0), p.Peer("worker-1", "worker", 1)), "h", 1)
    for name in ("worker-0", "worker-1"):
        story.attempt.on_member(name, a.Running())
        story.attempt.on_member(name, a.Attached("h"))
        story.say(name, last, p.Hello("t", name, 1, True), p.Joined(7))
    current = story.attempt.roster.current
    assert current is not None and current.version == 1000 and [peer.member for peer in current.peers] == ["worker-0"]
    assert story.terminated() == []
    story.join()
    story.end("worker-1", 0)
    assert a.Resized(2) in story.reports()


def test_an_attempt_ends_when_its_nodes_have_their_devices_back_or_after_a_while() -> None:
    for release in (True, False):
        story = Story(1, Rules(release_s=5.0))
        story.end("worker-0", 0, released=False)
        assert not story.attempt.over
        if release:
            story.attempt.on_member("worker-0", a.Released())
            story.go()
        else:
            story.go(5.1)
        assert story.outcome == Outcome(EXITED, 0)


def test_an_attempt_waits_for_what_outlives_its_members_however_long() -> None:
    story = Story(1, Rules(release_s=5.0))
    story.end("worker-0", 0, released=False, outlived=True)
    story.go(600.0)
    assert not story.attempt.over, "a sidecar holds the devices"
    story.attempt.on_member("worker-0", a.Emptied())
    story.go()
    assert not story.attempt.over, "its kubelet takes down the sandbox next"
    story.attempt.on_member("worker-0", a.Released())
    story.go()
    assert story.outcome == Outcome(EXITED, 0)


def test_a_plain_gang_restarts_when_its_devices_are_free() -> None:
    story = Story(1, Rules(release_s=5.0))
    story.attempt.set_target([Seat("worker", "n0", devices=(1,))], 2)
    story.go(1.0)
    story.end("worker-0", 0, fault=NOBODYS, released=False, outlived=True)
    story.go(600.0)
    assert "worker-1" not in story.attempt.members
    story.attempt.on_member("worker-0", a.Released())
    story.go()
    assert "worker-1" in story.attempt.members


def test_a_new_owner_goes_on_with_a_restart() -> None:
    """Nothing is started before the members that were asked to leave have ended: they have the devices."""
    story = Story(0)
    story.attempt.adopt("worker-0", places(1)[0], 0, leaving=True)
    story.attempt.set_target(places(1), 2)
    story.attempt.on_member("worker-0", a.Attached("h"))
    story.go(100.0)
    assert list(story.attempt.members) == ["worker-0"]
    story.end("worker-0", fault=NOBODYS)
    assert "worker-1" in story.attempt.members


def test_a_stuck_member_that_ends_politely_when_it_is_killed_has_not_finished() -> None:
    story = Story(1)
    story.hello("worker-0")  # it never joins
    story.go(1000.0)
    assert story.terminated() == ["worker-0"]
    story.end("worker-0", 0)
    assert story.outcome.kind == EXITED and story.outcome.code == 1


def test_members_on_lost_nodes_are_reported_once_for_every_order_to_stop() -> None:
    story = Story(1, Rules())
    story.attempt.on_node("n0", ready=False)
    story.attempt.stop("cancelled")
    story.go()
    story.go()
    assert story.reports()[-1:] == [a.Silent(frozenset({"n0"}))] and len(story.reports()) == 2
    story.attempt.stop("cancelled")
    story.go()
    assert len(story.reports()) == 3


def test_nodes_are_called_silent_when_the_devices_of_the_others_are_free() -> None:
    story = Story(0, Rules(release_s=5.0))
    story.attempt.set_target([Seat("worker", "n0"), Seat("worker", "n1")], 1, launch=True)
    story.go()
    story.attempt.on_node("n0", ready=False)
    story.attempt.stop("a node of the gang was lost")
    story.end("worker-1", 78, fault=NOBODYS, released=False, outlived=True)
    story.go(600.0)
    silent = a.Silent(frozenset({"n0"}))
    assert silent not in story.reports(), "a sidecar holds the devices of n1"
    story.attempt.on_member("worker-1", a.Emptied())
    story.go(4.9)
    assert silent not in story.reports()
    story.go(0.2)
    assert story.reports()[-1] == silent
    story.attempt.on_node("n0", ready=True)
    story.end("worker-0", 78, fault=NOBODYS, released=False)
    story.go(4.9)
    assert not story.attempt.over, "its kubelet takes down the sandbox next"


def test_what_outlives_members_on_a_silent_node_is_not_waited_for() -> None:
    """Nothing is started there."""
    story = Story(1, Rules(release_s=5.0))
    story.end("worker-0", 0, released=False, outlived=True)
    story.go(600.0)
    assert not story.attempt.over
    story.attempt.on_node("n0", ready=False)
    story.go()
    assert story.outcome == Outcome(EXITED, 0)


def test_devices_are_waited_for_from_the_last_end_on() -> None:
    story = Story(0, Rules(release_s=5.0))
    story.attempt.set_target([Seat("worker", "n0"), Seat("worker", "n1")], 1, launch=True)
    story.go()
    story.attempt.on_node("n0", ready=False)
    story.attempt.stop("a node of the gang was lost")
    story.end("worker-1", 78, fault=NOBODYS, released=False)
    story.go(4.0)
    story.attempt.on_node("n0", ready=True)
    story.end("worker-0", 78, fault=NOBODYS, released=False)
    story.go(4.9)
    assert not story.attempt.over
    story.go(0.2)
    assert story.attempt.over


def test_a_shorter_grace_still_counts_and_a_longer_does_not() -> None:
    story = Story(1, Rules(grace_s=9.0))
    for grace_s in (None, 3.0, 5.0):
        story.attempt.stop("x", grace_s)
        story.go()
    assert [act.grace_s for act in story.log if isinstance(act, a.Terminate)] == [9.0, 3.0]


def test_the_story_tells_the_last_transitions() -> None:
    story = elastic(2)
    story.end("worker-0", -9, why="worker-0 was killed")
    told = story.attempt.story()
    assert "membership 1: worker-0 worker-1" in told and "worker-0 was killed" in told
    assert math.isfinite(float(told.splitlines()[-1].split()[0]))
