"""What a choice was worth beyond what was expected: generalised advantage estimation (Schulman et al., ICLR'16)."""

from __future__ import annotations

import numpy as np

from trainmaster.core.arrays import Floats


def generalised_advantage(reward: Floats, value: Floats, kept: Floats, decay: float) -> Floats:
    """`kept`: what the discount leaves from each choice to the next, 0 at the end of an episode; nothing comes after
    the last."""
    out, carried, ahead = np.zeros(len(reward)), 0.0, 0.0
    steps = list(zip(reward.tolist(), value.tolist(), kept.tolist(), strict=True))
    for t in range(len(steps) - 1, -1, -1):
        gained, expected, left = steps[t]
        carried = gained + left * ahead - expected + left * decay * carried
        out[t], ahead = carried, expected
    return out
