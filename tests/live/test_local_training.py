"""Real elastic training under the local backend: grown, shot at and shrunk while it trains, no sample lost."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from trainmaster.model import event as ev
from trainmaster.testing.local_jobs import LocalJobs, devices

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
