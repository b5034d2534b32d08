"""Kill drivers, supervisors and workers at random moments, by a seed; then let go and see that nothing was lost.

The harness knows nothing of the scheduler's books: what ran is told by the jobs themselves
(`support.overlap_detector`), what lives by /proc, what was accepted by the acknowledgements that a client got.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

DRIVER, SUPERVISOR, WORKER = "driver", "keeper", "worker"
SUPERVISOR_MODULE = b"trainmaster.backends.local.supervisor"


class Subject(Protocol):
    """A scheduler under test, with its home folder."""

    @property
    def home(self) -> Path: ...

    def submit(self, name: str, workers: tuple[int, int], command: list[str], speed: float) -> str | None:
        """The id under which it was accepted; None: it could not be asked just now."""
        ...

    def driver_pid(self) -> int | None:
        """None while there is none to kill."""
        ...

    def close(self) -> None: ...

    def states(self) -> dict[str, str]:
        """State of every accepted job, in users' words; may fail with `OSError` while the driver is down."""
        ...


@dataclass
class Story:
    """What happened. `faults` is empty when all promises were kept."""

    seed: int
    kills: Counter[str] = field(default_factory=Counter)
    accepted: list[str] = field(default_factory=list)
    states: dict[str, str] = field(default_factory=dict)
    attempts: int = 0
    faults: list[str] = field(default_factory=list)
    wall_s: float = 0.0


def processes_of(home: Path) -> dict[str, list[int]]:
    """Living supervisors and job processes of a home folder."""
    agent = f"TRAINMASTER_AGENT=unix:{home.resolve()}/".encode()
    folder = f"{home.resolve()}/".encode()
    found: dict[str, list[int]] = {SUPERVISOR: [], WORKER: []}
    for name in sorted(os.listdir("/proc")):
        if not name.isdecimal():
            continue
        with contextlib.suppress(OSError):
            if agent in Path(f"/proc/{name}/environ").read_bytes():
                found[WORKER].append(int(name))
                continue
            command = Path(f"/proc/{name}/cmdline").read_bytes()
            if SUPERVISOR_MODULE in command and folder in command:
                found[SUPERVISOR].append(int(name))
    return found


def kill_all(home: Path) -> None:
    for pids in processes_of(home).values():
        for pid in pids:
            os.kill(pid, signal.SIGKILL)


def check_under_kills(
    subject: Subject, seed: int, kills: dict[str, int], kill_patience_s: float, end_patience_s: float
) -> None:
    """Nothing is lost and nothing runs twice; the subject is closed in any case."""
    try:
        story = KillLoop(subject, seed, kills).run(kill_patience_s, end_patience_s)
    finally:
        subject.close()
    print(story)
    assert not story.faults, "\n".join(story.faults)
    assert story.attempts > len(story.accepted)  # kills did something


class KillLoop:
    def __init__(
        self, subject: Subject, seed: int, kills: dict[str, int], busy: int = 8, pause_s: float = 0.25
    ) -> None:
        self.subject = subject
        self.rng = np.random.Generator(np.random.PCG64(seed))
        self.wanted = kills
        self.busy = busy
        self.pause_s = pause_s
        self.story = Story(seed)
        self.witness = subject.home / "witness"
        self._number = 0
        self._open: set[str] = set()

    def run(self, kill_patience_s: float, end_patience_s: float) -> Story:
        begun_s = time.monotonic()
        while self._missing() and time.monotonic() < begun_s + kill_patience_s:
            self._keep_busy()
            time.sleep(float(self.rng.exponential(self.pause_s)))
            self._kill_one()
        if missing := self._missing():
            self.story.faults.append(f"too few kills: {dict(self.story.kills)} of {missing}")
        self._wait_for_the_end(time.monotonic() + end_patience_s)
        self._hear_witnesses()
        self.story.wall_s = time.monotonic() - begun_s
        return self.story

    def _missing(self) -> list[str]:
        return [kind for kind, count in self.wanted.items() if self.story.kills[kind] < count]

    def _keep_busy(self) -> None:
        """So many jobs at once that there is always somebody to kill."""
        with contextlib.suppress(OSError):
            states = self.subject.states()
            self._open = {job for job in self._open if states.get(job) not in ("finished", "failed", "cancelled")}
        while len(self._open) < self.busy:
            job_id = self._submit()
            if job_id is None:
                return
            self._open.add(job_id)
            self.story.accepted.append(job_id)

    def _submit(self) -> str | None:
        """A plain gang or an elastic job. They last longer than a start takes, so that what was left alive meets
        what comes after it."""
        workers = int(self.rng.integers(1, 3))
        head = [sys.executable, "-m", "support.overlap_detector", str(self.witness)]
        work_s = float(self.rng.uniform(1.0, 4.0))
        name = f"k{self._number}"
        if self.rng.random() < 0.5:
            accepted = self.subject.submit(name, (workers, workers), [*head, "plain", f"{work_s:.2f}"], 1.0)
        else:
            command = [*head, "emulated", "--steps", f"{work_s * 20 * workers:.0f}", "--save-every", "2"]
            accepted = self.subject.submit(name, (1, workers + 1), command, 20.0)
        if accepted is not None:
            self._number += 1
        return accepted

    def _kill_one(self) -> None:
        kinds = self._missing()
        if not kinds:
            return
        kind = kinds[int(self.rng.integers(len(kinds)))]
        if kind == DRIVER:
            driver = self.subject.driver_pid()
            pids = [] if driver is None else [driver]
        else:
            pids = processes_of(self.subject.home)[kind]
        if pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pids[int(self.rng.integers(len(pids)))], signal.SIGKILL)
                self.story.kills[kind] += 1

    def _wait_for_the_end(self, deadline_s: float) -> None:
        """Faults are over: every accepted job finishes, and nothing of them lives on."""
        while time.monotonic() < deadline_s:
            with contextlib.suppress(OSError):
                self.story.states = self.subject.states()
                if all(self.story.states.get(job) == "finished" for job in self.story.accepted):
                    break
            time.sleep(0.1)
        for job in self.story.accepted:
            if (state := self.story.states.get(job, "lost")) != "finished":
                self.story.faults.append(f"{job} is {state}")
        self._until(lambda: not any(processes_of(self.subject.home).values()), 5.0)
        for kind, pids in processes_of(self.subject.home).items():
            self.story.faults += [f"{kind} {pid} is left: {_describe(pid)}" for pid in pids]

    def _until(self, done: Callable[[], bool], patience_s: float) -> None:
        deadline_s = time.monotonic() + patience_s
        while not done() and time.monotonic() < deadline_s:
            time.sleep(0.05)

    def _hear_witnesses(self) -> None:
        for log in sorted(self.witness.glob("*.log")):
            lines = [line.split(maxsplit=4) for line in log.read_text().splitlines()]
            self.story.attempts += len({line[1] for line in lines})
            self.story.faults += [f"{log.stem}: {' '.join(line)}" for line in lines if line[4].startswith("TWICE")]
        unheard = [job for job in self.story.accepted if not (self.witness / f"{job}.log").exists()]
        self.story.faults += [f"{job} finished without having run" for job in unheard]


def _describe(pid: int) -> Any:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return "gone"
