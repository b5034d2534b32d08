"""Unmanaged: one process with a server inside trains as torch alone would, saves, goes on, and complains clearly."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainmaster.gang.protocol import EXIT_STOPPED, Hello
from trainmaster.model.errors import InputError
from trainmaster.runtime import ps
from trainmaster.runtime.errors import LeaseOver
from trainmaster.runtime.link import AgentLink
from trainmaster.runtime.ps.process import checkpoints_in


def _network(torch: Any) -> Any:
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(20, 300), torch.nn.Tanh(), torch.nn.Linear(300, 1))


@pytest.mark.parametrize("drop_gradients", [False, True])
def test_a_module_moves_as_under_torchs_own_optimizer(drop_gradients: bool) -> None:
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    x = torch.randn(32, 20, generator=torch.Generator().manual_seed(1))
    y = x.sum(1, keepdim=True)
    theirs = _network(torch)
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.05, momentum=0.9)
    for _ in range(20):
        optimizer.zero_grad()
        (theirs(x) - y).square().mean().backward()
        optimizer.step()
    ours = _network(torch)
    with ps.join(ours, ps.Sgd(lr=0.05, momentum=0.9), block_bytes=4096) as job:
        for _ in job.steps(20):
            if drop_gradients:
                ours.zero_grad()  # sets them to None: they must find back to where they are sent from
            (ours(x) - y).square().mean().backward()
            job.push_pull()
        assert job.work == 20
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def _count(folder: Path, steps: int, optimizer: Any = None, floats: int = 1000) -> float:
    with ps.join({"w": np.zeros(floats, np.float32)}, optimizer or ps.Sgd(lr=1.0), checkpoint_dir=folder) as job:
        for _ in job.steps(steps):
            job.gradients["w"][...] = -1.0
            job.push_pull()
        return float(job.parameters["w"].mean())


def test_the_next_run_goes_on_from_the_checkpoint(tmp_path: Path) -> None:
    assert _count(tmp_path, 10) == 10.0
    assert _count(tmp_path, 25) == 25.0


def test_a_checkpoint_of_another_model_or_optimizer_is_refused_and_kept(tmp_path: Path) -> None:
    _count(tmp_path, 5)
    before = {path: path.read_bytes() for path in (tmp_path / "ps").iterdir()}
    with pytest.raises(InputError, match="holds another model"):
        _count(tmp_path, 10, floats=2000)
    with pytest.raises(InputError, match="was made with Sgd"):
        _count(tmp_path, 10, optimizer=ps.Adam())
    assert {path: path.read_bytes() for path in (tmp_path / "ps").iterdir()} == before


def test_a_torn_checkpoint_gives_way_to_the_one_before(tmp_path: Path) -> None:
    _count(tmp_path, 5)
    _count(tmp_path, 9)
    newest = max((tmp_path / "ps").iterdir())
    newest.write_bytes(newest.read_bytes()[:-10])
    assert _count(tmp_path, 12) == 12.0  # from 5, not from 0: the sum is right either way only if both agree


@pytest.mark.parametrize(
    ("parameters", "options", "message"),
    [
        ({"w": np.zeros(3)}, {}, "'w' is float64"),
        ([1, 2], {}, "parameters are a list"),
        ({}, {}, "no parameters"),
        ({"w": np.zeros(3, np.float32)}, {"staleness": -1}, "staleness is -1"),
        ({"w": np.zeros(3, np.float32)}, {"sync": True, "staleness": 1}, "both sync and staleness"),
        ({"w": np.zeros(3, np.float32)}, {"save_every": 0}, "save_every is 0"),
    ],
)
def test_bad_use_is_told_before_anything_starts(parameters: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ps.join(parameters, ps.Sgd(lr=0.1), **options)


def test_a_worker_without_a_lease_neither_saves_nor_pushes(tmp_path: Path) -> None:
    with ps.join({"w": np.zeros(8, np.float32)}, ps.Sgd(lr=1.0), checkpoint_dir=tmp_path) as job:
        job.push_pull()
        assert job.save() == 1
        never_renewed = AgentLink("unix:/nowhere", Hello("t", "worker-0", 1, elastic=True))
        job._session.link = never_renewed
        job._exchange.work = 2
        for change in (job.save, job.push_pull, lambda: next(job.steps(3))):
            with pytest.raises(LeaseOver, match="worker-0"):
                change()
    checkpoints = checkpoints_in(tmp_path)
    assert checkpoints is not None and checkpoints.steps() == [1]


def test_sigterm_saves_and_ends_with_the_agreed_code(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as end:
        list(_steps(tmp_path, 100, at=7))
    assert end.value.code == EXIT_STOPPED
    assert next(_steps(tmp_path, 100)) == 8  # the step under way was finished


def _steps(folder: Path, total: int, at: int | None = None) -> Iterator[int]:
    """The job's work before each step; SIGTERM comes during the one at `at`."""
    with ps.join({"w": np.zeros(8, np.float32)}, ps.Sgd(lr=1.0), checkpoint_dir=folder) as job:
        for _ in job.steps(total):
            yield job.work
            if job.work == at:
                os.kill(os.getpid(), signal.SIGTERM)
            job.push_pull()
