"""A training run on disk: the checkpoint from which it resumes, and the weights that the policy reads."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import torch

from trainmaster.learn.options import TrainOptions
from trainmaster.learn.trainer import Trainer
from trainmaster.model.errors import InputError
from trainmaster.policies.dl2.weights import to_bytes

CHECKPOINT, WEIGHTS = "checkpoint.pt", "weights.npz"


def save(trainer: Trainer, folder: Path, command: str) -> None:
    """Checkpoint and best weights, each whole or not at all."""
    torch.save(trainer.state(), folder / f".{CHECKPOINT}")
    os.replace(folder / f".{CHECKPOINT}", folder / CHECKPOINT)
    made_by = {
        "command": command, "options": trainer.options.to_json(), "iteration": trainer.iteration,
        "validation_s": round(trainer.best_s, 3),
    }  # fmt: skip
    o = trainer.options
    data = to_bytes(trainer.best, o.network, o.window if o.network == "window" else 0, made_by)
    (folder / f".{WEIGHTS}").write_bytes(data)
    os.replace(folder / f".{WEIGHTS}", folder / WEIGHTS)


def resume(trainer: Trainer, folder: Path) -> None:
    """Continue where the folder's checkpoint stands; its options must be those of the run, but for its length."""
    path = folder / CHECKPOINT
    if not path.exists():
        raise InputError("there is no checkpoint to resume", f"a folder with {CHECKPOINT}", file=folder)
    try:
        state = torch.load(path, weights_only=True)
    except (RuntimeError, pickle.UnpicklingError, EOFError, KeyError):
        raise InputError("this is no checkpoint of dl2", f"a file {CHECKPOINT} of `learn dl2`", file=path) from None
    if not isinstance(state, dict) or "options" not in state:
        raise InputError("this is no checkpoint of dl2", f"a file {CHECKPOINT} of `learn dl2`", file=path)
    kept, wanted = TrainOptions.from_json(state["options"]).to_json(), trainer.options.to_json()
    differing = sorted(key for key in wanted if key != "iterations" and kept[key] != wanted[key])
    if differing:
        key = differing[0]
        raise InputError(
            f"the checkpoint was made with {key}={kept[key]}, this run has {key}={wanted[key]}", "the same options",
            "Give the same options, or train into another folder.", file=path,
        )  # fmt: skip
    trainer.restore(state)
