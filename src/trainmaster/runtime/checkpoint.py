"""Checkpoints that are there completely or not at all.

A checkpoint is one file: magic, length and text of a JSON header (step, skeleton, arrays), the arrays' bytes,
and a SHA-256 over all of it. It is written under another name, synced, renamed, and the folder synced;
then the oldest beyond `keep` are deleted. Reading begins with the newest and goes back past torn or corrupt
ones. Where the files live is a `Location`: a folder, or anything else that has these four methods.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from trainmaster.runtime import tree
from trainmaster.runtime.errors import CheckpointError

MAGIC = b"TMCKPT1\n"
_NAME = re.compile(r"step-(\d{12})\.ckpt")
_TEMPORARY = ".partial-"

Buffer = bytes | memoryview


class Location(Protocol):
    """Where checkpoints live. `write` is all or nothing and durable when it returns."""

    def names(self) -> list[str]: ...
    def write(self, name: str, parts: Iterable[Buffer], permitted: Callable[[], None]) -> None: ...
    def read(self, name: str) -> memoryview: ...
    def delete(self, name: str) -> None: ...


class Folder:
    """A local or shared folder."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    def __str__(self) -> str:
        return str(self.path)

    def names(self) -> list[str]:
        if not self.path.is_dir():
            return []
        return sorted(entry.name for entry in self.path.iterdir() if not entry.name.startswith("."))

    def write(self, name: str, parts: Iterable[Buffer], permitted: Callable[[], None]) -> None:
        """`permitted` raises when this process may no longer write; it is asked right before the rename."""
        self.path.mkdir(parents=True, exist_ok=True)
        temporary = self.path / f"{_TEMPORARY}{os.getpid()}-{name}"
        try:
            with temporary.open("wb", buffering=0) as file:
                for part in parts:
                    _write_all(file, part)
                os.fsync(file.fileno())
            permitted()
            temporary.replace(self.path / name)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        self._sync_folder()

    def read(self, name: str) -> memoryview:
        return memoryview((self.path / name).read_bytes())

    def delete(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)

    def sweep(self) -> None:
        """Delete what writers that died have left; only for whoever is the sole writer."""
        if self.path.is_dir():
            for entry in self.path.glob(f"{_TEMPORARY}*"):
                entry.unlink(missing_ok=True)

    def _sync_folder(self) -> None:
        folder = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@dataclass(frozen=True)
class Loaded:
    step: int
    state: Any
    skipped: tuple[str, ...]
    """Newer checkpoints that were torn or corrupt, with what was wrong."""


class Checkpoints:
    """The checkpoints of one job."""

    def __init__(self, location: Location, keep: int = 3) -> None:
        if keep < 1:
            raise CheckpointError(f"keep={keep}: at least one checkpoint must be kept")
        self.location = location
        self.keep = keep

    def steps(self) -> list[int]:
        """Steps for which there is a file, whole or not, in order."""
        return sorted(int(match[1]) for name in self.location.names() if (match := _NAME.fullmatch(name)))

    def save(self, step: int, state: Any, permitted: Callable[[], None] = lambda: None) -> None:
        """`CheckpointError` when it cannot be done; earlier checkpoints are then as they were."""
        if step < 0:
            raise CheckpointError(f"step {step}: steps count from 0")
        parts, size = _parts(step, state)
        try:
            self.location.write(_file_name(step), parts, permitted)
        except OSError as error:
            raise CheckpointError(_why_not(error, step, size, self)) from error
        for old in self.steps()[: -self.keep]:
            with contextlib.suppress(OSError):  # it is only in the way
                self.location.delete(_file_name(old))

    def load(self) -> Loaded | None:
        """The newest whole checkpoint; None when there is none at all.

        `CheckpointError` when there are files but all are damaged: starting again from nothing must be a choice.
        """
        skipped: list[str] = []
        for step in reversed(self.steps()):
            name = _file_name(step)
            try:
                stored, state = _parse(self.location.read(name))
            except (OSError, CheckpointError) as error:
                skipped.append(f"{name}: {error}")
                continue
            if stored != step:
                skipped.append(f"{name}: holds step {stored}")
                continue
            return Loaded(step, state, tuple(skipped))
        if skipped:
            raise CheckpointError(
                f"no checkpoint in {self.location} can be used ({'; '.join(skipped)}). Restore one from a copy, or "
                "delete them to start from nothing"
            )
        return None


def _file_name(step: int) -> str:
    return f"step-{step:012d}.ckpt"


def _parts(step: int, state: Any) -> tuple[Iterable[Buffer], int]:
    """(the file in pieces, its size); the arrays are read while writing, so that memory is not doubled."""
    skeleton, arrays = tree.flatten(state)
    leaves = [tree.describe(array) for array in arrays]
    header = json.dumps({"step": step, "leaves": [asdict(leaf) for leaf in leaves], "skeleton": skeleton}).encode()

    def pieces() -> Iterable[Buffer]:
        digest = hashlib.sha256()
        for piece in (MAGIC, len(header).to_bytes(8, "little"), header):
            digest.update(piece)
            yield piece
        for array in arrays:
            data = tree.raw_bytes(array)
            digest.update(data)
            yield data
        yield digest.digest()

    return pieces(), len(MAGIC) + 8 + len(header) + sum(leaf.nbytes for leaf in leaves) + hashlib.sha256().digest_size


def _parse(data: memoryview) -> tuple[int, Any]:
    begin = len(MAGIC) + 8
    trailer = hashlib.sha256().digest_size
    if bytes(data[: len(MAGIC)]) != MAGIC:
        raise CheckpointError("not a checkpoint of this version")
    if len(data) < begin + trailer:
        raise CheckpointError("torn: shorter than its frame")
    if hashlib.sha256(data[:-trailer]).digest() != bytes(data[-trailer:]):
        raise CheckpointError("torn or corrupt: the checksum does not match")
    length = int.from_bytes(data[len(MAGIC) : begin], "little")
    offset, arrays = begin + length, []
    try:
        header = json.loads(bytes(data[begin : begin + length]))
        for entry in header["leaves"]:
            leaf = tree.leaf_of(entry)
            array = tree.empty(leaf)
            tree.fill(array, data[offset : offset + leaf.nbytes])
            arrays.append(array)
            offset += leaf.nbytes
        return header["step"], tree.unflatten(header["skeleton"], arrays)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"written by something else: {error!r}") from error


def _write_all(file: Any, part: Buffer) -> None:
    view = memoryview(part)
    while len(view):
        view = view[file.write(view) :]


def _why_not(error: OSError, step: int, size: int, checkpoints: Checkpoints) -> str:
    with contextlib.suppress(OSError):
        steps = checkpoints.steps()
        last = f"the last one, of step {steps[-1]}, is untouched" if steps else "there is no earlier one"
        reason = error.strerror or str(error)
        remedy = "Make room, or choose another location" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        return (
            f"the checkpoint of step {step} ({size / 1e6:.1f} MB) could not be written to {checkpoints.location}: "
            f"{reason}; {last}. {remedy}".rstrip(". ")
            + "."
        )
    return f"the checkpoint of step {step} could not be written: {error}"
