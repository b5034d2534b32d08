"""What tests of DL2's learning share: weights that are bad on purpose, and an executor that does not wait."""

from __future__ import annotations

from concurrent.futures import Executor, Future
from pathlib import Path

import numpy as np

from trainmaster.policies.dl2.network import ScoringNetwork
from trainmaster.policies.dl2.weights import SHIPPED, load, to_bytes


class Inline(Executor):
    """Runs at once, so that tests need not wait."""

    def submit(self, fn, /, *args, **kwargs) -> Future:
        future: Future = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


def turned(tmp_path: Path) -> Path:
    """The shipped weights with the sign of every job's score turned round: whoever gains least is served first."""
    network = load(SHIPPED).network
    assert isinstance(network, ScoringNetwork)
    arrays = {name: -value if name in "AaS" else value for name, value in network.weights.items()}
    arrays["b"] = np.full(1, -1e4, np.float32)
    path = tmp_path / "turned.npz"
    path.write_bytes(to_bytes(arrays, "shared", 0, {}))
    return path
