"""The callbacks for other trainers: a stop saves and ends with the agreed code, the next start goes on from there.

Skipped where the frameworks are not installed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trainmaster.gang.protocol import EXIT_STOPPED
from trainmaster.runtime import Session
from trainmaster.runtime.process_env import ProcessEnv


def _session(folder: Path) -> Session:
    return Session(ProcessEnv(checkpoint_dir=folder))


def _stop_at(session: Session, step: int) -> None:
    """As if SIGTERM came during that step."""
    after = session.end_step

    def end_step(work_done: float) -> None:
        after(work_done)
        if work_done == step:
            session._terminated = "SIGTERM"

    session.end_step = end_step  # type: ignore[method-assign]


@pytest.mark.slow
def test_hugging_face(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    from trainmaster.runtime.hf_trainer import TrainmasterCallback

    class Line(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(2, 1)

        def forward(self, x: Any, labels: Any) -> dict[str, Any]:
            return {"loss": ((self.linear(x)[:, 0] - labels) ** 2).mean()}

    data = [{"x": torch.randn(2), "labels": torch.randn(())} for _ in range(64)]

    def train(stop_at: int | None) -> Any:
        session = _session(tmp_path)
        if stop_at is not None:
            _stop_at(session, stop_at)
        callback = TrainmasterCallback(session)
        options = transformers.TrainingArguments(
            output_dir=callback.folder, max_steps=12, save_steps=100, logging_steps=2, report_to=[], use_cpu=True
        )
        trainer = transformers.Trainer(Line(), options, train_dataset=data, callbacks=[callback])
        trainer.train(resume_from_checkpoint=callback.last_checkpoint())
        return session

    with pytest.raises(SystemExit) as ending:
        train(5)
    assert ending.value.code == EXIT_STOPPED
    assert (tmp_path / "checkpoint-5").is_dir()
    steps: list[float] = []
    original = Session.end_step

    def record(self: Session, work_done: float) -> None:
        steps.append(work_done)
        original(self, work_done)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Session, "end_step", record)
        session = train(None)
    assert steps == [6, 7, 8, 9, 10, 11, 12] and session.saved == 12


@pytest.mark.slow
def test_lightning(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning.pytorch")
    torch = pytest.importorskip("torch")
    from trainmaster.runtime.lightning_trainer import TrainmasterCallback

    class Line(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(2, 1)

        def training_step(self, batch: Any, number: int) -> Any:
            return (self.linear(batch) ** 2).mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def train(stop_at: int | None) -> Session:
        session = _session(tmp_path)
        if stop_at is not None:
            _stop_at(session, stop_at)
        callback = TrainmasterCallback(session, save_every=100)
        trainer = lightning.Trainer(
            max_steps=12, callbacks=[callback], accelerator="cpu", logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path,
        )  # fmt: skip
        loader = torch.utils.data.DataLoader(torch.randn(64, 2), batch_size=2)
        trainer.fit(Line(), loader, ckpt_path=callback.last_checkpoint())
        return session

    with pytest.raises(SystemExit) as ending:
        train(5)
    assert ending.value.code == EXIT_STOPPED
    assert [path.name for path in tmp_path.glob("step-*")] == ["step-000000000005.lightning"]
    session = train(None)
    assert session.saved == 12 and session.work_done == 12
