"""Launchers in real pods on real kubelets: gangs across nodes, and a node whose cable is cut."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from trainmaster.backends.kubernetes.agent_hub import AgentHub
from trainmaster.backends.kubernetes.facts import PodSeat, RunFacts, RunKey, run_token
from trainmaster.backends.kubernetes.launching import equip, headless_service, launcher_config_map
from trainmaster.model.lease import LeaseRule
from trainmaster.testing.builders import a_job
from trainmaster.testing.kube_cluster import KubeCluster, NoCluster, kubernetes_cluster
from trainmaster.testing.trainer_records import PROGRAM, read_lives
from trainmaster.wire.agent import Progress

HOST = "10.77.0.1"
SECRET = b"k" * 32
LEASE_S = 6.0
PATIENCE_S = 90.0
pytestmark = pytest.mark.slow


class Listener:
    def __init__(self) -> None:
        self.said: list[tuple[Any, ...]] = []

    def begun(self, run: RunKey) -> None:
        self.said.append(("begun", run.job_id))

    def here(self, run: RunKey, member: str, elastic: bool) -> None: ...

    def settled(self, run: RunKey, version: int, members: tuple[str, ...]) -> None: ...

    def progress(self, run: RunKey, member: str, progress: Progress) -> None: ...

    def exited(self, run: RunKey, member: str, code: int, why: str) -> None:
        self.said.append(("exited", run.job_id, member, code))

    def refused(self, run: RunKey, member: str, why: str) -> None:
        self.said.append(("refused", run.job_id, member, why))

    def lapsed(self, run: RunKey, member: str) -> None:
        self.said.append(("lapsed", run.job_id, member))


class Bench:
    def __init__(self, cluster: KubeCluster, records: Path) -> None:
        self.cluster, self.records = cluster, records
        self.listener = Listener()
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self.hub: AgentHub = self.now(
            lambda: AgentHub(
                SECRET, LeaseRule(int(LEASE_S * 1000)), lambda: time.monotonic_ns() // 1_000_000, self.listener
            )
        )
        self.port = asyncio.run_coroutine_threadsafe(self.hub.listen("0.0.0.0", 0), self.loop).result(10)
        cluster.apply(launcher_config_map(), headless_service())

    def now(self, call: Callable[[], Any]) -> Any:
        async def within() -> Any:
            return call()

        return asyncio.run_coroutine_threadsafe(within(), self.loop).result(10)

    def start(self, name: str, nodes: list[str], words: list[str], launcher: bool = True) -> RunKey:
        key = RunKey(name, 1)
        annotations = {} if launcher else {"trainmaster.dev/launcher": "false"}
        facts = RunFacts(
            key, "default", name, "uid", 1, run_token(SECRET, key), (f"{HOST}:{self.port}",), LEASE_S, 3.0, a_job(name),
            {"metadata": {"annotations": annotations}},
        )  # fmt: skip
        seats = [PodSeat(f"worker-{n}", "worker", n, node, 0, 0, len(nodes), 0) for n, node in enumerate(nodes)]
        pods = []
        for seat in seats:
            template = {
                "nodeName": seat.node,
                "volumes": [{"name": "records", "hostPath": {"path": str(self.records)}}],
                "tolerations": [{"operator": "Exists"}],
                "containers": [
                    {
                        "name": "trainer",
                        "image": "registry.local/python:3.11",
                        "imagePullPolicy": "IfNotPresent",
                        "command": words,
                        "volumeMounts": [{"name": "records", "mountPath": "/records"}],
                    }
                ],
            }
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"{name}-w{seat.rank}"}, "spec": template}
            equip(pod, seat, facts)
            pods.append(pod)
        if launcher:
            self.now(lambda: (self.hub.open(facts), [self.hub.admit(key, seat) for seat in seats]))
        self.cluster.apply(*pods)
        return key

    def hear(self, *beginning: Any) -> tuple[Any, ...]:
        deadline_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline_s:
            for words in list(self.listener.said):
                if words[: len(beginning)] == beginning:
                    return words
            time.sleep(0.02)
        pods = self.cluster.kubectl("get", "pods", "-o", "wide", check=False).stdout
        raise AssertionError(f"{beginning} did not come; said: {self.listener.said}; pods: {pods}")


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    if os.geteuid() != 0:
        pytest.skip("real nodes need root")
    records = Path(tempfile.mkdtemp(prefix="tm-records-"))
    try:
        with kubernetes_cluster(fake=0, nodes=2) as cluster:
            if cluster.tool is None:
                pytest.skip("needs a cluster of its own, whose nodes may be cut off")
            yield Bench(cluster, records)
    except NoCluster as error:
        pytest.skip(str(error))
    finally:
        shutil.rmtree(records, ignore_errors=True)


GREET = """
import json, os, socket, time
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if rank == 0:
    server = socket.create_server(("", address[1]))
    heard = sorted(int(server.accept()[0].recv(10)) for _ in range(size - 1))
    json.dump([address[0], heard], open("/records/NAME", "w"))
else:
    for _ in range(300):
        try:
            socket.create_connection(address, 1).sendall(str(rank).encode())
            break
        except OSError:
            time.sleep(0.2)
    else:
        raise SystemExit("rank 0 was not found")
"""


@pytest.mark.parametrize("launcher", [True, False])
def test_a_gang_meets_across_nodes(bench: Bench, launcher: bool) -> None:
    """With the launcher by the pods' addresses, without it by the cluster's names."""
    name = "meet" if launcher else "meet-by-name"
    bench.start(name, ["node0", "node1", "node1"], ["python3", "-c", GREET.replace("NAME", name)], launcher)
    if launcher:
        assert [bench.hear("exited", name, f"worker-{n}")[3] for n in range(3)] == [0, 0, 0]
    deadline_s = time.monotonic() + PATIENCE_S
    while not (bench.records / name).exists() and time.monotonic() < deadline_s:
        time.sleep(0.1)
    master, heard = json.loads((bench.records / name).read_text())
    assert heard == [1, 2]
    assert master.startswith("10.78.") if launcher else master.endswith(".trainmaster-pods.default.svc")


def test_a_node_that_is_cut_off_ends_its_trainer_before_it_is_given_up(bench: Bench) -> None:
    key = bench.start("cut", ["node1"], ["python3", "-c", PROGRAM, "/records", "1000"])
    bench.hear("begun", "cut")
    time.sleep(LEASE_S)
    cut_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    bench.cluster.order("partition", "node1")
    try:
        bench.hear("lapsed", "cut", "worker-0")
        lapsed_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        (life,) = [life for life in read_lives(bench.records) if life.job == "cut"]
        assert life.last_s < lapsed_s, "it was given up while it lived"
        assert life.last_s <= cut_s + LEASE_S + 0.5
        assert lapsed_s <= cut_s + LEASE_S + 3.0
        assert life.last_word == "stopped", "it was told in time to save"
    finally:
        bench.cluster.order("heal", "node1")
    assert bench.now(lambda: bench.hub.attached(key, "worker-0")) is False


def test_a_pod_that_is_deleted_by_hand_is_told(bench: Bench) -> None:
    bench.start("deleted", ["node0"], ["python3", "-c", PROGRAM, "/records", "1000"])
    bench.hear("begun", "deleted")
    bench.cluster.kubectl("delete", "pod", "deleted-w0", "--wait=false")
    assert bench.hear("exited", "deleted")[3] == 75
