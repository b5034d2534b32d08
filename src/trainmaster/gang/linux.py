"""What supervisor, launcher and runtime ask of Linux itself: process death, orphans, /proc, the clock of leases."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
MAX_DEPTH = 1000
"""Of a process tree: what is deeper is not followed."""
_PUNCH_HOLE_KEEP_SIZE = 0x02 | 0x01

try:
    _libc = ctypes.CDLL(None, use_errno=True)
    _prctl = _libc.prctl
except (OSError, AttributeError):  # not Linux: members are then ended by the search for marked processes alone
    _libc = _prctl = None


def boot_clock_ms() -> int:
    """Milliseconds that also count while the machine sleeps: a lease must not outlive a closed lid."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
    return time.monotonic_ns() // 1_000_000


def die_with_parent(parent_pid: int) -> None:
    """For a child between fork and exec: the kernel kills it when its parent dies, even if that just happened."""
    if _prctl is not None:
        _prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), signal.SIGKILL)


def adopt_orphans() -> None:
    """Descendants whose parents end become children of this process, and can be found and reaped."""
    if _prctl is not None:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def free_head(descriptor: int, size: int) -> bool:
    """Give the first `size` bytes of a file back to the disk; offsets stay. False: the file system cannot."""
    if _libc is None or not hasattr(_libc, "fallocate"):
        return False
    offset = ctypes.c_int64
    return _libc.fallocate(descriptor, _PUNCH_HOLE_KEEP_SIZE, offset(0), offset(size)) == 0


def _stat_fields(pid: int) -> list[bytes] | None:
    """Fields of /proc/PID/stat after the name, which may hold anything: [0] is the state, [1] the parent."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None


def _pids() -> list[int]:
    try:
        return sorted(int(name) for name in os.listdir("/proc") if name.isdecimal())
    except OSError:
        return []


def start_ticks(pid: int) -> int | None:
    """When a living process began, in ticks since boot: with the pid it names one process for good."""
    fields = _stat_fields(pid)
    return None if fields is None or fields[0] in (b"Z", b"X") else int(fields[19])


def children_of(pid: int) -> list[int]:
    """Children that live."""
    found = []
    for child in _pids():
        fields = _stat_fields(child)
        if fields is not None and int(fields[1]) == pid and fields[0] not in (b"Z", b"X"):
            found.append(child)
    return found


def memory_mib(pid: int) -> int:
    """Memory of a process and all its descendants. What they share counts once, where the kernel can tell."""
    found = {pid}
    parents = {child: int(fields[1]) for child in _pids() if (fields := _stat_fields(child)) is not None}
    for child in sorted(parents):
        line = [child]
        while line[-1] in parents and line[-1] not in found and len(line) < MAX_DEPTH:
            line.append(parents[line[-1]])
        if line[-1] in found:
            found.update(line)
    return sum(map(_memory_kib, found)) // 1024


def _memory_kib(pid: int) -> int:
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_bytes().splitlines():
            if line.startswith(b"Pss:"):
                return int(line.split()[1])
    except OSError:
        pass
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_bytes().split()[1])
    except (OSError, IndexError, ValueError):
        return 0  # it has ended
    return pages * os.sysconf("SC_PAGE_SIZE") // 1024


def marked(variable: str, value: str, among: list[int] | None = None) -> list[int]:
    """Living processes that were started with this environment variable."""
    wanted = f"{variable}={value}".encode()
    found = []
    for pid in _pids() if among is None else among:
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:  # another user's, or gone
            continue
        if wanted in environment.split(b"\0") and start_ticks(pid) is not None:
            found.append(pid)
    return found


def kill_marked(variable: str, value: str) -> int:
    """Kill them; says how many there were. A pid that changes hands in between is not touched."""
    pids = marked(variable, value)
    for pid in pids:
        with contextlib.suppress(OSError):
            descriptor = os.pidfd_open(pid)
            try:
                if marked(variable, value, among=[pid]):
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            finally:
                os.close(descriptor)
    return len(pids)
