"""An image classifier on generated pictures, trained by elastic data parallel.

    python examples/image_classifier.py                                  # alone
    torchrun --nproc-per-node 2 examples/image_classifier.py             # a fixed number of workers
    trainmaster submit --elastic 1..4 -- python examples/image_classifier.py

Ten classes of gratings (five directions, two widths) with random phase and much noise; a small convolutional
network. Under a minute on two cores. The lines that make it elastic are marked.
"""

from __future__ import annotations

import argparse
import math

import torch
from torch import nn

from trainmaster import runtime  # (1)

SIDE = 16
CLASSES = 10


def pictures(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Gratings of class c: direction c mod 5, width c div 5."""
    chance = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=chance)
    angle = (labels % 5) * (math.pi / 5)
    frequency = torch.where(labels < 5, 0.8, 1.6)
    phase = torch.rand(count, generator=chance) * 2 * math.pi
    down, across = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    along = torch.cos(angle)[:, None, None] * across + torch.sin(angle)[:, None, None] * down
    clean = torch.sin(frequency[:, None, None] * along + phase[:, None, None])
    return (clean + 1.6 * torch.randn(clean.shape, generator=chance))[:, None], labels


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.GroupNorm(4, 32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * (SIDE // 4) ** 2, CLASSES),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--samples", type=int, default=8192)
    parser.add_argument("--batch", type=int, default=64, help="of all workers together")
    options = parser.parse_args()

    torch.set_num_threads(1)  # one core per worker
    torch.manual_seed(0)
    images, labels = pictures(options.samples, seed=1)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    entropy = nn.CrossEntropyLoss()

    with runtime.elastic(  # (2)
        model, optimizer, samples=options.samples, global_batch=options.batch, epochs=options.epochs
    ) as training:
        for batch in training:  # (3)
            loss = entropy(model(images[batch.indices]), labels[batch.indices])
            training.step(loss)  # (4)
            if training.is_senior and training.step_count % 50 == 0:
                print(f"step {training.step_count}, {training.workers} workers: loss {training.loss:.4f}", flush=True)
        if training.is_senior:
            held_images, held_labels = pictures(2000, seed=2)
            with torch.no_grad():
                right = (model(held_images).argmax(1) == held_labels).float().mean().item()
            print(f"accuracy on held-out pictures: {right:.3f}", flush=True)


if __name__ == "__main__":
    main()
