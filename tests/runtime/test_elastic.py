"""Elastic data parallel with real processes: resizes and deaths change neither the samples nor the result."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from support.fork_server import ForkServer
from trainmaster.gang import protocol as wire
from trainmaster.gang.harness import Gang
from trainmaster.gang.processes import free_port

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


def _user_env() -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("TRAINMASTER_")}
    return env | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}


def _by_hand(server: ForkServer, folder: Path, *arguments: object, **env: str) -> tuple[int, str]:
    """(exit code, output) of the program as a user starts it, without an agent."""
    places = ["--out", str(folder / "final.npz"), "--location", str(folder / "checkpoints")]
    process = server.start([PROGRAM, *map(str, arguments), *places], _user_env() | env, folder / "log")
    return process.wait(), (folder / "log").read_text()


def test_one_worker_without_an_agent(tmp_path: Path, fork_server: ForkServer) -> None:
    code, log = _by_hand(fork_server, tmp_path, "count", "--samples", 20, "--batch", 8, "--epochs", 3)
    assert code == 0, log
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


REGRESS = ("regress", "--samples", 250, "--batch", 16, "--epochs", 6)


def _reference(gang_of: MakeGang) -> list[np.ndarray]:
    with gang_of(*REGRESS, folder="reference") as gang:
        gang.grow(1)
        gang.run_to_end(60)
        assert gang.codes == {"worker-0": 0}, gang.story()
        return _final(gang.folder)


def test_a_resized_run_ends_where_the_uninterrupted_one_does(gang_of: MakeGang) -> None:
    """Same samples per update, exact weights: only the order of floating-point sums differs."""
    reference = _reference(gang_of)
    with gang_of(*REGRESS, "--sleep-s", 0.05, folder="resized") as gang:
        gang.grow(2)
        gang.run_until(lambda: gang.work_done >= 5, 60)
        gang.grow(1)
        gang.run_until(lambda: _ready(gang, 3), 60)
        gang.shrink(["worker-0"])
        gang.run_until(lambda: _ready(gang, 2), 60)
        gang.kill("worker-2")
        gang.run_until(lambda: _ready(gang, 1), 60)
        gang.grow(3)
        gang.run_until(lambda: _ready(gang, 4), 60)
        gang.run_to_end(60)
        assert [code for code in gang.codes.values() if code] == [-9], gang.story()
        resized = _final(gang.folder)
        losses = {line["step"]: line["loss"] for name in gang.members for line in _lines(gang, name) if "loss" in line}
    for one, other in zip(reference, resized, strict=True):
        np.testing.assert_allclose(other, one, rtol=2e-3, atol=2e-5)
    assert sorted(losses) == list(range(1, 97)), "a step is missing"
    assert np.mean([losses[step] for step in range(87, 97)]) < 0.5 * np.mean([losses[step] for step in range(1, 11)])


def test_a_stop_and_a_restart_change_nothing(gang_of: MakeGang) -> None:
    reference = _reference(gang_of)
    with gang_of(*REGRESS, "--sleep-s", 0.02, folder="stopped") as gang:
        gang.grow(2)
        gang.run_until(lambda: gang.work_done >= 10, 60)
        gang.stop("preempted")
        gang.run_to_end(30)
        assert set(gang.codes.values()) == {wire.EXIT_STOPPED}, gang.story()
        progress = gang.members["worker-0"].progress
        assert progress is not None and progress.saved == progress.work_done >= 10
    with gang_of(*REGRESS, folder="stopped", generation=2) as gang:
        gang.grow(3)
        gang.run_to_end(60)
        assert set(gang.codes.values()) == {0}, gang.story()
        assert _lines(gang, "worker-2")[0]["step"] == progress.saved
        for one, other in zip(reference, _final(gang.folder), strict=True):
            np.testing.assert_allclose(other, one, rtol=2e-3, atol=2e-5)


@pytest.mark.slow
def test_under_plain_torchrun(tmp_path: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    options = ["count", "--samples", "30", "--batch", "6", "--micro-batch", "2", "--out", str(tmp_path / "final.npz")]
    result = subprocess.run([*launcher, PROGRAM, *options], cwd=tmp_path, env=_user_env(), capture_output=True)
    assert result.returncode == 0, result.stderr
    assert np.allclose(_final(tmp_path)[0], -2 / 6, atol=1e-12)


def test_workers_that_were_announced_and_do_not_come(tmp_path: Path, fork_server: ForkServer) -> None:
    env = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    code, log = _by_hand(fork_server, tmp_path, "count", "--timeout-s", 1, **env)
    assert code == 1 and "WorldSizeError: WORLD_SIZE is 2, but the workers did not come" in log


def test_a_checkpoint_of_another_model_is_refused_and_kept(tmp_path: Path, fork_server: ForkServer) -> None:
    assert _by_hand(fork_server, tmp_path, "regress", "--hidden", 8, "--epochs", 1)[0] == 0
    kept = {path.name: path.read_bytes() for path in (tmp_path / "checkpoints").iterdir()}
    for other, what in (("--hidden", "tensor '0.bias' is float32[8] there and float32[9] here"),
                        ("--samples", "its data set has 96 samples, this one 9")):  # fmt: skip
        settings = ["regress", "--hidden", 8, "--epochs", 1, other, 9]
        code, log = _by_hand(fork_server, tmp_path, *settings)
        assert code == 1 and "IncompatibleState" in log and what in log
    assert {path.name: path.read_bytes() for path in (tmp_path / "checkpoints").iterdir()} == kept


def test_more_workers_than_samples_in_a_step(gang_of: MakeGang) -> None:
    with gang_of("count", "--samples", 10, "--batch", 2, "--epochs", 3) as gang:
        gang.grow(3)
        gang.run_to_end(60)
        assert set(gang.codes.values()) == {0}, gang.story()
    assert np.allclose(_final(gang.folder)[0], -3 / 2, atol=1e-12)


def test_a_batch_per_worker_scales_the_learning_rate(gang_of: MakeGang) -> None:
    """Linear rule: an update of n workers has n times the batch and n times the rate, so each sample counts alike."""
    with gang_of("count", "--samples", 240, "--worker-batch", 4, "--epochs", 2, "--sleep-s", 0.02) as gang:
        gang.grow(1)
        gang.run_until(lambda: gang.work_done >= 3, 60)
        gang.grow(1)
        gang.run_until(lambda: _ready(gang, 2), 60)
        gang.run_to_end(60)
        assert gang.work_done == pytest.approx(2 * 240 / 4)
    uses = -4 * _final(gang.folder)[0]
    assert np.count_nonzero(np.isclose(uses, 2.0)) >= 240 - 2 * 4  # an epoch's last update may be half as large
    assert uses.min() > 1.9 and uses.max() < 4.1


def _kill_many(gang: Gang, chance: random.Random, kills: int) -> int:
    """Kill at random moments and grow back; gives the number of deaths. The gang always keeps a survivor."""
    shot: set[str] = set()
    while len(shot) < kills and gang.work_done < 0.9 * 120:
        until_s = time.monotonic() + chance.uniform(0.0, 0.25)
        gang.run_until(lambda until_s=until_s: time.monotonic() >= until_s, 10)
        joined = [name for name in gang.alive if name in gang.roster.members and name not in shot]
        holders = [name for name in joined if name not in gang.roster.awaited and gang.attempt.members[name].joined]
        if len(joined) < 2 or not holders:
            continue
        survivor = chance.choice(holders)
        victim = chance.choice([name for name in joined if name != survivor])
        gang.kill(victim)
        gang.grow(1)
        shot.add(victim)
    return len(shot)


def _seeded_kills(gang_of: MakeGang, seed: int, kills: int) -> None:
    chance = random.Random(seed)
    arguments = ("count", "--samples", 480, "--batch", 8, "--epochs", 2, "--sleep-s", 0.05, "--save-every", 10)
    with gang_of(*arguments, folder=f"seed-{seed}") as gang:
        gang.grow(3)
        gang.run_until(lambda: gang.work_done >= 1, 60)
        deaths = _kill_many(gang, chance, kills)
        gang.run_to_end(120)
        assert set(gang.codes.values()) <= {-9, 0}, gang.story()
        assert list(gang.codes.values()).count(-9) == deaths >= kills // 2
        saved = 0.0
        for _, _, report in gang.heard:
            if not isinstance(report, wire.Progress):
                continue
            assert report.work_done >= saved, "progress fell below the last checkpoint"
            saved = max(saved, report.saved or 0.0)
    assert np.allclose(_final(gang.folder)[0], -2 / 8, atol=1e-12), "a sample was used twice or not at all"


def test_workers_killed_at_random_moments(gang_of: MakeGang) -> None:
    _seeded_kills(gang_of, seed=1, kills=8)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 6))
def test_many_workers_killed_at_random_moments(gang_of: MakeGang, seed: int) -> None:
    _seeded_kills(gang_of, seed, kills=12)
