"""Dollars per GPU-hour, for cost figures when nobody gives prices. Rough public on-demand figures.

The first three are those of the Gavel paper (OSDI'20), so that cost results compare; the others are typical
list prices of large clouds and only meant to have the right order. Unknown types have no price.
"""

from __future__ import annotations

PRICE_PER_GPU_HOUR = {
    "k80": 0.45,
    "p100": 1.46,
    "v100": 2.48,
    "t4": 0.35,
    "a10": 1.01,
    "l4": 0.71,
    "l40s": 1.86,
    "a100": 3.67,
    "a100-40gb": 3.67,
    "a100-80gb": 5.07,
    "h100": 9.80,
    "h200": 10.60,
    "b200": 14.20,
    "mi300x": 7.86,
    "tpu-v5e": 1.20,
}
