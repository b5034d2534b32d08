"""Real attempts behind a real hub, without pods: launchers are processes that a test starts itself."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from typing import Any

from trainmaster.backends.kubernetes.attempts.observations import PodSeat, RunFacts, RunKey
from trainmaster.backends.kubernetes.attempts.pod_attempt import pod_seat, port_of
from trainmaster.backends.kubernetes.launchers.hub import AgentHub
from trainmaster.gang import actions as a
from trainmaster.gang.attempt import Attempt, Rules
from trainmaster.gang.protocol import Ended, Hello, Message, Progress, StopNotice

HELLO_WAIT_S = 60.0


class LauncherAttempts:
    """See `agent_hub.HubListener`. Everything that is said is kept, as (what, run, member, ...).

    All methods are for the hub's loop.
    """

    def __init__(self) -> None:
        self.hub: AgentHub | None = None
        self.attempts: dict[RunKey, Attempt] = {}
        self.seats: dict[RunKey, list[PodSeat]] = {}
        self.said_so: list[tuple[Any, ...]] = []
        self._settled: dict[RunKey, int] = {}
        self._begun: dict[RunKey, int] = {}
        self._seq = 0

    # -- orders ------------------------------------------------------------------------------------------

    def start(self, facts: RunFacts, seats: Sequence[PodSeat]) -> None:
        """Members of a new attempt, or more members of one that runs."""
        assert self.hub is not None
        self.hub.open(facts)
        if facts.key not in self.attempts:
            self.attempts[facts.key] = self._attempt(facts)
        self._aim(facts.key, [*self.seats.get(facts.key, []), *seats])

    def adopt(self, facts: RunFacts, seats: Sequence[PodSeat], host: str) -> None:
        assert self.hub is not None
        self.hub.open(facts)
        attempt = self.attempts[facts.key] = self._attempt(facts)
        attempt.assume_started()
        self._settled.pop(facts.key, None)
        self._begun.pop(facts.key, None)
        for seat in seats:
            self.hub.adopt(facts.key, seat.member, host)
            attempt.adopt(seat.member, pod_seat(seat.role, seat.node), seat.rank)
        self._aim(facts.key, list(seats))

    def dismiss(self, key: RunKey, members: Sequence[str]) -> None:
        self._aim(key, [seat for seat in self.seats[key] if seat.member not in members])

    def died(self, key: RunKey, member: str) -> None:
        """Its pod says so. It is not replaced."""
        self.attempts[key].on_member(member, a.Exited(137, f"{member} died"))
        self.dismiss(key, [member])

    def stop(self, key: RunKey, why: str, grace_s: float) -> None:
        self.attempts[key].stop(why, grace_s)
        self.advance(key)

    def _attempt(self, facts: RunFacts) -> Attempt:
        assert self.hub is not None
        rules = Rules(facts.lease_s, facts.grace_s, HELLO_WAIT_S)
        return Attempt(rules, lambda version: port_of(facts.key, version), first_version=self.hub.first_version)

    def _aim(self, key: RunKey, seats: list[PodSeat]) -> None:
        self._seq += 1
        self.seats[key] = seats
        self.attempts[key].set_target([pod_seat(seat.role, seat.node) for seat in seats], self._seq, launch=True)
        self.advance(key)

    # -- what follows ------------------------------------------------------------------------------------

    def advance(self, key: RunKey) -> None:
        attempt, hub = self.attempts.get(key), self.hub
        if attempt is None or hub is None:
            return
        while actions := attempt.advance(time.monotonic()):
            for action in actions:
                if isinstance(action, a.Start):
                    assert action.member in [seat.member for seat in self.seats[key]]
                    hub.admit(key, action.member)
                elif isinstance(action, a.Send):
                    hub.send(key, action.member, action.message)
                elif isinstance(action, a.Terminate):
                    hub.send(key, action.member, StopNotice(action.why, action.grace_s))
        self._tell(key, attempt)
        if (due_s := attempt.next_due_s()) < math.inf:
            loop = asyncio.get_running_loop()
            loop.call_later(max(0.0, due_s - time.monotonic()) + 0.001, self.advance, key)

    def _tell(self, key: RunKey, attempt: Attempt) -> None:
        if attempt.begun and self._begun.get(key) != len(attempt.members):
            self._begun[key] = len(attempt.members)
            self.said_so.append(("begun", key))
        current = attempt.roster.current
        if current is not None and attempt.roster.settled and self._settled.get(key) != current.version:
            self._settled[key] = current.version
            self.said_so.append(("settled", key, current.version, tuple(peer.member for peer in current.peers)))

    # -- what the hub tells ------------------------------------------------------------------------------

    def attached(self, run: RunKey, member: str, host: str, begun: bool) -> None:
        if begun:
            self.attempts[run].on_member(member, a.Running())
        self.attempts[run].on_member(member, a.Attached(host))
        self.advance(run)

    def detached(self, run: RunKey, member: str) -> None:
        if run in self.attempts:
            self.attempts[run].on_member(member, a.Detached())
            self.advance(run)

    def said(self, run: RunKey, member: str, message: Message) -> None:
        if isinstance(message, Ended):
            what = ("exited", run, member, message.code, message.why)
            self.said_so.append(what if message.started else ("refused", run, member, message.why))
            self.attempts[run].on_member(member, a.Exited(message.code, message.why))
        else:
            if isinstance(message, Hello):
                self.said_so.append(("here", run, member, message.elastic))
            elif isinstance(message, Progress):
                self.said_so.append(("progress", run, member, message))
            self.attempts[run].on_message(member, message)
        if not isinstance(message, Progress):
            self.advance(run)

    def lapsed(self, run: RunKey, member: str) -> None:
        self.said_so.append(("lapsed", run, member))
        self.attempts[run].on_member(member, a.Exited(137, "its lease ran out", a.NOBODYS))
        self.advance(run)
