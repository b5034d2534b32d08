"""What members have written: a file per member and incarnation, kept after the end."""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from trainmaster.backends.local.layout import checkpoint_folder, job_folder


@dataclass(frozen=True)
class LogFile:
    generation: int
    member: str
    path: Path


def log_files(home: Path, job_id: str) -> list[LogFile]:
    """By generation, workers before servers, each by number."""
    found = []
    for run in job_folder(home, job_id).runs():
        for path in run.path.glob("*-*.log"):
            found.append(LogFile(run.generation, path.stem, path))
    return sorted(found, key=lambda log: (log.generation, *_order(log.member)))


def _order(member: str) -> tuple[bool, int, str]:
    role, _, number = member.rpartition("-")
    return (role != "worker", int(number) if number.isdecimal() else 0, member)


def read_log(path: Path, offset: int, limit_bytes: int) -> tuple[bytes, int]:
    """What is there from `offset` on, and where to go on; a negative offset counts from the end.

    Where the head of a long log has been given back to the disk, reading begins with what is left. A file
    that was cut is read from its beginning.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return b"", 0
    try:
        size = os.fstat(descriptor).st_size
        if offset < 0:
            offset = max(0, size + offset)
        elif offset > size:
            offset = 0
        with contextlib.suppress(OSError):  # no data after the offset, or a file system without holes
            offset = os.lseek(descriptor, offset, os.SEEK_DATA)
        data = os.pread(descriptor, limit_bytes, offset)
        return data, offset + len(data)
    finally:
        os.close(descriptor)


def forget_job(home: Path, job_id: str, checkpoints: bool = False) -> None:
    """Delete a job's folders. Only for jobs that are over: the lock file goes too."""
    shutil.rmtree(job_folder(home, job_id).path, ignore_errors=True)
    if checkpoints:
        shutil.rmtree(checkpoint_folder(home, job_id), ignore_errors=True)
