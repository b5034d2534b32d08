"""A small transformer language model on generated text, trained by elastic data parallel.

    python examples/transformer_lm.py
    trainmaster submit --elastic 1..4 -- python examples/transformer_lm.py

The text is a stream of sums ("17+25=42;"), so the model has something to learn beyond letter frequencies. It
shows a schedule, clipped gradients and micro-batches (a step's share is cut so that memory stays the same
when the job shrinks). Under a minute on two cores.
"""

from __future__ import annotations

import argparse
import math

import torch
from torch import nn

from trainmaster import runtime

ALPHABET = "0123456789+=;"
WINDOW = 32


def text(count: int, seed: int) -> torch.Tensor:
    """`count` sums, as a row of letter numbers."""
    chance = torch.Generator().manual_seed(seed)
    pairs = torch.randint(50, (count, 2), generator=chance).tolist()
    letters = "".join(f"{one}+{other}={one + other};" for one, other in pairs)
    return torch.tensor([ALPHABET.index(letter) for letter in letters])


class LanguageModel(nn.Module):
    def __init__(self, width: int = 64, layers: int = 2) -> None:
        super().__init__()
        self.letters = nn.Embedding(len(ALPHABET), width)
        self.places = nn.Parameter(0.02 * torch.randn(WINDOW, width))
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, len(ALPHABET))
        self.mask = nn.Buffer(nn.Transformer.generate_square_subsequent_mask(WINDOW), persistent=False)

    def forward(self, letters: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.letters(letters) + self.places, mask=self.mask, is_causal=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=64, help="of all workers together")
    options = parser.parse_args()

    torch.set_num_threads(1)  # one core per worker
    torch.manual_seed(0)
    stream = text(20_000, seed=1)
    windows = stream.unfold(0, WINDOW + 1, WINDOW // 2)
    model = LanguageModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    warm, total = 20, options.steps
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warm, 0.5 * (1 + math.cos(math.pi * min(step / total, 1.0))))
    )
    entropy = nn.CrossEntropyLoss()

    with runtime.elastic(
        model,
        optimizer,
        samples=len(windows),
        global_batch=options.batch,
        micro_batch=32,
        steps=total,
        scheduler=schedule,
        before_update=lambda: nn.utils.clip_grad_norm_(model.parameters(), 1.0),
    ) as training:
        for batch in training:
            rows = windows[batch.indices]
            loss = entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
            training.step(loss)
            if training.is_senior and training.step_count % 50 == 0 and training.loss is not None:
                print(f"step {training.step_count}, {training.workers} workers: loss {training.loss:.4f}", flush=True)
        if training.is_senior:
            held = text(500, seed=2).unfold(0, WINDOW + 1, WINDOW)
            with torch.no_grad():
                loss = entropy(model(held[:, :-1]).flatten(0, 1), held[:, 1:].flatten()).item()
            print(f"held-out perplexity: {math.exp(loss):.2f} (of {len(ALPHABET)} letters)", flush=True)


if __name__ == "__main__":
    main()
