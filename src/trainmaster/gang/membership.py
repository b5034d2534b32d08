"""Who belongs to an attempt, version by version: the rules of `trainmaster.gang.protocol`, without I/O.

The owner tells what happened (`admit`, `dismiss`, `hello`, `joined`, `lost`); `advance` says what must now be
told to whom. A new version is made only when every newcomer has said hello, or nobody new is awaited.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from trainmaster.gang.protocol import SERVER, WORKER, Membership, Peer


@dataclass
class _Entry:
    peer: Peer
    number: int
    """Order of admission: seniority."""
    here: bool = False
    elastic: bool = False
    address: str = ""
    joined: int = 0


class Roster:
    """`master_addr(member)`: where the worker of rank 0 is reached; `new_port(version)`: its port. Versions begin at
    `first_version`: who takes over from another begins beyond whatever that one may have told."""

    def __init__(
        self, master_addr: Callable[[str], str], new_port: Callable[[int], int], first_version: int = 1
    ) -> None:
        self._master_addr = master_addr
        self._new_port = new_port
        self._first_version = first_version
        self._entries: dict[str, _Entry] = {}
        self._admitted = {WORKER: 0, SERVER: 0}
        self._order = 0
        self._stale = False
        self._why = ""
        self.current: Membership | None = None

    def admit(self, role: str, node: str = "", local_rank: int = 0, why: str = "", name: str = "") -> str:
        """A newcomer's name, given or made. It belongs from the next version on."""
        name = name or f"{role}-{self._admitted[role]}"
        number = name.rpartition("-")[2]
        self._admitted[role] = max(self._admitted[role], int(number) + 1 if number.isdecimal() else 0)
        self._order += 1
        self._entries[name] = _Entry(Peer(name, role, 0, local_rank, node), self._order)
        self._change(why)
        return name

    def dismiss(self, members: Iterable[str], why: str = "") -> None:
        """They leave with the next version, or are already gone."""
        for member in members:
            if self._entries.pop(member, None) is not None:
                self._change(why)

    def renew(self, why: str = "") -> None:
        """The same members come together anew: contact was lost though nobody died."""
        self._change(why)

    def hello(self, member: str, elastic: bool, address: str) -> None:
        entry = self._entries.get(member)
        if entry is not None:
            self._stale |= bool(entry.here and entry.address != address)
            entry.here, entry.elastic, entry.address = True, elastic, address

    def resume(self, membership: Membership) -> None:
        """What members say they were last told, by an agent before this one: the newest is where we stand."""
        if self.current is not None and membership.version <= self.current.version:
            return
        self.current = membership
        for place, peer in enumerate(membership.peers):
            if peer.member in self._entries:
                self._entries[peer.member].number = place - len(membership.peers)  # older than whoever came since
        self._stale = {peer.member for peer in membership.peers} != self._entries.keys()

    def joined(self, member: str, version: int) -> None:
        if member in self._entries:
            self._entries[member].joined = version

    @property
    def members(self) -> tuple[str, ...]:
        """All that belong or will belong, senior first."""
        return tuple(sorted(self._entries, key=lambda name: self._entries[name].number))

    def role_of(self, member: str) -> str:
        return self._entries[member].peer.role

    @property
    def elastic(self) -> bool:
        """Whether everybody is here and goes along with changes."""
        return bool(self._entries) and all(entry.here and entry.elastic for entry in self._entries.values())

    @property
    def awaited(self) -> tuple[str, ...]:
        return tuple(name for name in self.members if not self._entries[name].here)

    @property
    def unjoined(self) -> tuple[str, ...]:
        """Who does not work under the present version (yet)."""
        version = 0 if self.current is None else self.current.version
        return tuple(name for name in self.members if self._entries[name].joined < version)

    @property
    def settled(self) -> bool:
        """Whether the present version is the last word and everybody listed works under it."""
        current = self.current
        return (
            current is not None
            and not self._stale
            and all(entry.joined == current.version for entry in self._entries.values())
        )

    def advance(self, without_awaited: bool = False) -> Membership | None:
        """The next version, once it can be told; it goes to its members and to those it leaves out.

        `without_awaited`: survivors of a death do not wait for newcomers, who come with a later version.
        """
        here = [name for name in self.members if self._entries[name].here]
        if not self._stale or not here or (self.awaited and not without_awaited):
            return None
        peers: list[Peer] = []
        for role in (WORKER, SERVER):
            of_role = [name for name in here if self.role_of(name) == role]
            peers += [
                replace(self._entries[name].peer, rank=rank, address=self._entries[name].address)
                for rank, name in enumerate(of_role)
            ]
        version = max(self._first_version, 1 if self.current is None else self.current.version + 1)
        self.current = Membership(version, tuple(peers), self._master(peers), self._new_port(version), self._why)
        self._stale, self._why = bool(self.awaited), ""
        return self.current

    def _master(self, peers: list[Peer]) -> str:
        return self._master_addr(next((peer.member for peer in peers if peer.role == WORKER), ""))

    def _change(self, why: str) -> None:
        self._stale = True
        self._why = why or self._why
