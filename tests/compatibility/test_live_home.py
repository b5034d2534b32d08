"""A home of version 0.1 whose machine lost power: the service of today finds its jobs and runs them to the end."""

import tarfile
from pathlib import Path

import pytest

from support.machine import Machine

pytestmark = pytest.mark.slow


def test_service_continues_an_old_home(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    with tarfile.open(Path(__file__).parent / "v0_1" / "live_home.tar.xz") as tar:
        tar.extractall(machine.home, filter="data")
    machine.up("--nodes", "v100=2x2")
    try:
        assert machine.json("job", "ended")["state"] == "finished"
        assert "first words" in machine.type("logs", "ended")
        assert machine.until_state("running", "finished")["attempts"] == 2
        assert "generation 2" in machine.type("logs", "running")
        assert machine.until_state("waiting", "finished")["attempts"] == 1
    finally:
        machine.down()
