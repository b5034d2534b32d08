"""What a supervisor is started with: the file launch.json, written by the backend before the supervisor exists."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from trainmaster.backends.local.accounts import Account
from trainmaster.gang.actions import Seat, seat_from_json, seat_to_json
from trainmaster.gang.protocol import SERVER


@dataclass(frozen=True)
class LaunchRecord:
    """`env` is the job's own; what all members share of TRAINMASTER_* is in it too, and wins."""

    job_id: str
    generation: int
    seq: int
    slots: tuple[Seat, ...]
    command: tuple[str, ...]
    token: str
    server_command: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str = ""
    snapshot: str = ""
    """Name of the copy of the work folder to run in."""
    steps: float | None = None
    max_attempts: int = 3
    lease_s: float = 30.0
    grace_s: float = 20.0
    hello_wait_s: float = 0.0
    """So long the start of a job that may speak is not reported unless it has spoken; 0: at once."""
    join_patience_s: float = 300.0
    """A listed member that has not joined for so long is taken for stuck, and killed."""
    memory_mib: int = 0
    """Most memory of a worker; 0: no limit."""
    progress_every_s: float = 0.5
    log_max_bytes: int = 64 << 20
    account: Account | None = None
    """Under which its members run; None: the service's."""

    def command_of(self, role: str) -> tuple[str, ...]:
        return self.server_command if role == SERVER and self.server_command else self.command


def record_to_json(record: LaunchRecord) -> dict[str, Any]:
    return {**asdict(record), "slots": [seat_to_json(slot) for slot in record.slots]}


def record_from_json(data: Mapping[str, Any]) -> LaunchRecord:
    known = {each.name for each in fields(LaunchRecord)}
    values = {name: value for name, value in data.items() if name in known}
    values["slots"] = tuple(seat_from_json(slot) for slot in values["slots"])
    values["command"], values["server_command"] = tuple(values["command"]), tuple(values["server_command"])
    if values.get("account") is not None:
        account = values["account"]
        values["account"] = Account(**{**account, "groups": tuple(account["groups"])})
    return LaunchRecord(**values)
