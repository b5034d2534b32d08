"""Parameter servers of a live service have a demand and a node, and count in the ledgers."""

from pathlib import Path
from typing import Any

import pytest
from service_bench import Bench

from trainmaster.model.cluster import Node, cluster_of

GiB = 1024
CLUSTER = cluster_of([Node(f"n{k}", "v100", 4, cpu_milli=4000, mem_mib=16 * GiB) for k in range(2)])
SERVED = {"workers": {"min": 1, "max": 1}, "servers": {"min": 2, "max": 2}, "steps_per_s": {"v100": 1}, "steps": 1000}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, nodes=CLUSTER)


def _refused(bench: Bench, **fields: Any) -> dict[str, Any]:
    reply = bench.call("POST", "/jobs", {"command": ["train"], **fields})
    assert reply.status == 400 or reply.status == 422, reply.body
    return reply.json()


def test_servers_have_places_and_take_cpus_and_memory(bench: Bench) -> None:
    job = bench.submit(**SERVED, cpus_per_server=2.5, memory_mib_per_server=3 * GiB)
    bench.pass_s(1)
    places = bench.get(f"/jobs/{job}")["allocation"]
    assert sum(place["servers"] for place in places) == 2
    assert [place["servers"] for place in places] == [1, 1], "two of them do not fit on one node"
    free = bench.plane.live.planned
    assert free.cpu_milli.tolist() == [1500, 1500]
    assert free.mem_mib.tolist() == [13 * GiB, 13 * GiB]
    bench.call("POST", f"/jobs/{job}/cancel")
    bench.pass_s(5)
    assert free.cpu_milli.tolist() == [4000, 4000]


def test_a_server_has_a_cpu_unless_it_is_told_otherwise(bench: Bench) -> None:
    first, second, third = (bench.submit(**{**SERVED, "servers": {"min": 3, "max": 3}}) for _ in range(3))
    bench.pass_s(1)
    assert [bench.state(job) for job in (first, second, third)] == ["running", "running", "pending"]
    bench.submit(**SERVED, cpus_per_server=0)
    assert bench.plane.live.planned.cpu_milli.sum() == 2000
    bench.start()
    assert bench.plane.live.planned.cpu_milli.sum() == 2000, "and after a restart"


def test_servers_that_never_fit_are_refused(bench: Bench) -> None:
    problem = _refused(bench, **SERVED, cpus_per_server=5)
    assert "a server with 5 CPUs never fits" in str(problem)
    problem = _refused(bench, **{**SERVED, "servers": {"min": 9, "max": 9}})
    assert "9 servers never fit" in str(problem) and "--cpus-per-server" in str(problem)


def test_of_a_range_of_servers_no_more_are_asked_for_than_fit(bench: Bench) -> None:
    """Under FIFO, which gives what a job asks for, it would else wait for ever, and others behind it."""
    job = bench.submit(**{**SERVED, "servers": {"min": 1, "max": 20}})
    bench.pass_s(1)
    assert sum(place["servers"] for place in bench.get(f"/jobs/{job}")["allocation"]) == 8


def test_servers_that_a_waiting_job_is_given_later_count_too(bench: Bench) -> None:
    blocker = bench.submit(workers={"min": 8, "max": 8}, steps_per_s={"v100": 1}, steps=1e6)
    plain, sized = bench.submit(), bench.submit(cpus_per_server=2)
    for job in (plain, sized):
        assert bench.call("POST", f"/jobs/{job}/edit", {"servers": {"min": 1, "max": 1}}).status == 200
    bench.call("POST", f"/jobs/{blocker}/cancel")
    bench.pass_s(2)
    assert bench.plane.live.planned.cpu_milli.sum() == 8000 - 1000 - 2000


def test_bandwidths_that_cannot_be_are_refused(bench: Bench) -> None:
    fields = {"workers": {"min": 1, "max": 4}, "servers": {"min": 1, "max": 4}, "worker_mbps": 1000}
    problem = _refused(bench, **fields)
    assert "server_mbps" in str(problem)
    problem = _refused(bench, **fields, server_mbps=900)
    assert "feed no worker" in str(problem)
    problem = _refused(bench, **{**fields, "workers": {"min": 4, "max": 4}, "servers": {"min": 1, "max": 1}},
                       server_mbps=2000)  # fmt: skip
    assert "cannot feed 4 workers" in str(problem)
    problem = _refused(bench, worker_mbps=1, server_mbps=1)
    assert "without parameter servers" in str(problem)


def test_oasis_gives_a_live_job_the_servers_that_it_needs(tmp_path: Path) -> None:
    bench = Bench(tmp_path, nodes=CLUSTER, policy="oasis:slot_s=600")
    job = bench.submit(
        workers={"min": 1, "max": 4}, servers={"min": 1, "max": 4}, worker_mbps=1000, server_mbps=2000,
        steps_per_s={"v100": 1}, steps=10_000, cpus_per_server=1,
    )  # fmt: skip
    bench.pass_s(1)
    places = bench.get(f"/jobs/{job}")["allocation"]
    assert (sum(p["workers"] for p in places), sum(p["servers"] for p in places)) == (4, 2)
    assert bench.plane.live.planned.cpu_milli.sum() == 6000
