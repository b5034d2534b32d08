"""The emulated member: speed, resizes, deaths, stops, and what a new attempt goes on from."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trainmaster.gang import protocol as wire
from trainmaster.gang.harness import Gang

COMMAND = ["python", "-m", "trainmaster.runtime.emulated", "--steps", "100", "--save-every", "10"]


def _env(rate: float) -> dict[str, str]:
    return {"TRAINMASTER_STEPS_PER_S": json.dumps({"v100": rate}), "TRAINMASTER_ACCELERATOR": "v100"}


def test_speed_follows_the_number_of_workers(tmp_path: Path) -> None:
    with Gang(COMMAND, tmp_path, env=_env(50.0)) as gang:
        gang.grow(2)
        gang.run_until(lambda: gang.work_done > 0, 20)
        begun_s, begun = time.monotonic(), gang.work_done
        gang.run_to_end(20)
        rate = (100 - begun) / (time.monotonic() - begun_s)
        assert gang.codes == {"worker-0": 0, "worker-1": 0}
        assert gang.work_done == 100
        assert 50 < rate < 150  # 100 declared; exit and polling blur it


def test_work_survives_the_senior_and_resizes(tmp_path: Path) -> None:
    with Gang(COMMAND, tmp_path, env=_env(20.0)) as gang:
        gang.grow(2)
        gang.run_until(lambda: gang.work_done > 5, 20)
        gang.kill("worker-0")
        before = gang.work_done
        gang.run_until(lambda: gang.members["worker-1"].progress is not None, 20)
        progress = gang.members["worker-1"].progress
        assert progress is not None and progress.work_done >= before - 3  # one tick and one report
        gang.grow(2)
        gang.run_until(lambda: gang.roster.settled and len(gang.alive) == 3, 20)
        gang.shrink(["worker-1"])
        gang.run_until(lambda: "worker-1" not in gang.alive, 20)
        gang.run_to_end(20)
        assert gang.codes == {"worker-0": -9, "worker-1": 0, "worker-2": 0, "worker-3": 0}


def test_a_stop_saves_and_the_next_incarnation_goes_on(tmp_path: Path) -> None:
    with Gang(COMMAND, tmp_path, env=_env(30.0)) as gang:
        gang.grow(1)
        gang.run_until(lambda: gang.work_done > 12, 20)
        gang.stop()
        gang.run_to_end(10)
        assert gang.codes == {"worker-0": wire.EXIT_STOPPED}
        saved = gang.work_done
    with Gang(COMMAND, tmp_path, env=_env(30.0), generation=2) as gang:
        gang.grow(1)
        gang.run_until(lambda: gang.work_done > 0, 20)
        assert gang.work_done >= saved


def test_the_lease_ends_a_member_that_nobody_answers(tmp_path: Path) -> None:
    with Gang(COMMAND, tmp_path, env=_env(1.0), lease_s=1.0, renew=False) as gang:
        gang.grow(1)
        gang.run_until(lambda: bool(gang.heard), 20)
        said_hello_s = gang.heard[0][0]
        gang.run_to_end(10)
        assert gang.codes == {"worker-0": wire.EXIT_LEASE_OVER}
        assert 0.8 < time.monotonic() - said_hello_s < 2.0
        assert "lease of worker-0 ran out" in gang.log("worker-0")


def test_it_needs_the_standard_library_only() -> None:
    heavy = {"numpy", "torch", "pydantic"}
    code = "import sys, trainmaster.runtime.emulated; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not heavy & set(loaded)


@pytest.mark.parametrize(
    ("variable", "value"), [("TRAINMASTER_STEPS_PER_S", "7"), ("RANK", "3"), ("TRAINMASTER_EMULATED_SLOWDOWN", "0.5")]
)
def test_a_bad_environment_is_named(variable: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from trainmaster.model.errors import InputError
    from trainmaster.runtime.process_env import read_process_env

    monkeypatch.setenv(variable, value)
    with pytest.raises(InputError, match=variable):
        read_process_env()
