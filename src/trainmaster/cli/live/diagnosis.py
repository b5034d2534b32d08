"""What `doctor` looks at on this machine: interpreter, packages, compiled core, disk, limits, accelerators."""

from __future__ import annotations

import os
import platform
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal

from trainmaster.core import build_form

Status = Literal["ok", "note", "error"]
_LOW_BYTES, _FULL_BYTES = 2 << 30, 200 << 20
_NEEDED_FILES = 1024
_SOCKET_PATH_BYTES = 108
"""`sun_path` of Linux, with its closing zero."""
_REQUIRED = (
    "numpy", "highspy", "polars", "pydantic", "click", "typer", "rich", "matplotlib", "pyyaml", "fastapi", "uvicorn",
    "sqlalchemy", "alembic", "prometheus-client", "structlog",
)  # fmt: skip
"""Used when the package is run from its source and has no metadata of its own."""


@dataclass(frozen=True, slots=True)
class Finding:
    name: str
    status: Status
    detail: str
    remedy: str = ""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def examine(home: Path) -> Iterator[Finding]:
    """Each look in turn; one that breaks is itself a finding, so that the others are still made."""
    looks: tuple[tuple[str, Callable[[], Finding]], ...] = (
        ("python", python),
        ("system", system),
        ("packages", packages),
        ("core", core_form),
        ("home", lambda: home_folder_state(home)),
        ("isolation", lambda: isolation(home)),
        ("disk", lambda: disk(home)),
        ("limits", limits),
        ("accelerators", accelerators),
        ("torch", torch),
    )
    for name, look in looks:
        yield guarded(name, look)


def guarded(name: str, look: Callable[[], Finding]) -> Finding:
    try:
        return look()
    except Exception as fault:
        return Finding(name, "error", f"could not be looked at: {fault}", "Report this.")


def python() -> Finding:
    here = f"{platform.python_implementation()} {platform.python_version()} ({sys.executable})"
    if version_key(platform.python_version()) < (3, 11):
        return Finding("python", "error", here, "Use Python 3.11 or newer.")
    return Finding("python", "ok", here)


def system() -> Finding:
    here = f"{platform.system()} {platform.release()} {platform.machine()}, {len(os.sched_getaffinity(0))} CPUs"
    if platform.system() != "Linux":
        return Finding("system", "error", here, "`trainmaster up` runs jobs on Linux only; simulation works anywhere.")
    return Finding("system", "ok", here)


def packages() -> Finding:
    missing, old = [], []
    for line in requirements():
        name = line.split(";")[0]
        least = ""
        for sign in ("==", ">="):
            if sign in name:
                name, _, least = name.partition(sign)
        try:
            have = metadata.version(name.strip())
        except metadata.PackageNotFoundError:
            missing.append(name.strip())
            continue
        if least and version_key(have) < version_key(least):
            old.append(f"{name.strip()} {have} (needs {least.strip()})")
    if missing or old:
        lists = (("missing", missing), ("too old", old))
        told = "; ".join(f"{what}: {', '.join(names)}" for what, names in lists if names)
        return Finding("packages", "error", told, "pip install --upgrade trainmaster")
    return Finding("packages", "ok", f"all {len(requirements())} required packages are there")


def requirements() -> list[str]:
    """Requirements of the installed package that belong to no extra."""
    try:
        stated = metadata.requires("trainmaster") or []
    except metadata.PackageNotFoundError:
        return list(_REQUIRED)
    return [line for line in stated if "extra" not in line.partition(";")[2]]


def version_key(text: str) -> tuple[int, ...]:
    """Leading numbers of a version: enough to compare releases."""
    numbers: list[int] = []
    for part in text.strip().split("."):
        digits = "".join(takewhile(str.isdigit, part))
        if not digits:
            break
        numbers.append(int(digits))
        if digits != part:
            break
    return tuple(numbers)


def core_form() -> Finding:
    """Whether the core is compiled."""
    if build_form.runs_uncompiled():
        return Finding(
            "core", "note", "the core runs uncompiled, and slowly", "Install again without TRAINMASTER_PURE."
        )
    return Finding("core", "ok", build_form.form())


