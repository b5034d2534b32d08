# ruff: noqa: ARG002 (the signatures are the framework's)
"""A callback for the Hugging Face `Trainer`: progress, loss and stops go through a session.

    callback = TrainmasterCallback()
    args = TrainingArguments(output_dir=callback.folder, save_steps=200, ...)
    trainer = Trainer(model, args, train_dataset=data, callbacks=[callback])
    trainer.train(resume_from_checkpoint=callback.last_checkpoint())

The `Trainer` keeps its own checkpoints; the callback puts them in the job's folder, finds the newest that is
complete, and on a stop has it save before the script ends with the agreed code. The workers are not elastic:
a resize is a stop and a start from the checkpoint.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainmaster.gang.protocol import EXIT_STOPPED
from trainmaster.runtime.errors import missing
from trainmaster.runtime.training_session import Session

try:
    import torch
    import torch.distributed as dist
    from transformers import TrainerCallback  # pyright: ignore[reportMissingImports]
except ModuleNotFoundError as error:
    raise missing("runtime.hf_trainer", error.name or "transformers") from None

STATE_FILE = "trainer_state.json"
"""The `Trainer` writes it last, so a checkpoint that has it is complete."""


class TrainmasterCallback(TrainerCallback):
    def __init__(self, session: Session | None = None) -> None:
        self.session = Session() if session is None else session
        self._stopping = False

    @property
    def folder(self) -> str:
        return str(self.session.place.checkpoint_folder)

    def last_checkpoint(self) -> str | None:
        """For `train(resume_from_checkpoint=...)`; None when there is none."""
        found = [path for path in Path(self.folder).glob("checkpoint-*") if (path / STATE_FILE).exists()]
        return str(max(found, key=lambda path: int(path.name.rpartition("-")[2]))) if found else None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.session.open()
        self.session.reporting = state.is_world_process_zero
        self.session.saved = float(state.global_step)  # it goes on from there, and saves on a stop: it may be preempted
        self.session.report(work_done=state.global_step)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.session.begin_step()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.session.end_step(state.global_step)
        self._stopping = self._agreed(bool(self.session.stop_requested), args.device)
        if self._stopping:
            control.should_save = True
            control.should_training_stop = True

    @staticmethod
    def _agreed(stop: bool, device: Any) -> bool:
        """Whether any worker was told to stop. All end after the same step: the others would wait for its gradients."""
        if not (dist.is_available() and dist.is_initialized()):
            return stop
        flag = torch.tensor(float(stop), device=device)
        dist.all_reduce(flag, dist.ReduceOp.MAX)
        return bool(flag.item())

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
        if logs is not None and "loss" in logs:
            self.session.report(loss=float(logs["loss"]))

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.session.saved = float(state.global_step)
        self.session.report()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._stopping:
            self.session.leave(EXIT_STOPPED)
        self.session.finish()
        self.session.close()
