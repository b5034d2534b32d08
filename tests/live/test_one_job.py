"""Start reading here: one job from `up` to `finished`, with real processes, as a user types it."""

from pathlib import Path

import pytest

from support.machine import Machine

pytestmark = pytest.mark.slow


def test_a_job_runs_and_finishes(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.up()
    try:
        machine.type("submit", "--gpus", 1, "--name", "hello", "--", "echo", "hello from the job")
        job = machine.until_state("hello", "finished")

        assert job["attempts"] == 1
        assert "hello from the job" in machine.type("logs", "hello")
        assert machine.json("queue")["total"] == 0
    finally:
        machine.down()