def home_folder_state(home: Path) -> Finding:
    if not home.exists():
        parent = next(folder for folder in home.parents if folder.exists())
        if not os.access(parent, os.W_OK | os.X_OK):
            told = f"{home} does not exist and {parent} is not writable"
            return Finding("home", "error", told, "Choose another with --home or TRAINMASTER_HOME.")
        return Finding("home", "ok", f"{home} does not exist yet; `trainmaster up` makes it")
    if not home.is_dir():
        return Finding("home", "error", f"{home} is not a folder", "Choose another with --home or TRAINMASTER_HOME.")
    if not os.access(home, os.W_OK | os.X_OK):
        return Finding("home", "error", f"{home} is not writable", f"chown it to you, or: chmod u+rwx {home}")
    for path in (home / "token", *sorted(home.glob("*token*"))):
        if path.exists() and stat.S_IMODE(path.stat().st_mode) & 0o077:
            told = f"{path} can be read by others: they can act in your name"
            return Finding("home", "error", told, f"chmod 600 {path}")
    if stat.S_IMODE(home.stat().st_mode) & 0o022:
        return Finding("home", "error", f"others can write to {home}", f"chmod go-w {home}")
    # Sockets of the jobs live in <home>/jobs/<id>/<generation>/: the kernel allows 107 bytes for the whole path.
    if len(os.fsencode(home.absolute())) > _SOCKET_PATH_BYTES - 48:
        return Finding("home", "note", f"{home} is a long path; sockets in it may not open", "Choose a shorter one.")
    return Finding("home", "ok", str(home))


def isolation(home: Path) -> Finding:
    """Whom the jobs of a service on this home could harm."""
    from trainmaster.service.local.tokens import read_tokens
    from trainmaster.service.local.trust import MAP, users_among, warnings

    tokens = home / "tokens"
    uid = home.stat().st_uid if home.exists() else os.geteuid()
    users = users_among(who for _, who in read_tokens(tokens)) if tokens.exists() else 0
    mapped = (home / MAP).exists()
    told = warnings(uid, users, mapped)
    if told:
        advice = f"As root, give users accounts in the file `{MAP}`; or one service a user: docs/security.md"
        return Finding("isolation", "note", "; ".join(told), advice)
    if mapped:
        return Finding("isolation", "ok", f"jobs run as the accounts of {home / MAP}")
    return Finding("isolation", "ok", "jobs run as you, and only you submit them")


def disk(home: Path) -> Finding:
    place = home
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    told = f"{free / 2**30:.1f} GiB free for logs and checkpoints at {place}"
    remedy = "Free some, or choose another --home: when it is full no job is accepted."
    if free < _FULL_BYTES:
        return Finding("disk", "error", told, remedy)
    return Finding("disk", "note" if free < _LOW_BYTES else "ok", told, remedy if free < _LOW_BYTES else "")


def limits() -> Finding:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < _NEEDED_FILES:
        return Finding("limits", "note", f"{soft} open files allowed", f"ulimit -n {min(hard, 4096)}")
    return Finding("limits", "ok", f"{soft} open files allowed")


def accelerators() -> Finding:
    """GPUs as NVML tells; none is fine."""
    from trainmaster.backends.local.nvml import NvmlFault, ask_gpus

    try:
        gpus = ask_gpus()
    except NvmlFault as fault:
        advice = "Check `nvidia-smi`; after a driver update, restart the machine."
        return Finding("accelerators", "error", str(fault), advice)
    if gpus is None:
        if Path("/proc/driver/nvidia/version").exists():
            told = "an NVIDIA driver is loaded, but libnvidia-ml.so.1 is not found"
            return Finding("accelerators", "error", told, "Install the driver's libraries; in a container, mount them.")
        return Finding("accelerators", "ok", "no NVIDIA GPU: `up` offers CPU slots, or emulated nodes (--nodes)")
    return Finding("accelerators", "ok", f"{len(gpus)} GPUs: {', '.join(sorted({gpu.name for gpu in gpus}))}")


def torch() -> Finding:
    if find_spec("torch") is None:
        told = "not installed; plain commands run without it"
        return Finding("torch", "note", told, "For elastic training: pip install 'trainmaster[train]'")
    return Finding("torch", "ok", f"torch {metadata.version('torch')}")
