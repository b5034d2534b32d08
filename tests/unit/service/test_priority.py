"""Priority through the service: the higher band takes the place of the lower one, and everybody is told why."""

from pathlib import Path
from typing import Any

from service_bench import Bench

JOB: dict[str, Any] = {"steps": 1e6, "steps_per_s": {"v100": 1}, "workers": {"min": 4, "max": 4}}


def test_a_higher_priority_takes_over_and_the_other_comes_back(tmp_path: Path) -> None:
    bench = Bench(tmp_path, nodes="v100:1x4", min_run_ms=30_000)
    low = bench.submit(**JOB, preemptible=True)
    bench.pass_s(10)
    high = bench.submit(**{**JOB, "steps": 100}, priority=3)
    bench.pass_s(10)
    assert (bench.state(low), bench.state(high)) == ("running", "pending"), "it has run for 20 s"
    bench.pass_s(12)
    assert (bench.state(low), bench.state(high)) == ("pending", "running")
    bench.start()
    view = bench.get(f"/jobs/{low}")
    assert view["why"] == "priority"
    assert view["reason"] == f"needs 4 GPUs; jobs of priority 3 come first; held by {high} (4)"
    bench.pass_s(110)
    assert (bench.state(low), bench.state(high)) == ("running", "finished")
    assert bench.get(f"/jobs/{low}")["preemptions"] == 1


def test_an_edit_moves_a_job_to_another_band(tmp_path: Path) -> None:
    bench = Bench(tmp_path, nodes="v100:1x4", min_run_ms=30_000)
    bench.submit(**{**JOB, "steps": 50})
    first, second = bench.submit(**JOB), bench.submit(**JOB)
    assert bench.call("POST", f"/jobs/{second}/edit", {"priority": 1}).status == 200
    assert [bench.get(f"/jobs/{job}")["position"] for job in (first, second)] == [2, 1]
    bench.pass_s(60)
    assert (bench.state(first), bench.state(second)) == ("pending", "running")


def test_plain_commands_are_not_preempted_by_any_priority(tmp_path: Path) -> None:
    bench = Bench(tmp_path, nodes="v100:1x4", min_run_ms=0)
    low, high = bench.submit(**JOB), bench.submit(**JOB, priority=1000)
    bench.pass_s(600)
    assert (bench.state(low), bench.state(high)) == ("running", "pending")
