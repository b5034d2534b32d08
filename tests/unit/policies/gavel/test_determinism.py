"""The same problem gives the same bytes, whatever PYTHONHASHSEED."""

from __future__ import annotations

import os
import subprocess
import sys

PROGRAM = """
import hashlib, numpy as np
from trainmaster.policies.gavel.objectives import POLICIES, allocate
from trainmaster.policies.gavel.problem import Entity, make_problem
rng = np.random.Generator(np.random.PCG64(1))
entities = (Entity("a", 1.0), Entity("b", 2.0, "fifo"), Entity("c", 1.0, "fairness", 1))
problem = make_problem(
    rng.uniform(0.5, 9.0, (40, 3)), [4.0, 6.0, 9.0], gpus=rng.choice([1.0, 2.0], 40),
    steps_remaining=rng.uniform(1e3, 1e6, 40), entities=entities, entity_of=rng.integers(-1, 3, 40),
)
digest = hashlib.sha256()
for policy in POLICIES:
    result = allocate(problem, policy)
    digest.update(result.share.tobytes() + np.float64(result.objective).tobytes())
print(digest.hexdigest())
"""


def test_same_bytes_whatever_the_hash_seed() -> None:
    seen = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("0", "1", "4711")
    }
    assert len(seen) == 1
    assert len(seen.pop().strip()) == 64
