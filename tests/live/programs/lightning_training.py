"""A Lightning `Trainer` on a model of two numbers, as users write it. Prints every step that is made; slow until the
file `fast` appears in its folder."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from lightning import pytorch as lightning

from trainmaster.runtime.lightning_trainer import TrainmasterCallback


class Line(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, 1)

    def training_step(self, batch: Any, number: int) -> Any:
        return (self.linear(batch) ** 2).mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Told(lightning.Callback):
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
        if trainer.is_global_zero:
            print("step", trainer.global_step, "of", trainer.world_size, flush=True)
        if not (self.folder / "fast").exists():
            time.sleep(0.25)


def main() -> None:
    torch.manual_seed(0)
    callback = TrainmasterCallback(save_every=10)
    workers = int(os.environ["LOCAL_WORLD_SIZE"])
    trainer = lightning.Trainer(
        max_steps=int(sys.argv[2]), callbacks=[Told(Path(sys.argv[1])), callback], accelerator="cpu", devices=workers,
        num_nodes=int(os.environ["WORLD_SIZE"]) // workers, strategy="ddp" if workers > 1 else "auto", logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, default_root_dir=sys.argv[1],
    )  # fmt: skip
    loader = torch.utils.data.DataLoader(torch.randn(256, 2), batch_size=4)  # type: ignore[arg-type]
    trainer.fit(Line(), loader, ckpt_path=callback.last_checkpoint())


main()
