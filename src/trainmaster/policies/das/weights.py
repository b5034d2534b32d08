"""Weights of das: agents ready to decide, and the kernel of their process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from trainmaster.policies.das.features import JOB_FEATURES, MACHINE_FEATURES, PAIR_FEATURES
from trainmaster.policies.das.gaussian import Kernel
from trainmaster.policies.das.network import VARIANTS, Agents, shapes
from trainmaster.policies.shared.weights_file import WeightsFormat

VERSION = 2
"""2: agents see as fitting what may start where it pays; 1 had them wait for whole machines at any price."""
FORMAT = WeightsFormat(
    "das", VERSION, {"job_features": JOB_FEATURES, "machine_features": MACHINE_FEATURES, "pair_features": PAIR_FEATURES}
)
SHIPPED = Path(__file__).with_name("weights.npz")
KERNEL_MAX = 1e9
"""Of any number that describes the kernel."""


@dataclass(frozen=True)
class Weights:
    """Agents ready to decide, the kernel they were trained with, and the record of their training."""

    agents: Agents
    kernel: Kernel
    made_by: Mapping[str, Any]


def to_bytes(agents: Agents, kernel: Kernel, made_by: Mapping[str, Any]) -> bytes:
    """The file's content; equal weights give equal bytes."""
    about = {"variant": agents.variant, "heads": agents.heads, "kernel": kernel.to_json(), "made_by": dict(made_by)}
    return FORMAT.to_bytes(agents.weights, about)


def load(path: Path) -> Weights:
    """Read and check a weights file; anything wrong with it is an `InputError` that says what."""
    about, arrays = FORMAT.read(path)
    if about.get("variant") not in tuple(VARIANTS):  # compared, not looked up: it may be anything
        raise FORMAT.fault(f"weights of variant '{about.get('variant')}'", ", ".join(VARIANTS), path)
    width, hidden = (int(arrays[name].size) if name in arrays else 1 for name in ("bj", "p1"))
    heads = about.get("heads")
    if not isinstance(heads, int) or heads < 1 or width % heads:
        raise FORMAT.fault(f"weights with {heads} heads of a width of {width}", "a divisor of it", path)
    agents = Agents(FORMAT.take(arrays, shapes(width, hidden), path), heads, about["variant"])
    return Weights(agents, _kernel(about.get("kernel"), path), about.get("made_by", {}))


def _kernel(given: Any, path: Path) -> Kernel:
    known = Kernel().to_json()
    if not isinstance(given, dict) or set(given) != set(known):
        raise FORMAT.fault("the kernel is not described", ", ".join(known), path)
    usable = all(isinstance(value, int | float) and 0 < value <= KERNEL_MAX for value in given.values())
    if not usable or given["decay"] >= 1 or given["same_kind"] > 1 or given["history"] < 1:
        expected = f"positive numbers up to {KERNEL_MAX:g}, a decay below 1"
        raise FORMAT.fault(f"a kernel with {given}", expected, path)
    return Kernel(**{**given, "history": int(given["history"])})


@lru_cache(maxsize=8)
def load_once(path: str) -> Weights:
    """`load`, remembered: a policy is built many times in a comparison."""
    return load(Path(path) if path else SHIPPED)
