"""Servers move parameters as torch.optim does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from trainmaster.model.errors import InputError
from trainmaster.runtime.ps.optimizer import Adagrad, Adam, Optimizer, Sgd, optimizer_from_json, optimizer_to_json

torch = pytest.importorskip("torch")

CASES: list[tuple[Optimizer, Callable[[Any], Any]]] = [
    (Sgd(0.1), lambda p: torch.optim.SGD([p], lr=0.1)),
    (Sgd(0.1, weight_decay=0.01), lambda p: torch.optim.SGD([p], lr=0.1, weight_decay=0.01)),
    (Sgd(0.1, 0.9, 0.01), lambda p: torch.optim.SGD([p], lr=0.1, momentum=0.9, weight_decay=0.01)),
    (Adagrad(0.1), lambda p: torch.optim.Adagrad([p], lr=0.1)),
    (Adam(0.01), lambda p: torch.optim.Adam([p], lr=0.01)),
    (Adam(0.01, weight_decay=0.1), lambda p: torch.optim.AdamW([p], lr=0.01, weight_decay=0.1)),
]


@pytest.mark.parametrize(("ours", "theirs"), CASES, ids=[str(case[0]) for case in CASES])
def test_ten_steps_are_those_of_torch(ours: Optimizer, theirs: Callable[[Any], Any]) -> None:
    rng = np.random.Generator(np.random.PCG64(3))
    start = rng.standard_normal(1000).astype(np.float32)
    params, slots = start.copy(), np.zeros((ours.slots, 1000), np.float32)
    tensor = torch.nn.Parameter(torch.tensor(start))
    reference = theirs(tensor)
    for step in range(1, 11):
        gradient = rng.standard_normal(1000).astype(np.float32)
        ours.apply(params, slots, gradient, step, 1.0)
        tensor.grad = torch.tensor(gradient)
        reference.step()
    np.testing.assert_allclose(params, tensor.detach().numpy(), rtol=2e-5, atol=2e-6)


def test_the_rate_factor_scales_the_learning_rate() -> None:
    a, b = np.ones(5, np.float32), np.ones(5, np.float32)
    gradient, none = np.full(5, 2.0, np.float32), np.zeros((0, 5), np.float32)
    Sgd(0.1).apply(a, none, gradient, 1, 0.5)
    Sgd(0.05).apply(b, none, gradient, 1, 1.0)
    np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("optimizer", [case[0] for case in CASES], ids=str)
def test_json_keeps_an_optimizer(optimizer: Optimizer) -> None:
    assert optimizer_from_json(optimizer_to_json(optimizer)) == optimizer


def test_bad_rates_are_refused() -> None:
    with pytest.raises(InputError, match="lr is -1"):
        Sgd(-1.0)
    with pytest.raises(InputError, match="beta2"):
        Adam(0.1, beta2=1.0)
    with pytest.raises(InputError, match="unknown optimizer"):
        optimizer_from_json({"kind": "lion"})
