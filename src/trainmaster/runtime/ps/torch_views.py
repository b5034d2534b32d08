"""A torch module whose parameters and gradients live in two flat vectors; torch is loaded only if it is used."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from trainmaster.model.errors import InputError


def is_module(parameters: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(parameters, torch.nn.Module)


def tensors_of(parameters: Any) -> dict[str, Any]:
    """Name -> float32 array or tensor on the host, in a fixed order."""
    if is_module(parameters):
        named = {name: value for name, value in parameters.named_parameters() if value.requires_grad}
    elif isinstance(parameters, Mapping):
        named = dict(parameters)
    else:
        raise InputError(
            f"parameters are a {type(parameters).__name__}", "a torch module, or a mapping of names to arrays"
        )
    for name, value in named.items():
        kind = str(getattr(value, "dtype", type(value).__name__)).removeprefix("torch.")
        if kind != "float32":
            raise InputError(f"parameter {name!r} is {kind}", "float32", "Convert it; servers count in float32.")
        device = getattr(value, "device", None)
        if device is not None and getattr(device, "type", "cpu") != "cpu":
            raise InputError(f"parameter {name!r} is on {device}", "the host", "Keep the model on the CPU.")
    return named


class Bound:
    """Keeps gradients where they are sent from."""

    def __init__(self, pairs: list[tuple[Any, Any]]) -> None:
        self._pairs = pairs

    def collect(self) -> None:
        """Gradients that were put elsewhere (after `zero_grad`, which drops them) come back."""
        for parameter, place in self._pairs:
            if parameter.grad is None:
                place.zero_()
            elif parameter.grad.data_ptr() != place.data_ptr():
                place.copy_(parameter.grad)
            parameter.grad = place


def bind(module: Any, parameters: Mapping[str, np.ndarray], gradients: Mapping[str, np.ndarray]) -> Bound:
    import torch

    pairs = []
    for name, parameter in module.named_parameters():
        if name in parameters:
            parameter.data = torch.from_numpy(parameters[name])
            parameter.grad = torch.from_numpy(gradients[name])
            pairs.append((parameter, parameter.grad))
    return Bound(pairs)
