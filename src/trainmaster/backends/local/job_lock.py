"""The lock of a job: who holds it may let the job run. It falls with the process that holds it.

The file remembers the highest generation that ever began, so that an older one, however late its keeper
comes, finds itself fenced. The kernel frees the lock when its holder dies: a lock that can be taken proves
that no keeper of the job lives.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

RETRY_S = 0.01


class JobLock:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def take(cls, path: Path, patience_s: float = 0.0) -> JobLock | None:
        """None when another process keeps it for longer than `patience_s`."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline_s = time.monotonic() + patience_s
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return cls(descriptor)
            except BlockingIOError:
                if time.monotonic() >= deadline_s:
                    os.close(descriptor)
                    return None
                time.sleep(RETRY_S)

    @property
    def generation(self) -> int:
        """The highest that ever began; 0: none."""
        text = os.pread(self._descriptor, 32, 0)
        return int(text) if text.strip().isdigit() else 0

    def record(self, generation: int) -> None:
        """Durable before it returns. Shorter numbers never follow longer ones, so one write is enough."""
        os.pwrite(self._descriptor, f"{generation:020d}\n".encode(), 0)
        os.fsync(self._descriptor)

    def release(self) -> None:
        os.close(self._descriptor)
