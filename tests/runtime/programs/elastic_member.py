"""A small elastic worker, told by its arguments what to train; prints one JSON line per applied step and at the end.

`count`: the model is one number per sample, and plain SGD lowers it by (learning rate / step size) whenever the
sample takes part in an applied update; so the final numbers say how often each sample was used.
`regress`: a small network on generated data, Adam, without anything random after the start.
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np
import torch

from trainmaster import runtime


class Count(torch.nn.Module):
    def __init__(self, samples: int) -> None:
        super().__init__()
        self.numbers = torch.nn.Parameter(torch.zeros(samples, dtype=torch.float64))

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        return self.numbers[indices].mean()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=["count", "regress"])
    parser.add_argument("--samples", type=int, default=96)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--worker-batch", type=int)
    parser.add_argument("--micro-batch", type=int)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--save-every", type=int)
    parser.add_argument("--sleep-s", type=float, default=0.0)
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--out")
    parser.add_argument("--location")
    parser.add_argument("--timeout-s", type=float, default=20.0)
    options = parser.parse_args()

    torch.manual_seed(7)
    x = torch.randn(options.samples, 8)
    y = x[:, :1].sin() + 0.5 * x[:, 2:3]
    if options.kind == "count":
        model: torch.nn.Module = Count(options.samples)
        optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        scheduler = None
    else:
        width = options.hidden
        model = torch.nn.Sequential(
            torch.nn.Linear(8, width), torch.nn.Tanh(), torch.nn.Linear(width, width), torch.nn.Tanh(),
            torch.nn.Linear(width, 1),
        )  # fmt: skip
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 20, 0.9)

    with runtime.elastic(
        model,
        optimizer,
        samples=options.samples,
        global_batch=None if options.worker_batch else options.batch,
        worker_batch=options.worker_batch,
        micro_batch=options.micro_batch,
        epochs=options.epochs,
        scheduler=scheduler,
        save_every_steps=options.save_every,
        save_every_s=None,
        collective_timeout_s=options.timeout_s,
        location=options.location,
        bucket_bytes=4096,
    ) as training:
        print(json.dumps({"joined": time.monotonic(), "step": training.step_count}), flush=True)
        for batch in training:
            if options.kind == "count":
                loss = model(batch.indices)
            else:
                indices = batch.indices
                loss = ((model(x[indices]) - y[indices]) ** 2).mean()
            training.step(loss)
            print(json.dumps({"t": time.monotonic(), "step": training.step_count, "loss": training.loss}), flush=True)
            time.sleep(options.sleep_s)
        if training.is_senior and options.out:
            np.savez(options.out, *[parameter.detach().numpy() for parameter in model.parameters()])
        print(json.dumps({"pauses": [vars(pause) for pause in training.pauses]}), flush=True)


if __name__ == "__main__":
    main()
