"""From memberships to groups: when workers go over to the next one, and how they find together after a death.

A membership that arrives is prepared in the background. With every step the workers exchange how far they
are (`carry`), and go over to it after the first step in which all were ready for the same version: that is
the agreed step, and training never waits for a group to be built. When the present group is broken there is
nothing to exchange: everyone waits for the next membership and builds it at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

from trainmaster.gang.protocol import Membership
from trainmaster.runtime import group as groups
from trainmaster.runtime.errors import RuntimeFault
from trainmaster.runtime.group import Group, GroupFault, Preparation
from trainmaster.runtime.training_session import Session

CARRIED = 4
POLL_S = 0.01
REPEAT_SUSPICION_S = 5.0


class Departure(Exception):
    """This worker is not listed any more: it leaves, with success."""


class StopAsked(Exception):
    """A stop was asked for while no group could agree on one."""


class GroupMembership:
    def __init__(self, session: Session, device: torch.device, timeout_s: float) -> None:
        self._session = session
        self._device = device
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._ahead: Preparation | None = None
        self._offered: Preparation | None = None
        self._retired: list[threading.Thread] = []
        self._leaving: Group | None = None
        self.group: Group | None = None

    @property
    def member(self) -> str:
        return self._session.place.member

    # -- together, in step ------------------------------------------------------------------------

    def on_membership(self, membership: Membership) -> None:
        """Called by the link's thread the moment a membership arrives."""
        self._prepare(membership)

    def carry(self) -> list[float]:
        """What this worker adds to the sums of a step: stop asked, ready, and for which version."""
        assert self.group is not None
        ahead = self._ahead
        self._offered = ahead if ahead is not None and ahead.ready else None
        offset = 0 if self._offered is None else self._offered.membership.version - self.group.version
        offset = max(offset, 0)
        return [float(bool(self._session.stop_requested)), float(offset > 0), float(offset), float(offset * offset)]

    def stop_agreed(self, sums: list[float]) -> bool:
        return sums[0] > 0

    def switch_agreed(self, sums: list[float]) -> Preparation | None:
        """The group to go over to after this step; every worker comes to the same answer.

        All are ready, and for one version: the mean of the squares is the square of the mean.
        """
        assert self.group is not None
        _, ready, offsets, squares = sums
        world = self.group.world
        if round(ready) != world or round(squares) * world != round(offsets) ** 2:
            return None
        return self._offered

    def go_over(self, preparation: Preparation) -> Group:
        """`Departure` when this worker is not among them."""
        if preparation.group is None:
            raise Departure(preparation.membership.why)
        self._leaving, self.group = self.group, preparation.group
        return self.group

    def settled(self) -> None:
        """All have met in the present group: nobody is inside the former one any more, so it may be closed."""
        former, self._leaving = self._leaving, None
        self._retire(former)

    # -- anew, after a fault or at the start ------------------------------------------------------

    def come_together(self) -> Group:
        """The group of the newest membership, built now. `Departure`, `StopAsked`."""
        version = 0 if self.group is None else self.group.version
        self._retire(self.group)
        self.settled()
        if self._session.link is None:
            if version or self.group is not None:
                raise RuntimeFault(
                    "a worker was lost, and nobody manages this job: start it again and it goes on from its last "
                    "checkpoint"
                )
            self.group = groups.of_torchrun(self._session.place, self._device, self._timeout_s)
            return self.group
        while True:
            preparation = self._prepare(self._next_membership(version))
            version = preparation.membership.version
            if not self._built(preparation):
                continue
            if preparation.fault is not None:
                self._session.link.suspect(version, ())
                continue
            return self.go_over(preparation)

    def broken(self, group: Group) -> None:
        """A collective of `group` failed: tell the agent, and the peers by closing the connections."""
        group.drop()
        if self._session.link is not None and group.version:
            self._session.link.suspect(group.version, ())

    def close(self) -> None:
        """Leave nothing behind that still works in the background."""
        self.settled()
        self._retire(self.group)
        self.group = None
        for thread in self._retired:
            thread.join(2.0)
        if self._ahead is not None and not self._ahead.over:
            self._ahead.wait(2.0)

    def _next_membership(self, after: int) -> Membership:
        link = self._session.link
        assert link is not None
        while True:
            membership = link.wait_for_membership(after, REPEAT_SUSPICION_S)
            if membership is not None:
                return membership
            if self._session.stop_requested:
                raise StopAsked
            if after:
                link.suspect(after, ())

    def _built(self, preparation: Preparation) -> bool:
        """False when a newer membership has overtaken it."""
        link = self._session.link
        assert link is not None
        while not preparation.wait(POLL_S):
            newest = link.membership
            if newest is not None and newest.version > preparation.membership.version:
                return False
            if self._session.stop_requested:
                raise StopAsked
        return True

    def _prepare(self, membership: Membership) -> Preparation:
        """Begin to build its group, unless that has begun."""
        with self._lock:
            if self._ahead is None or self._ahead.membership.version < membership.version:
                self._ahead = Preparation(membership, self._maker(membership))
            return self._ahead

    def _maker(self, membership: Membership) -> Callable[[], Group | None]:
        if membership.find(self.member) is None:
            return lambda: None
        return lambda: groups.of_membership(membership, self.member, self._device, self._timeout_s)

    def _retire(self, group: Group | None) -> None:
        """Close a group in the background: it takes some 20 ms, and nobody needs to wait for it."""
        if group is None:
            return
        self._retired = [thread for thread in self._retired if thread.is_alive()]
        thread = threading.Thread(target=group.drop, name="trainmaster-retire", daemon=True)
        thread.start()
        self._retired.append(thread)


__all__ = ["CARRIED", "Departure", "GroupFault", "GroupMembership", "StopAsked"]
