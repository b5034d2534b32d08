"""Which form of the core runs (compiled or not), and whether it was compiled from the sources that are here."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
RECORD = PACKAGE / "_compiled.json"


class StaleModule(ImportError):
    """A source was edited after its extension module was built: the edit would silently do nothing."""


def runs_uncompiled() -> bool:
    """Whether the sources run as they are: asked for by TRAINMASTER_PURE, or never compiled."""
    return os.environ.get("TRAINMASTER_PURE", "") not in ("", "0") or not RECORD.exists()


def form() -> str:
    """In words, for `doctor`."""
    if runs_uncompiled():
        return "uncompiled (slow)"
    return "compiled with bounds checks" if json.loads(RECORD.read_text())["bounds_checks"] else "compiled"


def check_fresh() -> None:
    """Raise `StaleModule` if an extension module is older than its source and the source differs from what it was built
    from."""
    if runs_uncompiled():
        return
    for name, built_from in json.loads(RECORD.read_text())["modules"].items():
        source = PACKAGE.joinpath(*name.split(".")[1:]).with_suffix(".py")
        types, module = source.with_suffix(".pxd"), source.with_suffix(".abi3.so")
        if not source.exists():
            raise StaleModule(f"{source} is gone but was compiled; run `make setup`")
        newest_ns = max(source.stat().st_mtime_ns, types.stat().st_mtime_ns if types.exists() else 0)
        if module.exists() and newest_ns <= module.stat().st_mtime_ns:
            continue
        if not module.exists() or not types.exists() or _fingerprint(source, types) != built_from:
            raise StaleModule(f"{source} has changed since it was compiled; run `make setup`")


def _fingerprint(source: Path, types: Path) -> str:
    """As `hatch_build.fingerprint`."""
    return hashlib.sha256(source.read_bytes() + types.read_bytes()).hexdigest()[:16]
