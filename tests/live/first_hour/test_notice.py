"""A job that would lose much work by a preemption is told so first, and spared; one that saves is preempted at once."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.machine import Machine, until

pytestmark = pytest.mark.slow

LOSS_S, NOTICE_S = 5.0, 8.0
SAVES = """
import time
from trainmaster import runtime
with runtime.session() as session:
    session.restore()
    for step in session.steps(100000, state=lambda: 0, save_every=2):
        time.sleep(0.05)
"""


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    here = Machine(tmp_path)
    here.up("--nodes", "v100:1x1", "--min-run", "0", "--preempt-loss", str(LOSS_S), "--preempt-notice", str(NOTICE_S))
    yield here
    for job in here.json("queue")["jobs"]:
        here.start("cancel", job["id"]).wait(60)
    here.down()


def _events(machine: Machine, job: str) -> dict[str, dict[str, Any]]:
    return {event["kind"]: event for event in machine.json("events", "--job", job)["events"]}


def _has_run_s(machine: Machine, job: str) -> float:
    return time.time() - machine.json("job", job)["started"]


def test_it_is_told_spared_and_preempted(machine: Machine) -> None:
    long = machine.type("submit", "--preemptible", "--", "sleep", "600").split()[-1]
    machine.until_state(long, "running")
    until(lambda: _has_run_s(machine, long) > LOSS_S + 1, "it to have work to lose", 60)
    urgent = machine.start("submit", "--name", "urgent", "--priority", "5", "--", "sleep", "600")
    _, told = urgent.communicate(timeout=60)
    assert f"Warning: {long} will be preempted in 8s, or when it saves: it would lose" in told
    machine.until_state("urgent", "running")
    events = _events(machine, long)
    assert events["stop"]["at"] - events["preemption"]["at"] >= NOTICE_S - 0.1
    assert "preempted" in events["stop"]["text"]


def test_one_that_saves_is_preempted_at_once(machine: Machine) -> None:
    (machine.work / "saves.py").write_text(SAVES)
    saves = machine.type("submit", "--", sys.executable, "saves.py").split()[-1]
    machine.until_state(saves, "running")
    until(lambda: _has_run_s(machine, saves) > LOSS_S + 1, "it to run longer than what may be lost", 60)
    machine.type("submit", "--name", "urgent", "--priority", "5", "--", "sleep", "600")
    machine.until_state("urgent", "running")
    assert "preemption" not in _events(machine, saves)
    assert machine.json("job", saves)["progress"]["work_done"] > 0
