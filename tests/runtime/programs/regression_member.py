"""A member that fits y = A w by least squares through the parameter server and writes every loss it sees.

Arguments: folder for losses, steps, seed, options of `join` as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from trainmaster.runtime import ps

ps.serve_if_server()

import numpy as np  # noqa: E402

folder, steps, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
options = json.loads(sys.argv[4]) if len(sys.argv) > 4 else {}
features = 20_000
truth = np.random.Generator(np.random.PCG64(seed)).standard_normal(features).astype(np.float32)
member = os.environ["TRAINMASTER_MEMBER"]
rng = np.random.Generator(np.random.PCG64([seed, int(member.split("-")[1])]))

with (folder / f"{member}.losses").open("w") as losses:
    job = ps.join({"w": np.zeros(features, np.float32)}, ps.Sgd(lr=0.001), block_bytes=8192, **options)
    for _ in job.steps(steps):
        # One step sees half of the coordinates: the gradient of |w - truth|^2 / 2 there.
        seen = rng.random(features) < 0.5
        error = job.parameters["w"] - truth
        job.gradients["w"][...] = np.where(seen, error, 0.0)
        loss = float(np.mean(error**2))
        job.push_pull(loss=loss)
        losses.write(f"{job.work} {loss}\n")
        losses.flush()
    job.close()
