"""What trainers write down, and that two lives at once are found."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from support.trainer_records import PROGRAM, Life, overlaps, read_lives


def _train(folder: Path, seconds: float, generation: int) -> subprocess.Popen[bytes]:
    env = {"TRAINMASTER_JOB_NAME": "t", "TRAINMASTER_GENERATION": str(generation), "TRAINMASTER_MEMBER": "worker-0"}
    return subprocess.Popen([sys.executable, "-c", PROGRAM, str(folder), str(seconds)], env={**os.environ, **env})


def test_a_trainer_that_is_stopped_goes_on_where_it_was(tmp_path: Path) -> None:
    first = _train(tmp_path, 1000, 1)
    while not read_lives(tmp_path):
        time.sleep(0.02)
    time.sleep(0.3)
    first.send_signal(signal.SIGTERM)
    assert first.wait(20) == 75
    (life,) = read_lives(tmp_path)
    assert life.last_word == "stopped" and life.over and life.generation == 1
    saved = float((tmp_path / "t" / "saved-0").read_text())
    assert _train(tmp_path, saved + 0.1, 2).wait(20) == 0
    lives = read_lives(tmp_path)
    assert lives[-1].last_word == "finished" and not overlaps(lives)


def test_two_lives_at_once_are_found(tmp_path: Path) -> None:
    both = [_train(tmp_path, 0.5, generation) for generation in (1, 2)]
    assert [process.wait(20) for process in both] == [0, 0]
    assert "t: worker-0 of generation 1 and worker-0 of generation 2 lived at once" in overlaps(read_lives(tmp_path))[0]


def test_members_of_one_gang_may_live_together() -> None:
    gang = [Life("t", 1, f"worker-{n}", 0.0, 1.0, "finished") for n in range(2)]
    assert not overlaps(gang)
    assert overlaps([*gang, Life("t", 1, "worker-0", 0.9, 2.0, "finished")])
    assert not overlaps([*gang, Life("t", 2, "worker-0", 1.1, 2.0, "finished")])
