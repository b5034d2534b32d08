"""What a job that failed wrote last is shown with it: while it waits for its next attempt, and when it is over."""

from pathlib import Path

from service_bench import Bench

from trainmaster.engine import queries
from trainmaster.model import event as ev
from trainmaster.model.job import JobId

OUTPUT = "  File \"t.py\", line 1, in <module>\nModuleNotFoundError: No module named 'nowhere'"


def _fail(bench: Bench, job: str) -> None:
    generation = queries.generation_of(bench.plane.live, job)
    assert generation is not None
    bench.plane.batch([], [ev.Exited(JobId(job), generation, 1, 0.0, "worker-1 ended with exit code 1", OUTPUT)])


def test_the_error_and_a_hint_are_shown_with_a_job_that_failed(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    job = bench.submit(steps_per_s={"v100": 0.001}, max_attempts=2)
    bench.pass_s(1)
    _fail(bench, job)
    bench.start()
    view = bench.get(f"/jobs/{job}")
    assert (view["state"], view["output"]) == ("pending", OUTPUT), "over a restart of the service too"
    bench.pass_s(20)
    assert not bench.get(f"/jobs/{job}")["output"], "the next attempt has not failed yet"
    _fail(bench, job)
    view = bench.get(f"/jobs/{job}")
    assert (view["state"], view["output"]) == ("failed", OUTPUT)
    assert "no module 'nowhere'" in view["hint"]
    events = bench.get("/events", query=f"job={job}")["events"]
    told = [event["text"] for event in events if event["kind"] == "exited"]
    assert told[0].endswith("ModuleNotFoundError: No module named 'nowhere'")
