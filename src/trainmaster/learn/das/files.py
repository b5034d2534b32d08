"""A training run of DAS on disk: the checkpoint from which it resumes, and the weights that the policy reads."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import torch

from trainmaster.learn.das.options import DasOptions
from trainmaster.learn.das.trainer import Trainer
from trainmaster.model.errors import InputError
from trainmaster.policies.das.network import Agents
from trainmaster.policies.das.weights import to_bytes

CHECKPOINT, WEIGHTS = "checkpoint.pt", "weights.npz"
METRICS = (
    "iteration", "completion_min", "validation_min", "small_min", "medium_min", "large_min", "fee", "entropy",
    "value_error", "gain", "choices", "loss",
)  # fmt: skip


def save(trainer: Trainer, folder: Path, command: str) -> None:
    """Checkpoint and best weights, each whole or not at all."""
    torch.save(trainer.state(), folder / f".{CHECKPOINT}")
    os.replace(folder / f".{CHECKPOINT}", folder / CHECKPOINT)
    o = trainer.options
    made_by = {
        "command": command, "options": o.to_json(), "iteration": trainer.iteration,
        "sources": [pool.name for pool in trainer.pools], "validation_min": round(trainer.best_min, 3),
    }  # fmt: skip
    data = to_bytes(Agents(trainer.best, o.heads, o.variant), trainer.kernel, made_by)
    (folder / f".{WEIGHTS}").write_bytes(data)
    os.replace(folder / f".{WEIGHTS}", folder / WEIGHTS)


def resume(trainer: Trainer, folder: Path) -> None:
    """Continue where the folder's checkpoint stands; its options must be those of the run, but for its length."""
    path = folder / CHECKPOINT
    wrong = InputError("this is no checkpoint of das", f"a file {CHECKPOINT} of `learn das`", file=path)
    if not path.exists():
        raise InputError("there is no checkpoint to resume", f"a folder with {CHECKPOINT}", file=folder)
    try:
        state = torch.load(path, weights_only=True)
    except (RuntimeError, pickle.UnpicklingError, EOFError, KeyError):
        raise wrong from None
    if not isinstance(state, dict) or "agents" not in state:
        raise wrong
    kept, wanted = DasOptions.from_json(state["options"]).to_json(), trainer.options.to_json()
    differing = sorted(key for key in wanted if key != "iterations" and kept[key] != wanted[key])
    if differing:
        key = differing[0]
        raise InputError(
            f"the checkpoint was made with {key}={kept[key]}, this run has {key}={wanted[key]}", "the same options",
            "Give the same options, or train into another folder.", file=path,
        )  # fmt: skip
    trainer.restore(state)
