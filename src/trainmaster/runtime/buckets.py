"""Gradients in flat buckets, summed over the workers while the backward pass still runs.

Every parameter's `.grad` is a view into its bucket, so nothing is copied: autograd adds into the bucket, the
bucket is summed in place, the optimizer reads it. Buckets are filled in reverse order of the parameters
(about the order in which a backward pass finishes them) and always started in the same order, because
collectives must be. The last bucket carries a few numbers of the loop's own at its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from trainmaster.runtime.group import Group, GroupFault

FIRST_BUCKET_BYTES = 1 << 20
"""A small first bucket: communication starts early."""
BUCKET_BYTES = 25 << 20
_CARRIERS = (torch.float32, torch.float64)
"""Types that hold the loop's own numbers exactly enough."""


@dataclass(eq=False)
class _Bucket:
    flat: torch.Tensor
    parameters: list[torch.nn.Parameter] = field(default_factory=list)
    views: list[torch.Tensor] = field(default_factory=list)
    missing: int = 0


class Buckets:
    """`carried` numbers of the loop travel with the last bucket; `finish` gives their sums."""

    def __init__(
        self, parameters: Iterable[torch.nn.Parameter], carried: int, bucket_bytes: int = BUCKET_BYTES
    ) -> None:
        wanted = [parameter for parameter in parameters if parameter.requires_grad]
        self._carried = carried
        self._buckets = _lay_out(wanted, carried, bucket_bytes)
        self._where = {
            id(parameter): (bucket, view)
            for bucket in self._buckets
            for parameter, view in zip(bucket.parameters, bucket.views, strict=True)
        }
        self._group: Group | None = None
        self._works: list[Any] = []
        self._summing = False
        self._fault = ""
        self._carry: Callable[[], list[float]] = lambda: [0.0] * carried
        self._handles = [p.register_post_accumulate_grad_hook(self._arrived) for p in wanted]

    @property
    def sizes_bytes(self) -> list[int]:
        return [bucket.flat.numel() * bucket.flat.element_size() for bucket in self._buckets]

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()

    def begin(self, group: Group) -> None:
        """Before the first backward pass of a step: gradients are zero and belong to us."""
        self._group, self._works, self._fault, self._summing = group, [], "", False
        for bucket in self._buckets:
            bucket.flat.zero_()
            bucket.missing = len(bucket.parameters)
            for parameter, view in zip(bucket.parameters, bucket.views, strict=True):
                parameter.grad = view

    def expect_last(self, carry: Callable[[], list[float]]) -> None:
        """The next backward pass is the step's last: buckets are summed as they fill.

        `carry()` is asked as late as possible for what travels along.
        """
        self._summing = True
        self._carry = carry

    def finish(self) -> list[float]:
        """After the last backward pass: every bucket summed. `GroupFault` when a peer is gone."""
        for number in range(len(self._works), len(self._buckets)):  # with parameters that this step did not touch
            self._start(number)
        try:
            while self._works and not self._fault:
                Group.finish(self._works.pop(0))
            if self._fault:
                raise GroupFault(self._fault)
        finally:
            self.abandon()
        return self._buckets[-1].flat[-self._carried :].tolist()

    def abandon(self) -> None:
        """A work that is kept would keep its group alive."""
        self._works, self._summing, self._group = [], False, None

    def _arrived(self, parameter: torch.nn.Parameter) -> None:
        """Autograd has added into `parameter.grad`."""
        if self._group is None:
            return  # a backward pass outside of a step is the script's own business
        bucket, view = self._where[id(parameter)]
        if parameter.grad is not view:  # the script has cleared it, so autograd made a new one
            view.add_(parameter.grad)  # type: ignore[arg-type]
            parameter.grad = view
        if not self._summing:
            return
        bucket.missing -= 1
        while len(self._works) < len(self._buckets) and self._buckets[len(self._works)].missing <= 0:
            self._start(len(self._works))

    def _start(self, number: int) -> None:
        assert self._group is not None
        bucket = self._buckets[number]
        if number == len(self._buckets) - 1:
            bucket.flat[-self._carried :] = torch.tensor(self._carry(), dtype=bucket.flat.dtype)
        work = None
        if not self._fault:
            try:
                work = self._group.start_sum(bucket.flat)
            except GroupFault as fault:
                self._fault = str(fault) or "fault"  # raised by `finish`, not in the middle of autograd
        self._works.append(work)


def _lay_out(parameters: list[torch.nn.Parameter], carried: int, bucket_bytes: int) -> list[_Bucket]:
    groups: list[list[torch.nn.Parameter]] = []
    room = 0
    for parameter in reversed(parameters):
        size = parameter.numel() * parameter.element_size()
        same = groups and groups[-1][0].dtype == parameter.dtype and groups[-1][0].device == parameter.device
        if not same or size > room:
            groups.append([])
            room = min(FIRST_BUCKET_BYTES, bucket_bytes) if len(groups) == 1 else bucket_bytes
        groups[-1].append(parameter)
        room -= size
    carrier = bool(groups) and groups[-1][0].dtype in _CARRIERS
    buckets = [_bucket(group, carried if carrier and group is groups[-1] else 0) for group in groups]
    if not carrier:
        device = parameters[0].device if parameters else torch.device("cpu")
        buckets.append(_Bucket(torch.zeros(carried, device=device)))
    return buckets


def _bucket(parameters: list[torch.nn.Parameter], carried: int) -> _Bucket:
    first = parameters[0]
    numbers = sum(parameter.numel() for parameter in parameters) + carried
    bucket = _Bucket(torch.zeros(numbers, dtype=first.dtype, device=first.device))
    offset = 0
    for parameter in parameters:
        view = bucket.flat[offset : offset + parameter.numel()].view_as(parameter)
        bucket.parameters.append(parameter)
        bucket.views.append(view)
        offset += parameter.numel()
    return bucket
