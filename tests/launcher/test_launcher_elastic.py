"""The runtime behind real launchers: gangs that grow, shrink, lose members and leaders while they train."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from .conftest import Bench

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "tests" / "runtime" / "programs"
pytestmark = pytest.mark.slow


def _train(bench: Bench, member: str, epochs: int = 1000) -> None:
    program = [sys.executable, str(PROGRAMS / "elastic_member.py"), "count", "--sleep-s", "0.02"]
    out = ["--epochs", str(epochs), "--out", str(bench.folder / "numbers.npz")]
    bench.launch(member, [*program, *out], TRAINMASTER_CHECKPOINT_DIR=str(bench.folder / "saved"))


def _steps(bench: Bench, member: str) -> int:
    rows = [json.loads(line) for line in bench.log(member).splitlines() if line.startswith("{")]
    return max((row["step"] for row in rows if "step" in row), default=0)


def _trains_on(bench: Bench, member: str, steps: int = 5) -> None:
    target = _steps(bench, member) + steps
    bench.until(lambda: _steps(bench, member) >= target, f"progress of {member}: {bench.log(member)[-2000:]}")


def test_a_gang_grows_and_shrinks_loses_its_leader_and_goes_on(bench: Bench) -> None:
    seats = bench.seats(1)
    bench.admit(seats)
    _train(bench, "worker-0")
    assert bench.hear("settled")[2] == ("worker-0",)
    _trains_on(bench, "worker-0")

    newcomer = bench.seats(1, first=1)
    bench.admit(newcomer)
    _train(bench, "worker-1")
    assert bench.hear("settled", 2)[2] == ("worker-0", "worker-1")
    _trains_on(bench, "worker-1")
    assert bench.attempts.attempts[bench.key].elastic

    told = len(bench.said("settled"))
    bench.take_over([*seats, *newcomer], pause_s=0.3)
    bench.until(lambda: len(bench.said("settled")) > told, "the new leader's own knowledge")
    assert bench.said("settled")[-1] == ("settled", 2, ("worker-0", "worker-1")), "nobody was disturbed"
    _trains_on(bench, "worker-1")

    bench.dismiss("worker-0")  # the senior: it hands over
    assert bench.hear("exited", "worker-0")[2] == 0
    assert bench.hear("settled", 1000)[2] == ("worker-1",)
    _trains_on(bench, "worker-1")
    bench.stop("preempted", 10.0)
    assert bench.hear("exited", "worker-1")[2] == 75  # saved, could go on
    saved = [words[2].saved for words in bench.said("progress") if words[2].saved is not None]
    assert saved and saved[-1] == _steps(bench, "worker-1")


def test_survivors_of_a_death_go_on_and_every_sample_counts_once(bench: Bench) -> None:
    bench.admit(bench.seats(3))
    for n in range(3):
        _train(bench, f"worker-{n}", epochs=12)
    bench.hear("settled")
    _trains_on(bench, "worker-0")
    bench.processes[1].kill()  # the launcher, and with it its command
    bench.now(lambda: bench.attempts.died(bench.key, "worker-1"))
    assert bench.hear("settled", 2)[2] == ("worker-0", "worker-2")
    assert bench.hear("exited", "worker-0")[2] == 0
    assert bench.hear("exited", "worker-2")[2] == 0
    numbers = np.load(bench.folder / "numbers.npz")["arr_0"]
    assert np.allclose(numbers, numbers[0]) and numbers[0] < 0


def test_parameter_servers_come_and_go(bench: Bench) -> None:
    seats = bench.seats(1, servers=1)
    bench.admit(seats)
    words = [sys.executable, str(PROGRAMS / "counting_member.py"), str(bench.folder), "4096", "100000", "{}", "0.02"]
    saved = str(bench.folder / "saved")
    for seat in seats:
        bench.launch(seat.member, words, TRAINMASTER_CHECKPOINT_DIR=saved, TRAINMASTER_ROLE=seat.role)
    bench.hear("settled")

    def work() -> float:
        return max((words[2].work_done for words in bench.said("progress")), default=0.0)

    def goes_on() -> None:
        target = work() + 10
        bench.until(lambda: work() >= target, f"progress: {bench.log('worker-0')[-2000:]}")

    goes_on()
    more = [*bench.seats(1, first=1), bench.seats(0, servers=2)[-1]]
    bench.admit(more)
    for seat in more:
        bench.launch(seat.member, words, TRAINMASTER_CHECKPOINT_DIR=saved, TRAINMASTER_ROLE=seat.role)
    assert set(bench.hear("settled", 2)[2]) == {"worker-0", "worker-1", "server-0", "server-1"}
    goes_on()
    bench.dismiss("server-0", "worker-1")
    assert bench.hear("exited", "server-0")[2] == 0
    assert bench.hear("exited", "worker-1")[2] == 0
    goes_on()
