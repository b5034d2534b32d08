"""The logs of a job's members: `jobs/<id>/<generation>/<member>.log` in the home folder, read in pieces."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trainmaster.engine.ports import number_of
from trainmaster.model.errors import InputError
from trainmaster.service.api.problems import NotFound

MAX_CHUNK = 1 << 20
SUFFIX = ".log"


@dataclass(frozen=True)
class Chunk:
    text: str
    attempt: int
    member: str
    members: list[str]
    attempts: int
    offset: int
    size: int


def chosen_attempt(job_id: str, attempts: list[int], wanted: int | None, what: str) -> int:
    """The attempt asked for, of those that left `what`; the last one if none was named, 0 if there is none."""
    if wanted is None:
        return attempts[-1] if attempts else 0
    if wanted not in attempts:
        expected = f"one of {', '.join(map(str, attempts))}" if attempts else f"an attempt that has left a {what}"
        raise NotFound(f"{job_id} has no {what} of attempt {wanted}", where="attempt", expected=expected)
    return wanted


def chosen_member(job_id: str, attempt: int, members: list[str], wanted: str | None) -> str:
    """The member asked for, or the first; empty if there is none."""
    if wanted is None:
        return members[0] if members else ""
    if wanted not in members:
        expected = f"one of {', '.join(members)}" if members else "a member that has begun"
        what = f"attempt {attempt} of {job_id} has no member '{wanted[:80]}'"
        raise NotFound(what, where="member", expected=expected)
    return wanted


class LogFolder:
    """Only files that a listing of the job's own folder shows are ever opened, so no name leads elsewhere."""

    def __init__(self, home: Path) -> None:
        self._jobs = home / "jobs"

    def attempts(self, job_id: str) -> list[int]:
        """Attempts that left a log, first to last. `job_id` is one that the service has given."""
        folder = self._jobs / job_id
        if Path(job_id).name != job_id or not folder.is_dir():
            return []
        return sorted(int(entry.name) for entry in folder.iterdir() if entry.name.isascii() and entry.name.isdigit())

    def members(self, job_id: str, attempt: int) -> list[str]:
        folder = self._jobs / job_id / str(attempt)
        names = [entry.name.removesuffix(SUFFIX) for entry in folder.glob(f"*{SUFFIX}") if entry.is_file()]
        return sorted(names, key=lambda name: (not name.startswith("worker"), number_of(name), name))

    def read(self, job_id: str, attempt: int | None, member: str | None, offset: int, limit: int) -> Chunk:
        """A piece of one member's log; a negative offset counts from the end."""
        attempts = self.attempts(job_id)
        chosen = chosen_attempt(job_id, attempts, attempt, "log")
        members = self.members(job_id, chosen) if attempts else []
        name = chosen_member(job_id, chosen, members, member)
        if not name:
            return Chunk("", chosen, "", [], len(attempts), max(offset, 0), 0)
        if limit < 1:
            raise InputError(f"{limit} bytes", "1 or more", column="limit")
        data, start, size = _read(self._jobs / job_id / str(chosen) / f"{name}{SUFFIX}", offset, min(limit, MAX_CHUNK))
        return Chunk(data.decode("utf-8", "replace"), chosen, name, members, len(attempts), start + len(data), size)


def _read(path: Path, offset: int, limit: int) -> tuple[bytes, int, int]:
    """Whole characters only: a piece does not end inside one, unless the file does."""
    with path.open("rb") as stream:
        size = stream.seek(0, 2)
        start = max(size + offset, 0) if offset < 0 else min(offset, size)
        with suppress(OSError):  # the head of a long log may have been given back to the disk: skip the hole
            start = os.lseek(stream.fileno(), start, os.SEEK_DATA)
        stream.seek(start)
        data = stream.read(limit)
    cut = len(data)
    while cut and len(data) - cut < 4 and data[cut - 1] & 0xC0 == 0x80:
        cut -= 1
    if cut and data[cut - 1] & 0xC0 == 0xC0:
        lead = data[cut - 1]
        length = 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
        if len(data) - (cut - 1) < length and cut > 1:
            return data[: cut - 1], start, size
    return data, start, size
