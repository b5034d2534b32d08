"""The folder of a training run: files that are there whole or not at all, and the checkpoint from which it resumes."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from trainmaster.model.errors import InputError

CHECKPOINT, WEIGHTS = "checkpoint.pt", "weights.npz"


def save_run(folder: Path, state: Mapping[str, Any], weights: bytes) -> None:
    torch.save(dict(state), folder / f".{CHECKPOINT}")
    os.replace(folder / f".{CHECKPOINT}", folder / CHECKPOINT)
    (folder / f".{WEIGHTS}").write_bytes(weights)
    os.replace(folder / f".{WEIGHTS}", folder / WEIGHTS)


def read_checkpoint(folder: Path, policy: str, network: str) -> dict[str, Any]:
    """`network`: the entry by which a checkpoint of this policy is known."""
    path = folder / CHECKPOINT
    wrong = InputError(f"this is no checkpoint of {policy}", f"a file {CHECKPOINT} of `learn {policy}`", file=path)
    if not path.exists():
        raise InputError("there is no checkpoint to resume", f"a folder with {CHECKPOINT}", file=folder)
    try:
        state = torch.load(path, weights_only=True)
    except (RuntimeError, pickle.UnpicklingError, EOFError, KeyError):
        raise wrong from None
    if not isinstance(state, dict) or not {"options", network} <= state.keys():
        raise wrong
    return state


def check_same_options(kept: Mapping[str, Any], wanted: Mapping[str, Any], folder: Path) -> None:
    """A run that resumes has the options that it had, but for its length."""
    for key in sorted(wanted):
        if key != "iterations" and kept[key] != wanted[key]:
            raise InputError(
                f"the checkpoint was made with {key}={kept[key]}, this run has {key}={wanted[key]}", "the same options",
                "Give the same options, or train into another folder.", file=folder / CHECKPOINT,
            )  # fmt: skip
