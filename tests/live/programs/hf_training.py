"""A Hugging Face `Trainer` on a model of two numbers, as users write it. Prints every step that is made; slow until the
file `fast` appears in its folder."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import torch
import transformers

from trainmaster.runtime.hf_trainer import TrainmasterCallback


class Line(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, 1)

    def forward(self, x: Any, labels: Any) -> dict[str, Any]:
        return {"loss": ((self.linear(x)[:, 0] - labels) ** 2).mean()}


class Told(transformers.TrainerCallback):
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.is_world_process_zero:
            print("step", state.global_step, "of", args.world_size, flush=True)
        if not (self.folder / "fast").exists():
            time.sleep(0.25)


def main() -> None:
    torch.manual_seed(0)
    data = [{"x": torch.randn(2), "labels": torch.randn(())} for _ in range(256)]
    callback = TrainmasterCallback()
    options = transformers.TrainingArguments(
        output_dir=callback.folder, max_steps=int(sys.argv[2]), save_steps=10, logging_steps=1, report_to=[],
        per_device_train_batch_size=4, use_cpu=True, ddp_backend="gloo", disable_tqdm=True,
    )  # fmt: skip
    callbacks = [callback, Told(Path(sys.argv[1]))]
    trainer = transformers.Trainer(Line(), options, train_dataset=data, callbacks=callbacks)  # type: ignore[arg-type]
    trainer.train(resume_from_checkpoint=callback.last_checkpoint())


main()
