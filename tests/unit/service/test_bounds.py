"""No single request may take the service or the cluster from everybody else."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from service_bench import ANN_TOKEN, BOB_TOKEN, Bench

from trainmaster.dst.control_plane.inline_asgi import Reply
from trainmaster.stores.sqlite import SqliteStore


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, nodes="v100=4x4")


def post(bench: Bench, **fields: Any) -> Reply:
    return bench.call("POST", "/jobs", {"command": ["train"], **fields}, token=ANN_TOKEN)


@pytest.mark.parametrize("policy", ["fifo", "srtf", "las", "tiresias"])
def test_a_range_above_the_cluster_starts_with_what_fits(tmp_path: Path, policy: str) -> None:
    bench = Bench(tmp_path, nodes="v100=4x4", policy=policy)
    large = bench.submit(workers={"min": 1, "max": 32}, steps=100)
    behind = bench.submit(token=BOB_TOKEN)
    bench.pass_s(5)
    assert sum(place["workers"] for place in bench.get(f"/jobs/{large}")["allocation"]) == 4
    bench.pass_s(5_000)
    assert (bench.state(large), bench.state(behind)) == ("finished", "finished")


def test_what_fits_counts_parts_of_gpus(tmp_path: Path) -> None:
    bench = Bench(tmp_path, nodes="v100=4x4")
    halves = bench.submit(workers={"min": 1, "max": 32}, gpus_per_worker=0.5)
    bench.pass_s(5)
    assert sum(place["workers"] for place in bench.get(f"/jobs/{halves}")["allocation"]) == 8


def test_a_resize_above_the_cluster_does_not_block_it(bench: Bench) -> None:
    job = bench.submit(workers={"min": 1, "max": 2})
    bench.call("POST", f"/jobs/{job}/pause")
    bench.pass_s(30)
    assert bench.call("POST", f"/jobs/{job}/resize", {"workers": {"min": 1, "max": 32}}).status == 200
    bench.call("POST", f"/jobs/{job}/resume")
    bench.pass_s(30)
    assert bench.state(job) == "running"


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"servers": {"min": 300, "max": 300}}, "servers.max"),
        ({"servers": {"min": 0, "max": 300}}, "servers.max"),
        ({"workers": {"min": 300, "max": 300}, "gpus_per_worker": 0}, "workers.max"),
        ({"workers": {"min": 1, "max": 100_000}, "gpus_per_worker": 0.001}, "workers.max"),
    ],
)
def test_processes_without_gpus_are_bounded_by_the_cluster(bench: Bench, fields: dict[str, Any], where: str) -> None:
    reply = post(bench, **fields)
    assert (reply.status, reply.json()["where"]) == (422, where)
    assert "at most 64" in reply.json()["expected"]


def test_a_resize_is_bounded_as_a_submission(bench: Bench) -> None:
    job = bench.submit(workers={"min": 1, "max": 2}, gpus_per_worker=0)
    assert bench.call("POST", f"/jobs/{job}/resize", {"workers": {"min": 1, "max": 300}}).status == 422


def test_a_large_array_is_refused_before_the_store_grows(tmp_path: Path) -> None:
    bench = Bench(tmp_path, SqliteStore(tmp_path / "trainmaster.db", durable=False))
    before = sum(path.stat().st_size for path in tmp_path.iterdir())
    reply = post(bench, array=200, env={f"K{number}": "x" * 100_000 for number in range(9)})
    assert (reply.status, reply.json()["where"]) == (422, "array")
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < before + (1 << 20)


def test_after_is_bounded_and_looked_up_in_one_walk(bench: Bench) -> None:
    assert post(bench, after=["x"] * 1_600).json()["where"] == "after"
    bench.plane.batch([])
    names = [f"name-{number}" for number in range(500)]
    for name in names:
        bench.submit(name=name)
    bench.submit(array=5_000)
    begun = time.process_time()
    reply = post(bench, after=[*names, *names])
    assert reply.status == 201 and time.process_time() - begun < 0.5
    assert bench.get(f"/jobs/{reply.json()['id']}")["state"] == "pending"


@pytest.mark.parametrize("weight", [1e300, 1e16, 0, -1])
def test_weights_are_bounded(bench: Bench, weight: float) -> None:
    assert post(bench, weight=weight).status == 422
    assert bench.call("PUT", "/entities/team", {"weight": weight}).status == 422
