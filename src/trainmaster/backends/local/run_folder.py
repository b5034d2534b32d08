"""Files of the local backend: where they lie, and how they are written so that a crash leaves whole ones.

home/jobs/<job>/lock                  the job's lock; holds the highest generation that ever began
home/jobs/<job>/work.json             work saved, for the next attempt and for a dead supervisor
home/jobs/<job>/<generation>/         one attempt: launch.json, ended.json, sockets, <member>.log
home/checkpoints/<job>/               TRAINMASTER_CHECKPOINT_DIR
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trainmaster.gang.actions import EXITED, START_FAILED, STOPPED
from trainmaster.model.foreign import MAX_NUMBER, is_finite, is_text, is_whole, parse_json

_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
_UNIX_PATH_MAX = 107
"""The kernel's limit on the path of a socket, without the closing zero."""
LOCK_RETRY_S = 0.01


def folder_name(job_id: str) -> str:
    """A name that is one path component whatever the id holds, and different for different ids."""
    safe = "".join(c if c in _PLAIN else "".join(f"%{byte:02X}" for byte in c.encode()) for c in job_id)
    return f"%2E{safe[1:]}" if safe.startswith(".") else safe or "%"


def job_id_of(name: str) -> str:
    """The id that `folder_name` made this of."""
    if name == "%":
        return ""
    raw, at = bytearray(), 0
    while at < len(name):
        if name[at] == "%":
            raw.append(int(name[at + 1 : at + 3], 16))
            at += 3
        else:
            raw += name[at].encode()
            at += 1
    return raw.decode()


@dataclass(frozen=True)
class RunFolder:
    """The folder of one attempt."""

    path: Path

    @property
    def generation(self) -> int:
        return int(self.path.name)

    @property
    def launch(self) -> Path:
        return self.path / "launch.json"

    @property
    def ended(self) -> Path:
        return self.path / "ended.json"

    @property
    def sharing(self) -> Path:
        """On emulated slots: what the attempt keeps of its speed beside others (`shared_slots`)."""
        return self.path / "sharing.json"

    @property
    def agent_socket(self) -> Path:
        return self.path / "agent.sock"

    @property
    def control_socket(self) -> Path:
        return self.path / "control.sock"

    @property
    def supervisor_notes(self) -> Path:
        """What the supervisor itself had to complain about; not a member's log."""
        return self.path / "keeper.txt"

    def log(self, member: str) -> Path:
        return self.path / f"{member}.log"

    def exit_record(self, member: str) -> Path:
        return self.path / f"{member}.exit"

    @property
    def agent_address(self) -> str:
        """As members get it; no two attempts have the same, so it also marks their processes."""
        return f"unix:{self.agent_socket}"


@dataclass(frozen=True)
class JobFolder:
    path: Path

    @property
    def job_id(self) -> str:
        return job_id_of(self.path.name)

    @property
    def lock(self) -> Path:
        return self.path / "lock"

    @property
    def work(self) -> Path:
        return self.path / "work.json"

    def run(self, generation: int) -> RunFolder:
        return RunFolder(self.path / str(generation))

    def runs(self) -> list[RunFolder]:
        """By generation, the oldest first."""
        try:
            names = [entry.name for entry in os.scandir(self.path) if entry.name.isdecimal()]
        except FileNotFoundError:
            return []
        return [self.run(generation) for generation in sorted(map(int, names))]


def job_folder(home: Path, job_id: str) -> JobFolder:
    return JobFolder(home / "jobs" / folder_name(job_id))


def job_folders(home: Path) -> Iterator[JobFolder]:
    """Every job's, sorted by name."""
    with contextlib.suppress(FileNotFoundError):
        for name in sorted(entry.name for entry in os.scandir(home / "jobs") if entry.is_dir()):
            yield JobFolder(home / "jobs" / name)


def checkpoint_folder(home: Path, job_id: str) -> Path:
    return home / "checkpoints" / folder_name(job_id)


