"""What a member of a job (one worker or server process) and its agent say to each other.

One JSON object per line over a stream socket; the standard library only. The agent is whoever started the
process: the supervisor on one machine, the launcher in a pod. The first message of a member is `Hello`, and the
agent answers `Welcome`; anything else first ends the connection.

How a job is resized without stopping: newcomers are started, connect, and say `Hello`; only when all of
them are there does the agent send the next `Membership` to everybody, so that nobody waits for a process
that still loads its libraries. A member that is listed goes over to it between two steps and answers
`Joined`; one that is not listed hands over what it alone holds, and leaves with exit code 0. The resize is
done when every listed member has joined. A member that dies is a `Membership` without it.

Members are listed by seniority: the first worker has been there longest and holds a state to copy from.
Names are never used twice within an attempt; ranks are positions in one membership.

The lease (`trainmaster.model.lease`): a member sends `Renew` and counts from the moment it sent it; when no
`Renewed` has come for `lease_s`, or the connection is lost for so long, it must end itself.

A launcher is an agent that itself has one: it passes on what its member and the service say to each other,
and speaks for itself by `Attach` (first, answered by `Welcome` or `Refused`), `Renew`, `Began` and `Ended`.
It starts the member's command when it is told to `Begin`, and never without a lease. When it attaches again,
perhaps to another leader, it repeats what its member said last and the last `Membership` it has heard of.

This module is a part of the launcher's bundle: the standard library, and Python 3.8 or newer. Messages are values that
nobody changes, and yet not frozen: every launcher and supervisor makes these classes at its start, and a frozen
dataclass takes three times as long to make.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Union, get_args

from trainmaster.model.foreign import MAX_NUMBER, is_finite, is_text, is_whole, parse_json

MAX_LINE_BYTES = 1 << 20
WORKER = "worker"
SERVER = "server"

EXIT_STOPPED = 75
"""Exit code of a member that was told to stop (notice or SIGTERM), has saved, and could go on later."""
EXIT_LEASE_OVER = 76
"""Exit code of a member whose lease ran out: it ended itself without saving."""
EXIT_NOT_RUN = 78
"""Exit code of a launcher that may not run its command: it is fenced, or its container was started again."""
EXIT_CANNOT_RUN = 127
"""Exit code of a launcher whose command cannot be started at all."""


class WireError(ValueError):
    """A message that cannot be read. The connection it came by is closed."""


# -- from the member ----------------------------------------------------------------------------------


@dataclass
class Hello:
    """`elastic`: goes along with later memberships. `address`: where peers reach it, "host:port" or ""."""

    token: str
    member: str
    pid: int
    elastic: bool
    address: str = ""


@dataclass
class Joined:
    """This member now works under membership `version`."""

    version: int


@dataclass
class Progress:
    """Work in steps since the job began, whatever the attempt. `saved`: what its last checkpoint holds;
    None: nobody says that it saves any. `complete`:
    all training is done and saved, so that a stop which comes from now on leaves a finished job. `total`: the amount of
    work in all, as the script has it."""

    work_done: float
    rate: float | None = None
    loss: float | None = None
    saved: float | None = None
    complete: bool = False
    total: float | None = None


@dataclass
class Suspect:
    """Peers that could not be reached under membership `version`; the agent decides what to do."""

    version: int
    members: tuple[str, ...]


@dataclass
class Renew:
    number: int


# -- from the launcher --------------------------------------------------------------------------------


@dataclass
class Attach:
    """`boot` names this start of the launcher; `host` is where peers reach the member; `begun`: its command was
    started before."""

    token: str
    job_id: str
    generation: int
    member: str
    boot: str
    host: str
    begun: bool = False


@dataclass
class Began:
    """The command runs as process `pid`."""

    pid: int


@dataclass
class Ended:
    """The command has ended and nothing of it is left. -N: killed by signal N. `started` False: it never ran."""

    code: int
    why: str = ""
    started: bool = True


# -- to the launcher ----------------------------------------------------------------------------------


@dataclass
class Refused:
    """This launcher will never get a lease (again): it ends what it has started, and goes."""

    why: str


@dataclass
class Begin:
    """Start the command, with these variables added to its environment. Later ones are ignored."""

    environment: dict[str, str]


@dataclass
class Noted:
    """The end was heard of."""


# -- from the agent -----------------------------------------------------------------------------------


@dataclass
class Peer:
    """`role` is `worker` or `server`; `rank` counts from 0 within the role."""

    member: str
    role: str
    rank: int
    local_rank: int = 0
    node: str = ""
    address: str = ""


@dataclass
class Membership:
    """Who takes part. `master_port` is fresh for every version; the worker of rank 0 listens there."""

    version: int
    peers: tuple[Peer, ...]
    master_addr: str
    master_port: int
    why: str = ""

    @property
    def workers(self) -> tuple[Peer, ...]:
        return tuple(peer for peer in self.peers if peer.role == WORKER)

    @property
    def servers(self) -> tuple[Peer, ...]:
        return tuple(peer for peer in self.peers if peer.role == SERVER)

    def find(self, member: str) -> Peer | None:
        return next((peer for peer in self.peers if peer.member == member), None)


@dataclass
class Welcome:
    """`membership` is None while other newcomers are awaited; it follows by itself."""

    lease_s: float
    membership: Membership | None = None


@dataclass
class StopNotice:
    """Save and end: SIGTERM follows at once for those who do not listen, SIGKILL after `grace_s`."""

    why: str
    grace_s: float


@dataclass
class Renewed:
    number: int


Message = Union[  # noqa: UP007
    Hello, Joined, Progress, Suspect, Renew, Membership, Welcome, StopNotice, Renewed,
    Attach, Began, Ended, Refused, Begin, Noted,
]  # fmt: skip
_BY_NAME = {kind.__name__: kind for kind in get_args(Message)}


def encode(message: Message) -> bytes:
    """One line."""
    return json.dumps({"type": type(message).__name__, **_plain(message)}, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> Message:
    """The message of one line; `WireError` when it is none."""
    try:
        data = parse_json(line)
    except ValueError as error:
        raise WireError(f"not JSON: {line[:80]!r}") from error
    if not isinstance(data, dict):
        raise WireError(f"not an object: {line[:80]!r}")
    kind = _BY_NAME.get(str(data.pop("type", None)))
    if kind is None:
        raise WireError(f"unknown message: {line[:80]!r}")
    return _build(kind, data)


_FIELDS = {kind: tuple((field.name, str(field.type)) for field in fields(kind)) for kind in (*get_args(Message), Peer)}
"""Names and types as written: looked up once, since the service reads thousands of messages a second."""


def _plain(message: Any) -> dict[str, Any]:
    return {name: _value(getattr(message, name)) for name, _ in _FIELDS[type(message)]}


def _value(value: Any) -> Any:
    if type(value) in _FIELDS:
        return _plain(value)
    return [_value(item) for item in value] if isinstance(value, tuple) else value


def _is_number(value: Any) -> bool:
    return is_finite(value, MAX_NUMBER)


_SCALARS: dict[str, Callable[[Any], bool]] = {
    "str": is_text,
    "int": is_whole,
    "float": _is_number,
    "bool": lambda value: isinstance(value, bool),
    "float | None": lambda value: value is None or _is_number(value),
}


def _build(kind: type[Any], data: Any) -> Any:
    if not isinstance(data, dict):
        raise WireError(f"{kind.__name__} is not an object")
    values: dict[str, Any] = {}
    for name, wanted in _FIELDS[kind]:
        if name not in data:
            continue  # the constructor complains if it has no default; newer fields may be absent
        value = data[name]
        if wanted in _SCALARS:
            if not _SCALARS[wanted](value):
                raise WireError(
                    f"{kind.__name__}.{name} is {value[:80]!r}"
                    if isinstance(value, str)
                    else f"{kind.__name__}.{name} is out of range"
                )
        elif wanted == "tuple[str, ...]":
            if not isinstance(value, list) or not all(map(is_text, value)):
                raise WireError(f"{kind.__name__}.{name} is not a list of names")
            value = tuple(value)
        elif wanted == "tuple[Peer, ...]":
            if not isinstance(value, list):
                raise WireError(f"{kind.__name__}.{name} is not a list")
            value = tuple(_build(Peer, item) for item in value)
        elif wanted == "dict[str, str]":
            if not isinstance(value, dict) or not all(map(is_text, [*value, *value.values()])):
                raise WireError(f"{kind.__name__}.{name} is not an object of texts")
        elif value is not None:  # "Membership | None"
            value = _build(Membership, value)
        values[name] = value
    try:
        return kind(**values)
    except TypeError as error:
        raise WireError(f"{kind.__name__}: {error}") from error


class LineBuffer:
    """Cuts a byte stream into messages."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Message]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE_BYTES:
            raise WireError(f"a message is longer than {MAX_LINE_BYTES} bytes")
        return [decode(line) for line in lines if line]
