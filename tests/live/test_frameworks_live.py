"""Hugging Face and Lightning scripts under a real service: they train, are resized, preempted and paused, and go on
from their last step each time.

Skipped where the frameworks are not installed.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.machine import Machine, until

pytestmark = pytest.mark.slow
PROGRAMS = Path(__file__).parent / "programs"
STEPS = 200


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    here = Machine(tmp_path)
    here.environment["OMP_NUM_THREADS"] = "1"
    here.up("--nodes", "v100:1x2", "--min-run", "0")
    yield here
    here.start("cancel", "job").wait(60)
    here.down()


def _made(machine: Machine) -> list[tuple[int, int]]:
    """Steps in the order in which they were made, and with how many workers, over all attempts."""
    logs = sorted(machine.home.glob("jobs/*/*/worker-0.log"), key=lambda path: int(path.parent.name))
    return [
        (int(step), int(workers))
        for log in logs
        for step, workers in re.findall(r"step (\d+) of (\d+)", log.read_text())
    ]


@pytest.mark.parametrize(
    ("package", "program"), [("transformers", "hf_training.py"), ("lightning", "lightning_training.py")]
)
def test_it_goes_on_from_its_last_step(machine: Machine, package: str, program: str) -> None:
    pytest.importorskip(package)
    command = [sys.executable, str(PROGRAMS / program), str(machine.work), str(STEPS)]
    machine.type("submit", "--name", "job", "--steps", STEPS, "--", *command)

    def runs_on(attempt: int) -> dict[str, Any]:
        """Once that attempt has made some steps."""

        def there() -> bool:
            view = machine.json("job", "job")
            assert view["state"] in ("pending", "running", "paused"), view["output"]
            made = len(_made(machine))
            return view["attempts"] == attempt and view["phase"] == "running" and made >= before + 3

        before = len(_made(machine))
        until(there, f"attempt {attempt} to make steps", 120)
        return machine.json("job", "job")

    assert runs_on(1)["progress"]["age_s"] is not None
    machine.type("resize", "job", "2")
    assert runs_on(2)["allocation"][0]["workers"] == 2
    machine.type("submit", "--name", "urgent", "--gpus", "2", "--priority", "5", "--", "sleep", "1")
    runs_on(3)
    assert "is stopped: preempted" in machine.type("events", "--job", "job")
    machine.type("pause", "job")
    machine.until_state("job", "paused")
    machine.type("resume", "job")
    runs_on(4)
    (machine.work / "fast").touch()
    view = machine.until_state("job", "finished", "failed")
    assert (view["state"], view["attempts"], view["progress"]["work_done"]) == ("finished", 4, STEPS), view["output"]
    made = _made(machine)
    assert [step for step, _ in made] == list(range(1, STEPS + 1)), "each step once"
    assert {workers for _, workers in made} == {1, 2}
