"""A training run of DL2 on disk: the checkpoint from which it resumes, and the weights that the policy reads."""

from __future__ import annotations

from pathlib import Path

from trainmaster.learn.dl2.options import TrainOptions
from trainmaster.learn.dl2.trainer import Trainer
from trainmaster.learn.run_folder import (
    check_same_options,
    check_same_sources,
    known_checkpoint,
    read_checkpoint,
    save_run,
)
from trainmaster.policies.dl2.weights import to_bytes


def save(trainer: Trainer, folder: Path, command: str) -> None:
    """Checkpoint and best weights, each whole or not at all."""
    o = trainer.options
    made_by = {
        "command": command, "options": o.to_json(), "iteration": trainer.iteration,
        "validation_s": round(trainer.best_s, 3),
    }  # fmt: skip
    window = o.window if o.network == "window" else 0
    save_run(folder, trainer.state(), to_bytes(trainer.best, o.network, window, made_by))


def resume(trainer: Trainer, folder: Path) -> None:
    """Continue where the folder's checkpoint stands; its options and clusters must be those of the run, but for its
    length."""
    state = read_checkpoint(folder, "dl2", "actor")
    with known_checkpoint(folder, "dl2"):
        check_same_options(TrainOptions.from_json(state["options"]).to_json(), trainer.options.to_json(), folder)
        if trainer.recorded is None:  # a service's history has gone on meanwhile
            check_same_sources(state.get("clusters"), trainer.described_clusters(), folder, "--cluster")
        trainer.restore(state)
