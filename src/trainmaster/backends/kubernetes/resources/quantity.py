"""Kubernetes quantities (`500m`, `1.5Gi`, `2e3`) as exact numbers, and what a pod asks of its node."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any

_QUANTITY = re.compile(r"^([+-]?(?:\d+\.?\d*|\.\d+))(?:([eE][+-]?\d{1,3})|([numkMGTPE]|[KMGTPE]i))?$")
_SCALE: Mapping[str, Fraction] = {
    "n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000), "k": Fraction(10**3),
    "M": Fraction(10**6), "G": Fraction(10**9), "T": Fraction(10**12), "P": Fraction(10**15), "E": Fraction(10**18),
    "Ki": Fraction(2**10), "Mi": Fraction(2**20), "Gi": Fraction(2**30), "Ti": Fraction(2**40),
    "Pi": Fraction(2**50), "Ei": Fraction(2**60),
}  # fmt: skip
MIB = 2**20

Resources = dict[str, Fraction]


class QuantityError(ValueError):
    """Not a quantity."""


@lru_cache(maxsize=4096)
def _parse_text(text: str) -> Fraction:
    match = _QUANTITY.match(text) if len(text) <= 64 else None
    if match is None:
        raise QuantityError(f"invalid quantity '{text[:40]}'")
    value = Fraction(match[1])
    if match[2]:
        return value * Fraction(10) ** int(match[2][1:])
    return value * _SCALE[match[3]] if match[3] else value


def parse_quantity(value: Any) -> Fraction:
    """The number that a quantity stands for; the API server also takes bare numbers."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise QuantityError(f"invalid quantity {value!r}")
    if isinstance(value, float) and not math.isfinite(value):
        raise QuantityError(f"invalid quantity {value!r}")
    return _parse_text(str(value))


def container_requests(container: Mapping[str, Any]) -> Resources:
    """Requests; a limit without a request is a request of the same size."""
    resources = container.get("resources") or {}
    asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {name: parse_quantity(value) for name, value in asked.items()}


def pod_requests(pod_spec: Mapping[str, Any]) -> Resources:
    """What the scheduler must count: containers together, or the largest moment of the init containers; and overhead.

    An init container that restarts always (a sidecar) goes on running beside those that follow it.
    """
    total = _sum(container_requests(c) for c in pod_spec.get("containers") or ())
    beside: Resources = {}
    peak: Resources = {}
    for container in pod_spec.get("initContainers") or ():
        asked = container_requests(container)
        if container.get("restartPolicy") == "Always":
            beside = _sum((beside, asked))
            peak = _most(peak, beside)
        else:
            peak = _most(peak, _sum((beside, asked)))
    total = _most(_sum((total, beside)), peak)
    overhead = {name: parse_quantity(value) for name, value in (pod_spec.get("overhead") or {}).items()}
    return _sum((total, overhead)) if overhead else total


def _sum(parts: Iterable[Resources]) -> Resources:
    total: Resources = {}
    for part in parts:
        for name, amount in part.items():
            total[name] = total.get(name, Fraction(0)) + amount
    return total


def _most(a: Resources, b: Resources) -> Resources:
    return {name: max(a.get(name, Fraction(0)), b.get(name, Fraction(0))) for name in {**a, **b}}


def cpu_milli_up(amount: Fraction) -> int:
    """A demand in thousandths of a CPU, rounded up."""
    return math.ceil(amount * 1000)


def mem_mib_up(amount: Fraction) -> int:
    """A demand in MiB, rounded up."""
    return math.ceil(amount / MIB)
