"""The training state that all data-parallel workers hold alike: model, optimizer, schedule, position.

It goes into checkpoints and, over the group, to workers that are behind. Who receives it stages all of it
first and then takes it over, so that a source that dies half-way leaves the receiver as it was.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from typing import Any, Protocol

import torch

from trainmaster.runtime import tree
from trainmaster.runtime.errors import IncompatibleState
from trainmaster.runtime.group import Group
from trainmaster.runtime.sampler import Position

SMALL_BYTES = 1 << 20
"""Arrays up to this size travel together."""


class Stateful(Protocol):
    def state_dict(self) -> Any: ...
    def load_state_dict(self, state: Any) -> Any: ...


@dataclass
class Replica:
    """`step` counts applied updates; `work` counts them in steps of the declared global batch; -1: no state yet."""

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: Any = None
    extra: Stateful | None = None
    samples: int = 0
    seed: int = 0
    step: int = -1
    work: float = 0.0
    position: Position = field(default_factory=Position)

    def capture(self) -> dict[str, Any]:
        """References, not copies: to be used before the next step."""
        return {
            "step": self.step,
            "work": self.work,
            "position": [self.position.epoch, self.position.consumed],
            "samples": self.samples,
            "seed": self.seed,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
            "extra": None if self.extra is None else self.extra.state_dict(),
        }

    def adopt(self, state: dict[str, Any], origin: str) -> None:
        """Take over a captured state. `IncompatibleState` before anything has changed."""
        self._compare(state, origin)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state["scheduler"])
        if self.extra is not None:
            self.extra.load_state_dict(state["extra"])
        self.position = Position(*state["position"])
        self.work = state["work"]
        self.step = state["step"]

    def _compare(self, state: dict[str, Any], origin: str) -> None:
        def refuse(what: str) -> IncompatibleState:
            return IncompatibleState(
                f"the state of {origin} does not fit this script: {what}. Run the script that wrote it, or choose an "
                "empty checkpoint location"
            )

        missing = {"model", "optimizer", "scheduler", "position", "samples", "seed", "step"} - set(state)
        if missing:
            raise refuse(f"it lacks {', '.join(sorted(missing))}")
        own, other = self.model.state_dict(), state["model"]
        for name in sorted(own.keys() | other.keys()):
            if name not in other:
                raise refuse(f"it has no model tensor {name!r}")
            if name not in own:
                raise refuse(f"the model here has no tensor {name!r}")
            if own[name].shape != other[name].shape or own[name].dtype != other[name].dtype:
                raise refuse(
                    f"model tensor {name!r} is {_kind(other[name])} there and {_kind(own[name])} here",
                )
        here = [len(group["params"]) for group in self.optimizer.state_dict()["param_groups"]]
        there = [len(group["params"]) for group in state["optimizer"]["param_groups"]]
        if here != there:
            raise refuse(f"the optimizer's groups hold {there} parameters there and {here} here")
        if (self.scheduler is None) != (state["scheduler"] is None):
            raise refuse("one has a learning-rate schedule, the other has none")
        if state["samples"] != self.samples:
            raise refuse(f"its data set has {state['samples']} samples, this one {self.samples}")
        if state["seed"] != self.seed:
            raise refuse(f"it shuffles by seed {state['seed']}, this script by {self.seed}")


def _kind(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def survey(group: Group, step: int) -> list[int]:
    """The step of every worker, by rank. Collective."""
    steps = torch.zeros(group.world, dtype=torch.float64, device=group.device)
    steps[group.rank] = step
    return [int(value) for value in group.sum(steps).tolist()]


def hand_over(group: Group, replica: Replica, source: int, behind: bool) -> int:
    """The source's state reaches every worker that is `behind`. Collective; gives the bytes that travelled."""
    if group.rank == source:
        skeleton, arrays = tree.flatten(replica.capture())
        leaves = [tree.describe(array) for array in arrays]
        _broadcast_text(group, json.dumps([skeleton, [asdict(leaf) for leaf in leaves]]).encode(), source)
    else:
        skeleton, entries = json.loads(_broadcast_text(group, None, source))
        leaves = [tree.leaf_of(entry) for entry in entries]
        arrays = [tree.empty(leaf) if behind else None for leaf in leaves]
    for pack in _packs(leaves):
        _broadcast_pack(group, [leaves[n] for n in pack], [arrays[n] for n in pack], source)
    if behind and group.rank != source:
        replica.adopt(tree.unflatten(skeleton, arrays), f"the worker of rank {source}")
    return sum(leaf.nbytes for leaf in leaves)


def _broadcast_text(group: Group, text: bytes | None, source: int) -> bytes:
    length = torch.tensor([0 if text is None else len(text)], dtype=torch.int64, device=group.device)
    size = int(group.broadcast(length, source).item())
    carrier = torch.empty(size, dtype=torch.uint8, device=group.device)
    if text is not None:
        carrier.copy_(torch.frombuffer(bytearray(text), dtype=torch.uint8))
    return bytes(group.broadcast(carrier, source).cpu().numpy())


def _packs(leaves: list[tree.Leaf]) -> list[list[int]]:
    """Which arrays travel together: large ones alone, small ones packed; the same cut on every worker."""
    packs: list[list[int]] = []
    small: list[int] = []
    packed = 0
    for number, leaf in enumerate(leaves):
        if leaf.nbytes > SMALL_BYTES:
            packs.append([number])
            continue
        small.append(number)
        packed += leaf.nbytes
        if packed > SMALL_BYTES:
            packs.append(small)
            small, packed = [], 0
    return [*packs, small] if packed else packs


def _broadcast_pack(group: Group, leaves: list[tree.Leaf], arrays: list[Any], source: int) -> None:
    """`None` for an array that this worker need not keep."""
    flat = torch.empty(sum(leaf.nbytes for leaf in leaves), dtype=torch.uint8)
    ends = list(accumulate(leaf.nbytes for leaf in leaves))
    if group.rank == source:
        for leaf, array, end in zip(leaves, arrays, ends, strict=True):
            if leaf.nbytes:
                flat[end - leaf.nbytes : end] = torch.frombuffer(tree.raw_bytes(array), dtype=torch.uint8)
    flat = group.broadcast(flat.to(group.device), source).cpu()
    if group.rank != source:
        data = memoryview(flat.numpy())  # type: ignore[arg-type]
        for leaf, array, end in zip(leaves, arrays, ends, strict=True):
            if array is not None:
                tree.fill(array, data[end - leaf.nbytes : end])
