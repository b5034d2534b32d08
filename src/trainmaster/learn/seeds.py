"""Where each use of traces begins to count its seeds, so that none ever meets another's traces."""

from __future__ import annotations

VALIDATION_SEEDS = 1_000_000
DEMONSTRATION_SEEDS = 2_000_000
TRAIN_SEEDS = 10_000_000
"""A hundred thousand traces for each of a thousand seeds of training runs: up to 110,000,000."""
TEST_SEEDS = 9_000_000_000
