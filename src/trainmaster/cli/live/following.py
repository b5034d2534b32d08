"""Follows jobs to their end: their logs, their states, the exit code that says how it went."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable

import click

from trainmaster.client.client import Client, job_path, patiently
from trainmaster.client.errors import Refused
from trainmaster.client.transport import Json
from trainmaster.gang.failure_text import error_line
from trainmaster.wire.safe_text import safe_block, safe_line

ENDED = frozenset({"finished", "failed", "cancelled", "rejected"})
_POLL_S = 0.3
_LONG_POLL_S = 2.0


def remark(text: str) -> None:
    """About the job, not of it: on the error stream, so that the log stays clean."""
    click.echo(f"trainmaster: {safe_line(text)}", err=True)


def exit_code(view: Json) -> int:
    """The code a shell would see: the program's own, 128 + signal, or 1 when it never ran to an end."""
    if view["state"] == "finished":
        return 0
    kind, value = (*str(view.get("exit") or "").split(), "", "")[:2]  # `exit 3 (...)`, `signal SIGKILL (...)`
    if kind == "exit" and value.isdigit() and 0 < int(value) < 256:
        return int(value)
    if kind == "signal" and view["state"] == "failed" and value in signal.Signals.__members__:
        return 128 + signal.Signals[value].value
    return 1


def ended_line(view: Json) -> str:
    """One sentence on how a job ended."""
    label = view["id"] if view["name"] in ("", view["id"]) else f"{view['id']} ({view['name']})"
    told = how_it_ended(view)
    return f"{label} {_PAST[view['state']]}{': ' if told else ''}{told}"


def how_it_ended(view: Json) -> str:
    """The exit and the number of attempts of what failed, the reason of what was refused; else nothing."""
    if view["state"] != "failed" or not view["exit"]:
        return view["reason"]
    error = error_line(view.get("output", ""))
    told = f"{view['exit']}: {error}" if error else view["exit"]
    return told if view["attempts"] < 2 else f"{told}, {view['attempts']} attempts"


_PAST = {"finished": "has finished", "failed": "has failed", "cancelled": "was cancelled", "rejected": "was rejected"}


def job_view(client: Client, job: str) -> Json:
    return patiently(lambda: client.get(job_path(job)), lambda told: remark(f"{told}; waiting for it"))


def wait_for_all(client: Client, jobs: list[str]) -> int:
    """Until all have ended; the code of the first that did not finish, else 0."""
    code = 0
    for job in jobs:
        view = wait_for(client, job)
        remark(ended_line(view))
        code = code or exit_code(view)
    return code


def wait_for(client: Client, job: str) -> Json:
    pause_s = 0.1
    while True:
        view = job_view(client, job)
        if view["state"] in ENDED:
            return view
        time.sleep(pause_s)
        pause_s = min(1.0, pause_s * 1.5)


def write_log(text: str, raw: bool) -> None:
    sys.stdout.write(text if raw else safe_block(text))
    sys.stdout.flush()


class LogReader:
    """One member's log of one attempt at a time; goes on to the next attempt when there is one."""

    def __init__(self, client: Client, job: str, member: str | None, attempt: int | None) -> None:
        self._client = client
        self._job = job
        self._wanted = member
        self._fixed = attempt is not None
        self._offset = 0
        self.attempt = attempt
        self.member = member or ""
        self.members: list[str] = []
        self.started = False

    @property
    def fixed(self) -> bool:
        """Only this attempt was asked for."""
        return self._fixed

    def last_only(self) -> None:
        """Do not go on to later attempts."""
        self._fixed = True

    def read(self, wait_s: float = 0.0) -> tuple[str, bool]:
        """What is new, and whether nothing more will come (of this attempt, when it is the only one wanted)."""
        chunk = self._ask(self.attempt, self._wanted, self._offset, wait_s)
        if not chunk["member"]:
            return "", bool(chunk["ended"])
        self.started = True
        self.attempt, self.member = chunk["attempt"], chunk["member"]
        self.members = [name for name in chunk["members"] if name.startswith(("worker", "server"))]
        self._offset = chunk["offset"]
        ended = bool(chunk["ended"]) and not chunk["text"]
        if ended and not self._fixed and self._next_attempt():
            return "", False
        return chunk["text"], ended

    def _next_attempt(self) -> bool:
        """Turn to the next start of the job, if there was one; numbers may have gaps."""
        newest = self._ask(None, None, 0)["attempt"]
        for number in range((self.attempt or 0) + 1, newest + 1):
            try:
                self._ask(number, self._wanted, 0)
            except Refused as refused:
                if refused.status != 404:
                    raise
                continue
            self.attempt, self._offset = number, 0
            remark(f"{self._job}: started again (attempt {number})")
            return True
        return False

    def _ask(self, attempt: int | None, member: str | None, offset: int, wait_s: float = 0.0) -> Json:
        asked = {"attempt": attempt, "member": member, "offset": offset}
        return patiently(
            lambda: self._client.get(job_path(self._job, "/logs"), asked, wait_s=wait_s),
            lambda told: remark(f"{told}; waiting for it"),
        )


def follow(reader: LogReader, client: Client, job: str, show: Callable[[str], None]) -> Json | None:
    """Show a log until its end: of the attempt that was asked for (None), else of the job (its last view)."""
    while True:
        text, ended = reader.read(wait_s=_LONG_POLL_S)
        if text:
            show(text)
            continue
        if ended and reader.fixed:
            return None
        if ended or not reader.started:
            view = job_view(client, job)
            if view["state"] in ENDED:
                _drain(reader, show)
                return view
            time.sleep(_POLL_S)


def _drain(reader: LogReader, show: Callable[[str], None]) -> None:
    """What was written between the last look at the log and the end of the job."""
    while True:
        text, ended = reader.read()
        if text:
            show(text)
        elif ended or not reader.started:
            return
        else:
            time.sleep(_POLL_S)
            if not (text := reader.read()[0]):
                return
            show(text)


class Prefixer:
    """Whole lines of one member, each under its name."""

    def __init__(self, member: str, width: int, raw: bool) -> None:
        self._label = f"{member:<{width}} | "
        self._raw = raw
        self._rest = ""

    def show(self, text: str) -> None:
        lines = (self._rest + (text if self._raw else safe_block(text))).split("\n")
        self._rest = lines.pop()
        for line in lines:
            sys.stdout.write(f"{self._label}{line}\n")
        sys.stdout.flush()

    def finish(self) -> None:
        if self._rest:
            self.show("\n")


def follow_members(client: Client, job: str, attempt: int | None, raw: bool, to_the_end: bool) -> Json | None:
    """Every member's log, line by line as it comes."""
    readers: dict[str, tuple[LogReader, Prefixer]] = {}
    scout = LogReader(client, job, None, attempt)
    view: Json | None = None
    while True:
        scout.read()
        for member in scout.members:
            if member not in readers:
                width = max(len(name) for name in scout.members)
                readers[member] = LogReader(client, job, member, attempt), Prefixer(member, width, raw)
        spoke = False
        for reader, prefixer in readers.values():
            text, _ = reader.read()
            if text:
                prefixer.show(text)
                spoke = True
        if spoke:
            continue
        if not to_the_end or view is not None:
            break
        current = job_view(client, job)
        if current["state"] in ENDED:
            view = current  # one more round: what was written before the end
        else:
            time.sleep(_POLL_S)
    for _, prefixer in readers.values():
        prefixer.finish()
    return view
