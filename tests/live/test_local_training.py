"""Real training under the local backend: grown, shot at and shrunk while it trains, and nothing of it lost."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from support.local_jobs import LocalJobs, devices
from trainmaster.backends.local.site import Options
from trainmaster.model import event as ev

PROGRAM = Path(__file__).resolve().parent / "programs" / "paced_training.py"


@pytest.mark.slow
def test_training_goes_on_through_resizes_and_deaths(tmp_path: Path) -> None:
    np = pytest.importorskip("numpy")
    pytest.importorskip("torch")
    jobs = LocalJobs(tmp_path, wait_s=90.0)
    spec = jobs.run("train", [sys.executable, str(PROGRAM), str(tmp_path)], workers=(1, 4), size=1)
    try:
        jobs.expect(ev.Started, spec)
        jobs.expect(ev.Progressed, spec)
        senior = jobs.member_pid(spec, "worker-0")
        jobs.resize(spec, devices(3))
        grown = jobs.expect(ev.Resized, spec)
        assert len(jobs.pids(spec)) == 3
        os.kill(jobs.member_pid(spec, "worker-1"), signal.SIGKILL)
        jobs.until(lambda: jobs.expect(ev.Progressed, spec).work_done > grown.work_done + 5, "the others go on")
        jobs.resize(spec, devices(1))
        jobs.expect(ev.Resized, spec)
        assert jobs.pids(spec) == [senior]  # the same process all along
        (tmp_path / "fast").touch()
        event = jobs.expect(ev.Exited, spec)
        assert (event.code, event.work_saved) == (0, 480.0), event  # 40 epochs of 12 steps
    finally:
        jobs.close()
    counts = np.load(tmp_path / "counts.npy")
    assert np.allclose(counts, 40.0), counts  # every sample took part exactly once in every epoch


@pytest.mark.slow
def test_a_parameter_server_job_is_resized_in_both_roles_and_survives_a_server(tmp_path: Path) -> None:
    """Each acknowledged step adds 1 to every parameter: in the end the sums must agree with the workers' notes."""
    pytest.importorskip("numpy")
    jobs = LocalJobs(tmp_path, wait_s=90.0, options=Options(grace_s=30.0))
    notes = tmp_path / "notes"
    notes.mkdir()
    program = PROGRAM.parents[2] / "runtime" / "programs" / "counting_member.py"
    command = [sys.executable, str(program), str(notes), "20000", "1000000", '{"replica_lag": 0}', "0.01"]
    spec = jobs.run("ps", command, workers=(1, 4), size=2, servers=2)
    try:
        jobs.expect(ev.Started, spec)
        work = jobs.expect(ev.Progressed, spec).work_done
        for allocation in (devices(3, servers=3), devices(2, servers=1), devices(2, servers=2)):
            jobs.resize(spec, allocation)
            jobs.expect(ev.Resized, spec)
            jobs.until(lambda: jobs.expect(ev.Progressed, spec).work_done > work + 20, "the work goes on")  # noqa: B023
            work = jobs.seen[-1].work_done  # type: ignore[union-attr]
        os.kill(jobs.member_pid(spec, "server-3"), signal.SIGKILL)
        assert jobs.member_pid(spec, "server-4")
        jobs.until(lambda: jobs.expect(ev.Progressed, spec).work_done > work + 20, "the work goes on")
        jobs.stop(spec)
        saved = jobs.expect(ev.Stopped, spec).work_saved
    finally:
        jobs.close()
    assert saved == sum(int(path.read_text() or 0) for path in notes.glob("*.acked"))
