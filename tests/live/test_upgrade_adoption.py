"""Jobs of the version before the supervisor go on under a service of this one: its files and messages are read.

The supervisors here are real ones of that version, taken from the history of this repository.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.local_jobs import LocalJobs, devices, is_alive
from trainmaster.gang.actions import Seat, seat_to_json
from trainmaster.model import event as ev
from trainmaster.model.job import JobSpec

BEFORE = "6920880"
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def old_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("before")
    command = ["git", "-C", str(ROOT), "archive", BEFORE, "src/trainmaster"]
    archive = subprocess.run(command, capture_output=True, check=False)
    if archive.returncode:
        pytest.skip(f"no commit {BEFORE} here: {archive.stderr.decode()}")
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    return folder / "src"


class OldJobs(LocalJobs):
    """A service whose supervisors are supervisors of the old version, until this version takes over."""

    def __init__(self, home: Path, old_source: Path) -> None:
        self._patches = pytest.MonkeyPatch()
        self._patches.setattr("trainmaster.backends.local.backend.SUPERVISOR", "trainmaster.backends.local.keeper")
        self._patches.setenv("PYTHONPATH", str(old_source))
        super().__init__(home)

    def take_over(self) -> None:
        self._patches.undo()
        self.restart()


@pytest.fixture
def old_jobs(tmp_path: Path, old_source: Path) -> Iterator[OldJobs]:
    jobs = OldJobs(tmp_path, old_source)
    yield jobs
    jobs.close()


def _supervisor_is_old(jobs: LocalJobs, spec: JobSpec, old_source: Path) -> bool:
    worker = min(jobs.pids(spec))
    pid = Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[1]
    return f"PYTHONPATH={old_source}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")


def test_an_elastic_job_is_resized_and_stopped(old_jobs: OldJobs, old_source: Path) -> None:
    spec = old_jobs.emulate("upgrade", 1_000_000, workers=(1, 4), size=2)
    old_jobs.expect(ev.Progressed, spec)
    senior = old_jobs.member_pid(spec, "worker-0")
    assert _supervisor_is_old(old_jobs, spec, old_source)
    old_jobs.take_over()
    seq = old_jobs.resize(spec, devices(3))
    assert old_jobs.expect(ev.Resized, spec).seq == seq
    assert is_alive(senior) and len(old_jobs.pids(spec)) == 3
    assert _supervisor_is_old(old_jobs, spec, old_source)
    old_jobs.stop(spec)
    saved = old_jobs.expect(ev.Stopped, spec).work_saved
    assert saved > 0
    old_jobs.emulate("upgrade", 1_000_000, workers=(1, 4), size=2, generation=2)
    assert old_jobs.expect(ev.Started, spec).work_done == saved
    assert not _supervisor_is_old(old_jobs, spec, old_source)


def test_a_job_that_ended_while_no_service_ran_is_reported(old_jobs: OldJobs, tmp_path: Path) -> None:
    go = tmp_path / "go"
    spec = old_jobs.run("ended", ["sh", "-c", f"while [ ! -e {go} ]; do sleep 0.02; done; exit 3"])
    old_jobs.expect(ev.Started, spec)
    old_jobs.backend.close()
    go.touch()
    old_jobs.until(lambda: (old_jobs.folder(spec) / "ended.json").exists(), "its keeper has written the end")
    old_jobs.take_over()
    old_jobs.observe()
    (entry,) = old_jobs.expect(ev.Inventory).entries
    assert (entry.job_id, entry.exit_code) == (spec.id, 3)


def test_the_orders_of_this_version_have_the_fields_that_keepers_know(old_source: Path) -> None:
    """A supervisor refuses a seat with a field that it does not know."""
    program = "import json, sys; from trainmaster.backends.local.slots import slot_from_json; "
    program += "print(slot_from_json(json.load(sys.stdin)).place)"
    seat = seat_to_json(Seat("worker", "n0", devices=(2, 1)))
    result = subprocess.run(
        [sys.executable, "-P", "-c", program], input=json.dumps(seat), text=True, capture_output=True, check=True,
        env={"PYTHONPATH": str(old_source)},
    )  # fmt: skip
    assert result.stdout.strip() == "('worker', 'n0', (1, 2))"
