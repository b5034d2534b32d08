"""The folder of a training run: files that are there whole or not at all, and the checkpoint from which it resumes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from trainmaster.model.errors import InputError

CHECKPOINT, WEIGHTS = "checkpoint.pt", "weights.npz"


def check_folder(folder: Path) -> None:
    """Refuse a folder that could not be written to before the run, not after the first hour of it."""
    place = folder if folder.exists() else folder.parent
    if not folder.exists() and not place.is_dir():
        raise InputError(f"folder '{place}' does not exist", "an existing folder", "Create it first.", file=folder)
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        raise InputError("cannot write there", "a folder, or the name of a new one in a writable folder", file=folder)


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """What the file system refuses is told in one message."""
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot write: {error.strerror or error}", "a writable folder", file=folder) from None


def save_run(folder: Path, state: Mapping[str, Any], weights: bytes) -> None:
    with writing(folder):
        with (folder / f".{CHECKPOINT}").open("wb") as out:
            torch.save(dict(state), out)
        os.replace(folder / f".{CHECKPOINT}", folder / CHECKPOINT)
        (folder / f".{WEIGHTS}").write_bytes(weights)
        os.replace(folder / f".{WEIGHTS}", folder / WEIGHTS)


def read_checkpoint(folder: Path, policy: str, network: str) -> dict[str, Any]:
    """`network`: the entry by which a checkpoint of this policy is known."""
    path = folder / CHECKPOINT
    if not path.exists():
        raise InputError("no checkpoint found to resume from", f"a folder with {CHECKPOINT}", file=folder)
    with known_checkpoint(folder, policy):
        state = torch.load(path, weights_only=True)
        if not {"options", network} <= state.keys() or not isinstance(state["options"], dict):
            raise KeyError(network)
    return state


@contextmanager
def known_checkpoint(folder: Path, policy: str) -> Iterator[None]:
    """A file that is damaged, or not what it seems, fails in any way while it is read and taken up."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        path, expected = folder / CHECKPOINT, f"a file {CHECKPOINT} of `learn {policy}`"
        if isinstance(error, OSError):
            raise InputError(f"cannot read it: {error.strerror or error}", expected, file=path) from None
        raise InputError(f"not a checkpoint of {policy}", expected, file=path) from None


def check_same_options(kept: Mapping[str, Any], wanted: Mapping[str, Any], folder: Path) -> None:
    """A run that resumes has the options that it had, but for its length."""
    for key in sorted(wanted):
        if key != "iterations" and kept[key] != wanted[key]:
            raise _other(f"{key}={kept[key]}", f"{key}={wanted[key]}", folder)


def check_same_sources(
    kept: Sequence[Mapping[str, str]] | None, wanted: Sequence[Mapping[str, str]], folder: Path, what: str
) -> None:
    """A run that resumes draws its jobs from where it did; `kept` is None in checkpoints that do not tell."""
    if kept is None:
        return
    if len(kept) != len(wanted):
        raise _other(f"{len(kept)} of {what}", f"{len(wanted)}", folder)
    for number, (old, new) in enumerate(zip(kept, wanted, strict=True), 1):
        for key in sorted(new):
            if old.get(key) != new[key]:
                shown = [text if len(text) < 60 else f"other {key}" for text in (str(old.get(key)), new[key])]
                raise _other(f"{what} {number} of {key}={shown[0]}", f"{key}={shown[1]}", folder)


def _other(kept: str, wanted: str, folder: Path) -> InputError:
    return InputError(
        f"the checkpoint was made with {kept}, this run has {wanted}",
        "the same options",
        "Give the same options, or train into another folder.",
        file=folder / CHECKPOINT,
    )