# -- files ---------------------------------------------------------------------------------------------


def read_json(path: Path) -> dict[str, Any] | None:
    """None when there is no such file, or it is not one of ours."""
    try:
        data = parse_json(path.read_bytes())
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None


def tail_of(path: Path, max_bytes: int) -> str:
    """The end of a text file; empty when it cannot be read."""
    try:
        with path.open("rb") as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - max_bytes))
            return stream.read(max_bytes).decode("utf-8", "replace").replace("\0", "")
    except OSError:
        return ""


def replace_json(path: Path, data: dict[str, Any], durable: bool = False) -> None:
    """The file has the old content or the new one at any moment."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    _write(temporary, data, durable)
    temporary.replace(path)


def create_json(path: Path, data: dict[str, Any]) -> bool:
    """As a whole, and only if there is none yet: of two writers one gets True, and its content stays."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    _write(temporary, data, durable=True)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        temporary.unlink(missing_ok=True)
    return True


def _write(path: Path, data: dict[str, Any], durable: bool) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "wb") as stream:
        stream.write(json.dumps(data, separators=(",", ":")).encode())
        if durable:
            stream.flush()
            os.fsync(stream.fileno())


# -- records -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EndRecord:
    """ended.json: how an attempt ended, written once, by its supervisor or by whoever finds it dead.

    `code` counts for EXITED only. `own_fault` is False when the machine, not the job, failed to start it.
    """

    kind: str
    code: int = 0
    why: str = ""
    started: bool = False
    """Whether a process ran at some moment."""
    work_at_start: float = 0.0
    work_saved: float = 0.0
    seq: int = 0
    """The last command that it had carried out."""
    own_fault: bool = True


def end_to_json(end: EndRecord) -> dict[str, Any]:
    return asdict(end)


def end_from_json(data: Mapping[str, Any]) -> EndRecord:
    """What is not of its type is left at its default: a job may have written into its folder."""
    kept = {name: data[name] for name, fits in _END_FIELDS.items() if fits(data.get(name))}
    if "work_saved" in data:
        kept.setdefault("work_saved", math.nan)  # nobody has said
    return EndRecord(**{"kind": STOPPED, **kept})


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def is_work(value: Any) -> bool:
    """Steps, or steps a second."""
    return is_finite(value, MAX_NUMBER) and value >= 0


_END_FIELDS: dict[str, Callable[[Any], bool]] = {
    "kind": lambda value: value in (EXITED, STOPPED, START_FAILED),
    "code": lambda value: is_whole(value, -256, 255),
    "why": is_text,
    "started": _is_flag,
    "work_at_start": is_work,
    "work_saved": is_work,
    "seq": lambda value: is_whole(value, 0),
    "own_fault": _is_flag,
}


def saved_work(path: Path) -> float:
    """What the last checkpoint of the job holds, by its work.json; 0 when nobody has said."""
    saved = (read_json(path) or {}).get("saved", 0.0)
    return float(saved) if is_work(saved) else 0.0


# -- the lock -----------------------------------------------------------------------------------------


class JobLock:
    """The lock of a job: who holds it may let the job run. It falls with the process that holds it.

    The file remembers the highest generation that ever began, so that an older one, however late its supervisor comes,
    finds itself fenced. The kernel frees the lock when its holder dies: a lock that can be taken proves that no
    supervisor of the job lives.
    """

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
                time.sleep(LOCK_RETRY_S)

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


# -- sockets -------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _reachable(path: Path) -> Iterator[str]:
    """A spelling that the kernel takes: a long path is reached through its open folder."""
    if len(os.fsencode(path)) <= _UNIX_PATH_MAX:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def listen(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    with _reachable(path) as name:
        listener.bind(name)
    listener.listen(64)
    return listener


def dial(path: Path) -> socket.socket:
    """`OSError` when nobody listens there."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(1.0)
        with _reachable(path) as name:
            connection.connect(name)
    except OSError:
        connection.close()
        raise
    connection.setblocking(False)
    return connection
