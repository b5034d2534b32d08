"""Weights of dl2: a network ready to decide."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trainmaster.policies.dl2.features import GLOBAL_FEATURES, JOB_FEATURES, N_ACTION, N_GLOBAL, N_JOB
from trainmaster.policies.dl2.network import ScoringNetwork, WindowNetwork, shapes
from trainmaster.policies.shared.weights_file import WeightsFormat

VERSION = 1
FORMAT = WeightsFormat("dl2", VERSION, {"job_features": JOB_FEATURES, "global_features": GLOBAL_FEATURES})
SHIPPED = Path(__file__).with_name("weights.npz")


@dataclass(frozen=True)
class Weights:
    """A network ready to decide, and the record of its training."""

    network: ScoringNetwork | WindowNetwork
    made_by: Mapping[str, Any]


def to_bytes(
    arrays: Mapping[str, npt.NDArray[np.float32]], network: str, window: int, made_by: Mapping[str, Any]
) -> bytes:
    """The file's content; equal weights give equal bytes."""
    return FORMAT.to_bytes(arrays, {"network": network, "window": window, "made_by": dict(made_by)})


def load(path: Path) -> Weights:
    """Read and check a weights file; anything wrong with it is an `InputError` that says what."""
    about, arrays = FORMAT.read(path)
    kind, window = about.get("network"), about.get("window")
    window = window if isinstance(window, int) else 0
    kept = FORMAT.take(arrays, _wanted_shapes(kind, window, arrays, path), path)
    network = ScoringNetwork(kept) if kind == "shared" else WindowNetwork(kept, window)
    return Weights(network, about.get("made_by", {}))


def _wanted_shapes(
    kind: Any, window: int, arrays: Mapping[str, npt.NDArray[np.float32]], path: Path
) -> dict[str, tuple[int, ...]]:
    def width(name: str) -> int:
        shape = arrays[name].shape if name in arrays else ()
        return int(shape[-1]) if shape else 1

    if kind == "shared":
        return shapes(width("u"), width("v"))
    if kind == "window" and window > 0:
        hidden = width("p")
        return {
            "P": (window * N_JOB + N_GLOBAL, hidden),
            "p": (hidden,),
            "Q": (hidden, hidden),
            "q": (hidden,),
            "R": (hidden, window * N_ACTION + 1),
            "r": (window * N_ACTION + 1,),
        }
    raise FORMAT.fault(f"weights of a network '{kind}'", "'shared' or 'window'", path)


@lru_cache(maxsize=8)
def load_once(path: str) -> Weights:
    """`load`, remembered: a policy is built many times in a comparison."""
    return load(Path(path) if path else SHIPPED)


def shared_weights(path: Path) -> Mapping[str, npt.NDArray[np.float32]]:
    """The arrays of a file that holds a shared network, from which a training can go on."""
    network = load(path).network
    if not isinstance(network, ScoringNetwork):
        raise FORMAT.fault("weights of the window network", "those of the shared network", path)
    return network.weights
