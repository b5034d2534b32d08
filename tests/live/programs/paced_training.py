"""Elastic training that counts how often each sample is used: slow until the file `fast` appears in its folder."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import torch

from trainmaster import runtime

SAMPLES, BATCH, EPOCHS = 96, 8, 40


class Count(torch.nn.Module):
    """One number per sample; plain SGD lowers it by 1/BATCH whenever the sample takes part in an update."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = torch.nn.Parameter(torch.zeros(SAMPLES, dtype=torch.float64))

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        return self.numbers[indices].mean()


def main() -> None:
    folder = Path(sys.argv[1])
    model = Count()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with runtime.elastic(model, optimizer, samples=SAMPLES, global_batch=BATCH, epochs=EPOCHS) as training:
        for batch in training:
            training.step(model(batch.indices))
            if not (folder / "fast").exists():
                time.sleep(0.25)
        if training.is_senior:
            np.save(folder / "counts.npy", -model.numbers.detach().numpy() * BATCH)


if __name__ == "__main__":
    main()
