# ruff: noqa: ARG002 (the signatures are the framework's)
"""A callback for the Lightning `Trainer`: progress, loss, checkpoints and stops go through a session.

    callback = TrainmasterCallback(save_every=200)
    Trainer(callbacks=[callback], ...).fit(model, data, ckpt_path=callback.last_checkpoint())

Lightning writes the checkpoints; they are put in place by a rename, so that one that is there is complete. On
a stop the callback saves and the script ends with the agreed code. The workers are not elastic: a resize is a
stop and a start from the checkpoint.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainmaster.gang.protocol import EXIT_STOPPED
from trainmaster.runtime.errors import missing
from trainmaster.runtime.training_session import Session

try:
    from lightning.pytorch import Callback  # pyright: ignore[reportMissingImports]
except ModuleNotFoundError as error:
    raise missing("runtime.lightning_trainer", (error.name or "lightning").partition(".")[0]) from None


class TrainmasterCallback(Callback):
    def __init__(self, session: Session | None = None, *, save_every: int = 1000, keep: int = 3) -> None:
        self.session = Session() if session is None else session
        self._save_every = save_every
        self._keep = keep
        self._stopping = False

    @property
    def folder(self) -> Path:
        return self.session.place.checkpoint_folder

    def last_checkpoint(self) -> str | None:
        """For `fit(ckpt_path=...)`; None when there is none."""
        found = sorted(self.folder.glob("step-*.lightning"))
        return str(found[-1]) if found else None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.session.open()
        self.session.reporting = trainer.is_global_zero
        self.session.saved = float(trainer.global_step)  # it goes on from there, and saves on a stop: may be preempted
        self.session.report(work_done=trainer.global_step)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.session.begin_step()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if loss is not None:
            self.session.report(loss=float(loss))
        self.session.end_step(trainer.global_step)
        # All end after the same step, or the others would wait for the gradients of the one that was told first.
        self._stopping = trainer.strategy.reduce_boolean_decision(bool(self.session.stop_requested), all=False)
        if self._stopping or trainer.global_step % self._save_every == 0:
            self._save(trainer)
        if self._stopping:
            trainer.should_stop = True

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        if self._stopping:
            self.session.leave(EXIT_STOPPED)
        self._save(trainer)
        self.session.finish()
        self.session.close()

    def _save(self, trainer: Any) -> None:
        self.session.check_lease()
        target = self.folder / f"step-{trainer.global_step:012d}.lightning"
        partial = self.folder / f".partial-{target.name}"
        trainer.save_checkpoint(partial)  # collective: every worker calls it, the first writes
        if trainer.is_global_zero:
            self.session.check_lease()
            partial.replace(target)
            for old in sorted(self.folder.glob("step-*.lightning"))[: -self._keep]:
                old.unlink()
            self.session.saved = float(trainer.global_step)
            self.session.report()
