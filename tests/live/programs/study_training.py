"""A PyTorch job of the live study, elastic data parallel or parameter server, that counts the uses of each sample.

The machine has fewer cores than the cluster has accelerators, so the time that an accelerator would compute is waited
for: a step of `w` workers lasts slowdown * (parallel / w + serial) seconds, and what the exchange of gradients takes.
Models, gradients, their exchange, checkpoints and resizes are real.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from trainmaster import runtime
from trainmaster.runtime import ps
from trainmaster.runtime.process_env import read_process_env

ps.serve_if_server()

import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402

CLASSES, FEATURES = 8, 64


class Counted(nn.Module):
    """A model, and one number per sample. The loss holds the mean of the batch's numbers, so plain SGD lowers each by
    1 / batch whenever its sample takes part in an update."""

    def __init__(self, model: nn.Module, samples: int) -> None:
        super().__init__()
        self.model = model
        self.numbers = nn.Parameter(torch.zeros(samples))

    def forward(self, x: torch.Tensor, y: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.model(x), y) + self.numbers[indices].mean()


def model_of(name: str) -> nn.Module:
    if name == "cnn":
        return nn.Sequential(
            nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(512, CLASSES)
        )
    if name == "transformer":
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        return nn.Sequential(
            nn.Unflatten(1, (4, 16)), nn.TransformerEncoder(layer, 1), nn.Flatten(), nn.Linear(64, CLASSES)
        )
    return nn.Sequential(nn.Linear(FEATURES, 128), nn.ReLU(), nn.Linear(128, CLASSES))


class Pace:
    """Makes a step last as long as on the accelerator that is emulated; `note` writes down how fast it really goes."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._parallel_s, self._serial_s = options.parallel_s, options.serial_s
        place = read_process_env()
        self._slowdown = json.loads(options.slowdowns).get(place.accelerator, 1.0)
        self._about = f"{place.accelerator} {place.attempt}"
        self._log = options.counts.with_suffix(".log")
        self._noted_s = 0.0
        self._began_s = time.perf_counter()

    def begin(self) -> None:
        self._began_s = time.perf_counter()

    def wait(self, workers: int) -> None:
        lasts_s = self._slowdown * (self._parallel_s / workers + self._serial_s)
        time.sleep(max(0.0, lasts_s - (time.perf_counter() - self._began_s)))

    def note(self, work: float, workers: int) -> None:
        now_s = time.time()
        if now_s >= self._noted_s + 0.5:
            self._noted_s = now_s
            with self._log.open("a") as log:
                log.write(f"{now_s:.3f} {work:g} {workers} {self._about}\n")


def data_parallel(options: argparse.Namespace, x: torch.Tensor, y: torch.Tensor, pace: Pace) -> None:
    samples, batch_size = len(x), options.batch
    counted = Counted(model_of(options.model), samples)
    groups = [
        {"params": list(counted.model.parameters()), "lr": 0.05},
        {"params": [counted.numbers], "lr": 1.0},
    ]
    epochs = options.steps * batch_size // samples
    with runtime.elastic(
        counted, torch.optim.SGD(groups), samples=samples, global_batch=batch_size, epochs=epochs, save_every_s=5.0
    ) as training:
        for batch in training:
            pace.begin()
            loss = counted(x[batch.indices], y[batch.indices], batch.indices)
            pace.wait(training.workers)
            training.step(loss)
            if training.is_senior:
                pace.note(training.step_count, training.workers)
        if training.is_senior:
            write_counts(options.counts, -counted.numbers.detach().numpy() * batch_size, epochs)


def parameter_server(options: argparse.Namespace, x: torch.Tensor, y: torch.Tensor, pace: Pace) -> None:
    """Every worker takes batches of its own choice; `applied` counts the gradients that went into the parameters."""
    model = model_of(options.model)
    parameters = {name: value.detach().numpy().copy() for name, value in model.named_parameters()}
    parameters["applied"] = np.zeros(1, np.float32)
    place = read_process_env()
    chance = torch.Generator().manual_seed(int(place.member.rpartition("-")[2]))
    with ps.join(parameters, ps.Sgd(lr=0.05), staleness=8, save_every=20) as job:
        for _ in job.steps(options.steps):
            pace.begin()
            rows = torch.randint(len(x), (options.batch,), generator=chance)
            with torch.no_grad():
                for name, value in model.named_parameters():
                    value.copy_(torch.from_numpy(np.asarray(job.parameters[name])))
            model.zero_grad()
            loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
            loss.backward()
            for name, value in model.named_parameters():
                job.gradients[name][...] = value.grad
            job.gradients["applied"][...] = -1.0 / 0.05
            pace.wait(1)
            job.push_pull(loss=loss.item())
            if place.rank == 0:
                pace.note(job.work, job.workers)
        write_counts(options.counts, np.asarray(job.parameters["applied"]).copy(), job.work)


def write_counts(path: Path, counts: np.ndarray, expected: float) -> None:
    temporary = path.with_suffix(".writing.npz")
    np.savez(temporary, counts=counts, expected=expected)
    temporary.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--way", choices=("parallel", "server"), default="parallel")
    parser.add_argument("--model", choices=("cnn", "transformer", "mlp"), default="mlp")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--parallel-s", type=float, default=0.3)
    parser.add_argument("--serial-s", type=float, default=0.05)
    parser.add_argument("--slowdowns", default="{}", help="by GPU type, as JSON: how much slower than the fastest")
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--counts", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x = torch.randn(options.samples, FEATURES)
    y = (x[:, :CLASSES]).argmax(dim=1)
    pace = Pace(options)
    (data_parallel if options.way == "parallel" else parameter_server)(options, x, y, pace)


if __name__ == "__main__":
    main()
