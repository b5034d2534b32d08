"""Elastic by default: a job starts with what fits, takes idle GPUs in place, and gives them back to who waits."""

from pathlib import Path
from typing import Any

import pytest
from service_bench import Bench

from trainmaster.model.command import Resize, Stop

QUEUES = ("fifo", "sjf", "srtf", "las", "tiresias")
JOB: dict[str, Any] = {"steps": 1e6, "steps_per_s": {"v100": 1}}


def _bench(tmp_path: Path, policy: str = "fifo", fill: bool = True) -> Bench:
    return Bench(tmp_path, nodes="v100:1x4", policy=policy, elastic_fill=fill)


def _workers(bench: Bench, job: str) -> int:
    return sum(place["workers"] for place in bench.get(f"/jobs/{job}")["allocation"])


def _never_stopped(bench: Bench, job: str) -> bool:
    return not any(isinstance(command, Stop) and command.job_id == job for command in bench.performed)


@pytest.mark.parametrize("policy", QUEUES)
def test_it_starts_with_what_fits_grows_and_gives_back_in_place(tmp_path: Path, policy: str) -> None:
    bench = _bench(tmp_path, policy)
    rigid = bench.submit(**JOB, workers={"min": 3, "max": 3})
    bench.pass_s(1)
    elastic = bench.submit(**{**JOB, "steps": 1e5}, workers={"min": 1, "max": 4})
    bench.pass_s(2)
    assert _workers(bench, elastic) == 1, "three are taken"
    bench.call("POST", f"/jobs/{rigid}/cancel")
    bench.pass_s(3)
    assert _workers(bench, elastic) == 4, "idle ones are offered"
    other = bench.submit(**{**JOB, "steps": 10}, workers={"min": 2, "max": 2})
    bench.pass_s(3)
    assert (_workers(bench, elastic), _workers(bench, other)) == (2, 2), "taken back by shrinking"
    bench.pass_s(20)
    assert bench.state(other) == "finished"
    assert _workers(bench, elastic) == 4
    assert _never_stopped(bench, elastic)
    assert bench.get(f"/jobs/{elastic}")["attempts"] == 1
    assert bench.plane.live.plans_refused == 0


def test_a_strict_queue_stays_one(tmp_path: Path) -> None:
    bench = _bench(tmp_path)
    bench.submit(**JOB, workers={"min": 3, "max": 3})
    bench.submit(**JOB, workers={"min": 4, "max": 4})
    behind = bench.submit(**JOB, workers={"min": 1, "max": 4})
    bench.pass_s(5)
    assert bench.state(behind) == "pending"


def test_the_setting_turns_it_off(tmp_path: Path) -> None:
    bench = _bench(tmp_path, fill=False)
    bench.submit(**JOB, workers={"min": 3, "max": 3})
    elastic = bench.submit(**JOB, workers={"min": 1, "max": 4})
    bench.pass_s(3)
    assert bench.state(elastic) == "pending"


def test_a_wider_range_grows_in_place_and_a_narrower_one_shrinks(tmp_path: Path) -> None:
    bench = _bench(tmp_path)
    job = bench.submit(**JOB, workers={"min": 1, "max": 4})
    bench.pass_s(1)
    for size, workers in (("1", 1), ("1..4", 4), ("2", 2), ("4", 4)):
        low, _, high = size.partition("..")
        bench.call("POST", f"/jobs/{job}/resize", {"workers": {"min": int(low), "max": int(high or low)}})
        bench.pass_s(2)
        assert _workers(bench, job) == workers, size
    assert _never_stopped(bench, job)
    assert sum(isinstance(command, Resize) for command in bench.performed) == 4
