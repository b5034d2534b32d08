"""A job that bears witness: it records when it runs, and notices if two attempts of it run at once.

    python -m support.overlap_detector FOLDER plain SECONDS     ends with exit code 0 after so much work in all
    python -m support.overlap_detector FOLDER emulated ARGS...  an emulated elastic member

Each process holds a shared lock on a file of its attempt for as long as it lives; it appends its begin and
its end to `<job>.log`, and a line `TWICE` if it finds the lock of another attempt held. The locks are the
kernel's, so they tell the truth whatever the scheduler believes. Plain work is kept in a file, so that a new
attempt goes on. Standard library only.
"""

from __future__ import annotations

import fcntl
import os
import struct
import sys
import time
from pathlib import Path

TICK_S = 0.05
FLOCK = "hhqqi0q"
"""struct flock: type, whence, start, length, process."""


class Witness:
    def __init__(self, folder: Path) -> None:
        self.job = os.environ["TRAINMASTER_JOB_ID"]
        self.generation = int(os.environ["TRAINMASTER_GENERATION"])
        self.folder = folder
        self.member = os.environ["TRAINMASTER_MEMBER"]

    def __enter__(self) -> Witness:
        own = self.folder / f"{self.job}.{self.generation}.lock"
        self._lock = os.open(own, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.lockf(self._lock, fcntl.LOCK_SH)
        self.say("begin")
        self.look_around()
        return self

    def __exit__(self, *_: object) -> None:
        self.look_around()
        self.say("end")

    def look_around(self) -> None:
        """Nobody of another attempt may live while this process does."""
        for other in sorted(self.folder.glob(f"{self.job}.*.lock")):
            if other.name != f"{self.job}.{self.generation}.lock" and _is_held(other):
                self.say(f"TWICE {other.name}")

    def say(self, what: str) -> None:
        line = f"{time.monotonic_ns()} {self.generation} {self.member} {os.getpid()} {what}\n"
        descriptor = os.open(self.folder / f"{self.job}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(descriptor, line.encode())  # one write of a short line: whole, or not at all
        os.close(descriptor)


def _is_held(path: Path) -> bool:
    """Asks the kernel and takes no lock: two members that look at the same moment must not see each other."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        wanted = struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        found = struct.unpack(FLOCK, fcntl.fcntl(descriptor, fcntl.F_GETLK, wanted))
    finally:
        os.close(descriptor)
    return found[0] != fcntl.F_UNLCK


def _plain(witness: Witness, seconds: float) -> int:
    kept = witness.folder / f"{witness.job}.{os.environ['RANK']}.work"
    done = float(kept.read_text()) if kept.exists() else 0.0
    while done < seconds:
        time.sleep(TICK_S)
        done += TICK_S
        fresh = kept.with_suffix(f".{os.getpid()}")
        fresh.write_text(str(done))
        fresh.replace(kept)
    return 0


def main(arguments: list[str]) -> int:
    folder, kind, *rest = arguments
    with Witness(Path(folder)) as witness:
        if kind == "plain":
            return _plain(witness, float(rest[0]))
        from trainmaster.runtime import emulated

        return emulated.main(rest)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
