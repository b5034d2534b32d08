"""State as a skeleton and a list of arrays: what checkpoints store and what newcomers receive.

A state is built of dict, list, tuple, None, bool, int, float, str, bytes, NumPy arrays and torch tensors.
The skeleton is plain JSON in which every array is a number; nothing is ever unpickled, so a file from
elsewhere can be wrong but cannot run code. torch is used only if the state holds tensors.
"""

from __future__ import annotations

import base64
import sys
from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainmaster.runtime.errors import CheckpointError


@dataclass(frozen=True)
class Leaf:
    """One array: `kind` is "numpy" or "torch", `dtype` that library's name for it."""

    kind: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int


def flatten(state: Any) -> tuple[Any, list[Any]]:
    """(skeleton, arrays in the order of their numbers). The arrays are the state's own, not copies."""
    arrays: list[Any] = []
    return _flatten(state, "state", arrays), arrays


def unflatten(skeleton: Any, arrays: list[Any]) -> Any:
    try:
        return _unflatten(skeleton, arrays)
    except (KeyError, IndexError, ValueError, TypeError) as error:
        raise CheckpointError(f"the skeleton of a state cannot be understood ({error!r})") from error


def describe(array: Any) -> Leaf:
    if isinstance(array, np.ndarray):
        return Leaf("numpy", array.dtype.str, tuple(array.shape), array.nbytes)
    return Leaf(
        "torch", str(array.dtype).removeprefix("torch."), tuple(array.shape), array.numel() * array.element_size()
    )


def leaf_of(entry: dict[str, Any]) -> Leaf:
    """The description that `dataclasses.asdict` and JSON have made of one."""
    return Leaf(entry["kind"], entry["dtype"], tuple(entry["shape"]), entry["nbytes"])


def raw_bytes(array: Any) -> memoryview:
    """The array's contents, contiguous, on the host."""
    if not isinstance(array, np.ndarray):
        torch = _torch()
        array = array.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8))  # type: ignore[arg-type]


def empty(leaf: Leaf) -> Any:
    """An uninitialised array of this description, on the host."""
    if leaf.kind == "numpy":
        return np.empty(leaf.shape, dtype=np.dtype(leaf.dtype))
    torch = _torch()
    return torch.empty(leaf.shape, dtype=getattr(torch, leaf.dtype))


def fill(array: Any, data: bytes | memoryview) -> None:
    """Set an array made by `empty` from its bytes."""
    if isinstance(array, np.ndarray):
        array.reshape(-1).view(np.uint8)[:] = np.frombuffer(data, np.uint8)
    elif array.numel():
        array.reshape(-1).view(_torch().uint8).numpy()[:] = np.frombuffer(data, np.uint8)


def _torch() -> Any:
    import torch

    return torch


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")  # whoever made the tensor has loaded it
    return torch is not None and isinstance(value, torch.Tensor)


def _flatten(value: Any, path: str, arrays: list[Any]) -> Any:
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, np.generic):
        arrays.append(np.asarray(value))
        return {"scalar": len(arrays) - 1}
    if isinstance(value, (int, float)):
        return value
    if isinstance(value, np.ndarray) or _is_tensor(value):
        if isinstance(value, np.ndarray) and (value.dtype.hasobject or value.dtype.fields):
            raise CheckpointError(f"{path} is an array of {value.dtype}; store arrays of plain numbers only")
        arrays.append(value)
        return {"array": len(arrays) - 1}
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, dict):
        kind = "counter" if isinstance(value, Counter) else "dict"
        kind = "ordered" if isinstance(value, OrderedDict) else kind
        items = [
            [_flatten(key, f"a key of {path}", arrays), _flatten(item, f"{path}[{key!r}]", arrays)]
            for key, item in value.items()
        ]
        return {kind: items}
    if isinstance(value, (list, tuple)):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_flatten(item, f"{path}[{number}]", arrays) for number, item in enumerate(value)]}
    raise CheckpointError(
        f"{path} is a {type(value).__name__}, which cannot be stored. Use dict, list, tuple, numbers, text, bytes, "
        "NumPy arrays and tensors; of other objects store their state_dict()"
    )


def _unflatten(value: Any, arrays: list[Any]) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "array":
        return arrays[content]
    if kind == "scalar":
        return arrays[content][()]
    if kind == "bytes":
        return base64.b64decode(content)
    if kind in ("list", "tuple"):
        items = [_unflatten(item, arrays) for item in content]
        return items if kind == "list" else tuple(items)
    made = {"dict": dict, "ordered": OrderedDict, "counter": Counter}[kind]()
    for key, item in content:
        made[_unflatten(key, arrays)] = _unflatten(item, arrays)
    return made
