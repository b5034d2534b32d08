"""Why a program failed, by what it wrote last: the few lines that matter, and what to do about common causes."""

from __future__ import annotations

import re

MAX_LINES, MAX_CHARACTERS = 6, 600
_TRACEBACK = "Traceback (most recent call last):"
_FRAME = re.compile(r'\s+File ".*", line \d+')
_HINTS = (
    (
        r"No module named '([\w.]+)'",
        "the job's Python has no module '{0}': install it there, or submit from the environment that has it",
    ),
    (
        r"CUDA out of memory|OutOfMemoryError|MemoryError|bad_alloc|[Cc]annot allocate memory",
        "out of memory: use a smaller batch or model, or ask for more with --memory",
    ),
    (
        r"[Aa]ddress already in use|EADDRINUSE",
        "a port is in use: listen on the port in MASTER_PORT, which is free and this job's own",
    ),
    (r"No space left on device", "the disk is full: remove old checkpoints, or choose another folder"),
    (r"[Pp]ermission denied", "the service's user may not do this: check the rights of the file"),
    (
        r"CUDA driver version is insufficient|no CUDA-capable device|Torch not compiled with CUDA",
        "no usable GPU: check the driver with `trainmaster doctor`, or run on the CPU",
    ),
)


def excerpt(log: str) -> str:
    """The last traceback: where it was raised, and the error; without one the last lines that say something."""
    lines = [line.rstrip() for line in log.splitlines() if line.strip()]
    begins = [k for k, line in enumerate(lines) if line.strip().endswith(_TRACEBACK)]
    if begins:
        block = lines[begins[-1] + 1 :]
        frames = [k for k, line in enumerate(block) if _FRAME.match(line)]
        chosen = block[frames[-1] :] if frames else block
    else:
        chosen = lines[-3:]
    return "\n".join(line[:200] for line in chosen[:MAX_LINES])[:MAX_CHARACTERS]


def error_line(output: str) -> str:
    """The line of an excerpt that names the error: the first that is not indented, below the frame."""
    lines = output.splitlines()
    return next((line for line in lines if not line[:1].isspace()), lines[-1].strip() if lines else "")


def hint(output: str, how: str) -> str:
    """What to do about a common cause; empty for others. `how`: as the attempt ended, such as `signal SIGKILL`."""
    if "(--memory)" in how:
        return "raise --memory, or use a smaller batch or model"
    for pattern, text in _HINTS:
        found = re.search(pattern, output)
        if found is not None:
            return text.format(*found.groups())
    if how.startswith("signal SIGKILL"):
        return "killed from outside: perhaps the machine ran out of memory (see `dmesg`); ask for less or use --memory"
    if how.startswith("signal SIGSEGV"):
        return "a crash in native code: run it with PYTHONFAULTHANDLER=1 to see where"
    return ""
