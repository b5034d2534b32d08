"""Runs a training program at one size for a short time and measures how fast it advances.

The members are started as a supervisor starts them, with the variables that torchrun sets; what counts is the
progress they report (`trainmaster.runtime`), so the speed is in the unit in which the job's work is counted.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainmaster.gang.harness import Gang
from trainmaster.gang.protocol import SERVER, WORKER, Hello, Progress
from trainmaster.model.errors import TrainmasterError

WARM_UP_SHARE = 0.25
"""Of the measured time: steps that compile, fill caches and start threads do not count."""
STOP_S = 10.0


class NothingMeasured(TrainmasterError):
    """The program ran, but its speed could not be told."""


@dataclass(frozen=True)
class Measurement:
    workers: int
    steps_per_s: float
    steps: float
    seconds: float


def measure(
    command: Sequence[str],
    workers: int,
    *,
    servers: int = 0,
    seconds: float = 10.0,
    start_s: float = 120.0,
    accelerator: str = "cpu",
    gpus: bool = False,
    tick: Callable[[float], None] = lambda share: None,  # noqa: ARG005
) -> Measurement:
    """`tick` hears which share of the measured time is over. `NothingMeasured` says why there is no figure."""
    with tempfile.TemporaryDirectory(prefix="trainmaster-profile-") as folder:
        env = {"TRAINMASTER_ACCELERATOR": accelerator}
        program = [sys.executable if command[0] == "python" else command[0], *command[1:]]
        with Gang(program, Path(folder), server_command=program, env=env, gpus=gpus) as gang:
            gang.grow(servers, SERVER)
            gang.grow(workers)
            gang.poll(0.0)
            first_s = _await_progress(gang, workers, start_s)
            begin_s, end_s = first_s + WARM_UP_SHARE * seconds, first_s + (1.0 + WARM_UP_SHARE) * seconds
            while time.monotonic() < end_s and _workers_alive(gang) == workers:
                gang.poll(0.05)
                tick(min(1.0, (time.monotonic() - first_s) / (end_s - first_s)))
            _complain_of_deaths(gang)
            reports = _reports(gang)
            gang.stop("profiled", STOP_S)
            until_s = time.monotonic() + STOP_S
            while gang.alive and time.monotonic() < until_s:
                gang.poll(0.05)
    counted = [(at_s, work) for at_s, work in reports if at_s >= begin_s]
    if len(counted) < 2 or counted[-1][1] <= counted[0][1]:
        counted = reports[1:]  # it ended early, or its steps are long: what there is must do
    if len(counted) < 2 or counted[-1][1] <= counted[0][1]:
        raise NothingMeasured(
            f"with {workers} workers the program reported too little progress to tell a speed ({len(reports)} reports "
            f"in {seconds:g} s). Let it run for more steps, or measure for longer with --seconds"
        )
    (from_s, from_work), (to_s, to_work) = counted[0], counted[-1]
    return Measurement(workers, (to_work - from_work) / (to_s - from_s), to_work - from_work, to_s - from_s)


def _reports(gang: Gang) -> list[tuple[float, float]]:
    """(moment, work of the job as a whole), rising."""
    found: list[tuple[float, float]] = []
    for at_s, _, message in gang.heard:
        if isinstance(message, Progress) and (not found or message.work_done > found[-1][1]):
            found.append((at_s, message.work_done))
    return found


def _workers_alive(gang: Gang) -> int:
    return sum(name.startswith(WORKER) for name in gang.alive)


def _await_progress(gang: Gang, workers: int, start_s: float) -> float:
    """The moment of the first report."""
    until_s = time.monotonic() + start_s
    while not _reports(gang):
        gang.poll(0.05)
        _complain_of_deaths(gang)
        if _workers_alive(gang) < workers:
            raise NothingMeasured(
                "the program ended without reporting progress. Report it with trainmaster.runtime (a session, elastic "
                "training or the parameter server): see examples/, and docs/runtime.md"
            )
        if time.monotonic() > until_s:
            spoke = any(isinstance(message, Hello) for _, _, message in gang.heard)
            raise NothingMeasured(
                f"the program reported no progress within {start_s:g} s: "
                + ("it has joined, but takes no steps" if spoke else "does it use trainmaster.runtime?")
                + ". Give it more time with --start-seconds, or see docs/runtime.md"
            )
    return _reports(gang)[0][0]


def _complain_of_deaths(gang: Gang) -> None:
    for name, member in gang.members.items():
        if member.code not in (None, 0):
            last = "\n".join(gang.log(name).strip().splitlines()[-12:])
            raise NothingMeasured(f"{name} ended with code {member.code}:\n{last}")
