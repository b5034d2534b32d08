"""`submit --snapshot` with real processes: what is edited, killed or removed after the submission changes nothing."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.machine import Machine, until

pytestmark = pytest.mark.slow
SCRIPT = "import pathlib\nimport part\nprint('script {0}, module', part.VERSION)\n"


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    here = Machine(tmp_path)
    here.up("--nodes", "v100:1x1")
    yield here
    here.down()


def write(machine: Machine, version: str) -> None:
    (machine.work / "train.py").write_text(SCRIPT.format(version))
    (machine.work / "part.py").write_text(f"VERSION = '{version}'\n")


def stored(machine: Machine) -> dict[str, int]:
    files = machine.home / "snapshots" / "files"
    return {path.name: path.stat().st_size for path in files.rglob("*") if path.is_file()}


def test_queued_jobs_run_the_code_of_their_submission(machine: Machine) -> None:
    write(machine, "old")
    (machine.work / "weights").write_bytes(os.urandom(1 << 20))
    machine.environment["PYTHONPATH"] = f"{machine.work}:{machine.environment.get('PYTHONPATH', '')}"
    blocker = machine.type("submit", "--", "sleep", "600").strip()
    machine.until_state(blocker, "running")
    jobs = [machine.type("submit", "--snapshot", "--", sys.executable, "train.py").strip() for _ in range(2)]
    plain = machine.type("submit", "--", sys.executable, "train.py").strip()
    kept = stored(machine)
    assert 1 << 20 < sum(kept.values()) < (1 << 20) + 10_000, "one copy for both"
    write(machine, "new")
    machine.type("cancel", blocker)
    for job in jobs:
        machine.until_state(job, "finished", "failed")
        assert machine.type("logs", job).strip() == "script old, module old"
    machine.until_state(plain, "finished", "failed")
    assert machine.type("logs", plain).strip() == "script new, module new"
    assert machine.json("job", jobs[0])["request"]["snapshot"] is True
    assert stored(machine) == kept


def test_attempts_share_a_snapshot_and_a_killed_service_leaves_nothing_for_ever(machine: Machine) -> None:
    write(machine, "old")
    script = machine.work / "twice.py"
    script.write_text("import pathlib, sys\nseen = pathlib.Path('seen')\nprint('again' if seen.exists() else 'first')\n"
                      "sys.exit(0 if seen.exists() else seen.write_text('x'))\n")  # fmt: skip
    blocker = machine.type("submit", "--", "sleep", "600").strip()
    machine.until_state(blocker, "running")
    job = machine.type("submit", "--snapshot", "--", sys.executable, "twice.py").strip()
    script.write_text("raise SystemExit('edited')\n")
    # Killed between copy and commit: the copy is there, the job is not.
    write(machine, "never committed")
    from trainmaster.backends.local.snapshots import SnapshotStore

    lost = SnapshotStore(machine.home).take(str(machine.work), None).name
    machine.down(signal.SIGKILL)
    hours_ago_s = time.time() - 7200
    for path in (machine.home / "snapshots").rglob("*"):
        os.utime(path, (hours_ago_s, hours_ago_s))
    machine.up("--nodes", "v100:1x1")
    trees = machine.home / "snapshots" / "trees"
    until(lambda: not (trees / f"{lost}.json").exists(), "the lost copy to be removed", 60)
    assert len(list(trees.iterdir())) == 1
    machine.type("cancel", blocker)
    machine.until_state(job, "finished", "failed")
    assert machine.json("job", job)["attempts"] == 2
    assert machine.type("logs", job).strip() == "again"
    assert not (machine.work / "seen").exists()


def test_what_cannot_be_a_snapshot_is_refused(machine: Machine) -> None:
    write(machine, "old")
    told = machine.type("submit", "--snapshot", "--", sys.executable, machine.work / "train.py", code=2)
    assert "would not come from the snapshot" in told
    ours = machine.environment
    machine.environment = {**ours, "TRAINMASTER_URL": "http://192.0.2.1:7070", "TRAINMASTER_TOKEN": "x" * 16}
    assert "on another machine" in machine.type("submit", "--snapshot", "--", "true", code=2)
    machine.environment = ours
    assert machine.json("queue", "--all")["total"] == 0
