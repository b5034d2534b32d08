"""What an attempt is told of its members, what it wants done, and how it ends. Data only.

Values that nobody changes, and yet not frozen: a supervisor makes these classes at every start, and a frozen dataclass
takes three times as long to make.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from trainmaster.gang.processes import describe_exit
from trainmaster.gang.protocol import EXIT_LEASE_OVER, EXIT_STOPPED, SERVER, WORKER, Message

ALONE = -1
"""Group rank of a member that shares its host with no other: a pod."""


@dataclass
class Seat:
    """One member's place: role, node and devices, and what they mean for its process.

    `local_rank` counts the members of the role on the node; `env` is what the place adds to the environment;
    `cpus` are the cores the process is bound to (none: any).
    """

    role: str
    node: str
    group_rank: int = 0
    local_rank: int = 0
    local_size: int = 1
    devices: tuple[int, ...] = ()
    cpus: tuple[int, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def place(self) -> tuple[str, str, tuple[int, ...]]:
        """What a process cannot change while it lives."""
        return (self.role, self.node, tuple(sorted(self.devices)))


def seat_to_json(seat: Seat) -> dict[str, Any]:
    return asdict(seat)


def seat_from_json(data: Mapping[str, Any]) -> Seat:
    values = dict(data)
    values["devices"], values["cpus"] = tuple(values["devices"]), tuple(values["cpus"])
    return Seat(**values)


@dataclass
class SeatChange:
    """`stay` maps members to their seats in the new target; `leave` by seniority; `fill` are empty seats."""

    stay: Mapping[str, Seat]
    leave: tuple[str, ...]
    fill: tuple[Seat, ...]

    @property
    def workers_stay(self) -> bool:
        return any(seat.role == WORKER for seat in self.stay.values())


def change_seats(present: Mapping[str, Seat], target: Sequence[Seat]) -> SeatChange:
    """Which of the present members (senior first) stay: those whose place is also a place of the target."""
    vacant = list(target)
    stay: dict[str, Seat] = {}
    for member, seat in present.items():
        match = next((candidate for candidate in vacant if candidate.place == seat.place), None)
        if match is not None:
            vacant.remove(match)
            stay[member] = match
    leave = tuple(member for member in present if member not in stay)
    return SeatChange(stay, leave, tuple(vacant))


def in_rank_order(seats: Sequence[Seat]) -> list[Seat]:
    """Workers before servers, each in the order given."""
    return [seat for role in (WORKER, SERVER) for seat in seats if seat.role == role]


# -- what is seen of a member --------------------------------------------------------------------------

OWN, NODES, NOBODYS = "own", "node", "nobody"
"""Whose fault an end is: the job's, the node's (it could not run the member), or nobody's (it was taken away)."""


@dataclass
class Attached:
    """Whoever starts the member's command is ready to. Peers reach the member at `host`."""

    host: str = ""


@dataclass
class Detached:
    """The connection to whoever starts the command was lost."""


@dataclass
class Running:
    """The command runs."""


@dataclass
class Exited:
    """The member has ended, and nothing of it is left. `ran`: its command was started.

    `fault` is NOBODYS for whatever was stopped, evicted or deleted, or lost its lease: that is never success.
    `released`: its node counts its devices as free. `outlived`: something else of it runs on there, and holds them.
    """

    code: int
    why: str = ""
    fault: str = OWN
    ran: bool = True
    released: bool = True
    outlived: bool = False


@dataclass(frozen=True)
class Emptied:
    """Nothing runs any more where a member was outlived: the node will soon count its devices as free."""


def command_exit(member: str, code: int, speaks: bool) -> Exited:
    """A member whose command has ended. What a plain command, one that never spoke, means by a code is its own
    affair."""
    why = f"{member} ended with exit code {code}" if code >= 0 else f"{member} was {describe_exit(code)}"
    return Exited(code, why, NOBODYS if speaks and code in (EXIT_STOPPED, EXIT_LEASE_OVER) else OWN)


@dataclass
class Released:
    """The node counts the devices of a member that has ended as free."""


@dataclass
class Hopeless:
    """The member will never start, by the job's own fault."""

    why: str


MemberState = Attached | Detached | Running | Exited | Emptied | Released | Hopeless


# -- what an attempt wants done ------------------------------------------------------------------------


@dataclass
class Start:
    """Provide for a member at this seat, and tell when it is `Attached`; the command starts at `Send(Begin)`."""

    member: str
    seat: Seat
    rank: int


@dataclass
class Send:
    member: str
    message: Message


@dataclass
class Terminate:
    """Notice to a member that listens, SIGTERM to any other, SIGKILL after the grace. A shorter grace may follow."""

    member: str
    why: str
    grace_s: float


@dataclass
class Started:
    """Every member runs, and the gang has come together if it is one that does."""


@dataclass
class Resized:
    """The target of command `seq` is reached."""

    seq: int


@dataclass
class Silent:
    """The attempt ends, and every member that may be alive is on one of these lost nodes."""

    nodes: frozenset[str]


EXITED, STOPPED, START_FAILED = "exited", "stopped", "start-failed"


@dataclass
class Outcome:
    """How an attempt ended. `code` counts for EXITED only; 0 means that the job has finished.

    `node` is the one that could not start a member; None: a failed start is the job's own fault.
    """

    kind: str
    code: int = 0
    why: str = ""
    node: str | None = None

    @property
    def finished(self) -> bool:
        return self.kind == EXITED and self.code == 0


@dataclass
class Over:
    """No member is left."""

    outcome: Outcome


@dataclass
class Report:
    what: Started | Resized | Silent | Over


Action = Start | Send | Terminate | Report
