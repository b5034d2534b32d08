"""Elastic data parallel with real processes: resizes and deaths change neither the samples nor the result."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from trainmaster.testing.fork_server import ForkServer
from trainmaster.testing.gang import Gang

SOURCE = Path(__file__).resolve().parents[2] / "src"
PROGRAM = str(Path(__file__).parent / "programs" / "elastic_member.py")


MakeGang = Callable[..., Gang]


@pytest.fixture
def gang_of(tmp_path: Path, fork_server: ForkServer) -> MakeGang:
    def make(*arguments: object, folder: str = "run", **options: Any) -> Gang:
        command = ["python", PROGRAM, *map(str, arguments), "--out", str(tmp_path / folder / "final.npz")]
        return Gang(command, tmp_path / folder, fork_server=fork_server, **options)

    return make


def _final(folder: Path) -> list[np.ndarray]:
    with np.load(folder / "final.npz") as file:
        return [file[name] for name in file.files]


def _lines(gang: Gang, name: str) -> list[dict]:
    return [json.loads(line) for line in gang.log(name).splitlines() if line.startswith("{")]


def _ready(gang: Gang, workers: int) -> bool:
    return gang.roster.settled and len(gang.roster.members) == workers


def _alone(folder: Path, *arguments: object, launcher: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """The program as a user starts it by hand."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("TRAINMASTER_")}
    env |= {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *launcher, PROGRAM, *map(str, arguments), "--out", str(folder / "final.npz")]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120)


def test_one_worker_without_an_agent(tmp_path: Path) -> None:
    result = _alone(tmp_path, "count", "--samples", 20, "--batch", 8, "--epochs", 3)
    assert result.returncode == 0, result.stderr
    counts = _final(tmp_path)[0]
    # Three epochs: every sample thrice, 1/8 each in full batches and 1/4 in the last one of four.
    assert set(np.round(-counts * 8).astype(int)) <= {3, 4, 5, 6}
    assert np.isclose(-counts.sum(), 9.0)  # nine updates, each lowers the sum by the learning rate


def test_every_sample_once_across_resizes_and_kills(gang_of: MakeGang) -> None:
    with gang_of("count", "--samples", 480, "--batch", 8, "--epochs", 2, "--sleep-s", 0.02) as gang:
        gang.grow(2)
        gang.run_until(lambda: gang.work_done >= 3, 60)
        gang.grow(1)
        gang.run_until(lambda: _ready(gang, 3), 60)
        gang.kill("worker-0")
        gang.run_until(lambda: _ready(gang, 2), 60)
        gang.shrink(["worker-1"])
        gang.run_until(lambda: _ready(gang, 1), 60)
        gang.run_to_end(60)
        assert gang.codes == {"worker-0": -9, "worker-1": 0, "worker-2": 0}, gang.story()
    assert np.allclose(_final(gang.folder)[0], -2 / 8, atol=1e-12)
