"""A training run of DAS on disk: the checkpoint from which it resumes, and the weights that the policy reads."""

from __future__ import annotations

from pathlib import Path

from trainmaster.learn.das.options import DasOptions
from trainmaster.learn.das.trainer import Trainer
from trainmaster.learn.run_folder import (
    check_same_options,
    check_same_sources,
    known_checkpoint,
    read_checkpoint,
    save_run,
)
from trainmaster.policies.das.network import Agents
from trainmaster.policies.das.weights import to_bytes

METRICS = (
    "iteration", "completion_min", "validation_min", "small_min", "medium_min", "large_min", "fee", "entropy",
    "value_error", "gain", "choices", "loss",
)  # fmt: skip


def save(trainer: Trainer, folder: Path, command: str) -> None:
    """Checkpoint and best weights, each whole or not at all."""
    o = trainer.options
    made_by = {
        "command": command, "options": o.to_json(), "iteration": trainer.iteration,
        "sources": [pool.name for pool in trainer.pools], "validation_min": round(trainer.best_min, 3),
    }  # fmt: skip
    save_run(folder, trainer.state(), to_bytes(Agents(trainer.best, o.heads, o.variant), trainer.kernel, made_by))


def resume(trainer: Trainer, folder: Path) -> None:
    """Continue where the folder's checkpoint stands; its options and traces must be those of the run, but for its
    length."""
    state = read_checkpoint(folder, "das", "agents")
    with known_checkpoint(folder, "das"):
        check_same_options(DasOptions.from_json(state["options"]).to_json(), trainer.options.to_json(), folder)
        check_same_sources(state.get("sources"), trainer.described_sources(), folder, "--trace")
        trainer.restore(state)
