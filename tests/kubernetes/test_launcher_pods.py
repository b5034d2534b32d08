"""Launchers in real pods on real kubelets: gangs across nodes, and a node whose cable is cut."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.kubernetes.cluster import KubeCluster, own_cluster
from support.launcher_attempts import LauncherAttempts
from support.trainer_records import PROGRAM, read_lives
from trainmaster.backends.kubernetes.attempts.observations import PodSeat, RunFacts, RunKey, run_token
from trainmaster.backends.kubernetes.attempts.trainer_container import equip, headless_service, launcher_config_map
from trainmaster.backends.kubernetes.launchers.hub import AgentHub
from trainmaster.model.lease import LeaseRule
from trainmaster.testing.builders import a_job

HOST = "10.77.0.1"
SECRET = b"k" * 32
LEASE_S = 6.0
PATIENCE_S = 120.0
ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.slow


def _site() -> str:
    """Packages of this machine's Python, PyTorch among them: of the same minor version as the image's."""
    return str(Path(np.__file__).parents[1])


class Bench:
    def __init__(self, cluster: KubeCluster, records: Path) -> None:
        self.cluster, self.records = cluster, records
        self.attempts = LauncherAttempts()
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self.hub: AgentHub = self.now(
            lambda: AgentHub(
                SECRET, LeaseRule(int(LEASE_S * 1000)), lambda: time.monotonic_ns() // 1_000_000, self.attempts
            )
        )
        self.attempts.hub = self.hub
        self.port = asyncio.run_coroutine_threadsafe(self.hub.listen("0.0.0.0", 0), self.loop).result(10)
        cluster.apply(launcher_config_map(), headless_service())

    def now(self, call: Callable[[], Any]) -> Any:
        async def within() -> Any:
            return call()

        return asyncio.run_coroutine_threadsafe(within(), self.loop).result(10)

    def start(self, name: str, nodes: list[str], words: list[str], launcher: bool = True) -> RunKey:
        seats = [PodSeat(f"worker-{n}", "worker", n, node, 0, 0, len(nodes), 0) for n, node in enumerate(nodes)]
        return self.add(name, seats, words, launcher)

    def add(self, name: str, seats: list[PodSeat], words: list[str], launcher: bool = True) -> RunKey:
        """Pods for these members, of a new attempt or of one that runs."""
        key = RunKey(name, 1)
        annotations = {} if launcher else {"trainmaster.dev/launcher": "false"}
        facts = RunFacts(
            key, "default", name, "uid", 1, run_token(SECRET, key), (f"{HOST}:{self.port}",), LEASE_S, 3.0, a_job(name),
            {"metadata": {"annotations": annotations}},
        )  # fmt: skip
        folders = {"records": str(self.records), "site": _site(), "source": str(ROOT)}
        pods = []
        for seat in seats:
            template = {
                "nodeName": seat.node,
                "volumes": [{"name": name, "hostPath": {"path": path}} for name, path in folders.items()],
                "tolerations": [{"operator": "Exists"}],
                "containers": [
                    {
                        "name": "trainer",
                        "image": "registry.local/python:3.11",
                        "imagePullPolicy": "IfNotPresent",
                        "command": words,
                        "env": [
                            {"name": "PYTHONPATH", "value": "/site:/source/src"},
                            {"name": "TRAINMASTER_CHECKPOINT_DIR", "value": f"/records/saved-{name}"},
                        ],
                        "volumeMounts": [{"name": name, "mountPath": f"/{name}"} for name in folders],
                    }
                ],
            }
            pod = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": f"{name}-{seat.role[0]}{seat.rank}"},
                "spec": template,
            }
            equip(pod, seat, facts)
            pods.append(pod)
        if launcher:
            self.now(lambda: self.attempts.start(facts, seats))
        self.cluster.apply(*pods)
        return key

    @property
    def said(self) -> list[tuple[Any, ...]]:
        """(what, job, ...): members of "settled", work and loss of "progress", else member and what it said."""
        found: list[tuple[Any, ...]] = []
        for what, key, *words in list(self.attempts.said_so):
            if what == "settled":
                words = words[1:]
            elif what == "progress":
                words = [words[1].work_done, words[1].loss]
            found.append((what, key.job_id, *words))
        return found

    def progress(self, name: str) -> list[tuple[float, float]]:
        """Work and loss, as reported."""
        return [(said[2], said[3]) for said in self.said if said[:2] == ("progress", name) and said[3]]

    def trains_on(self, name: str, steps: float) -> None:
        target = max((work for work, _ in self.progress(name)), default=0.0) + steps
        deadline_s = time.monotonic() + PATIENCE_S
        while max((work for work, _ in self.progress(name)), default=0.0) < target:
            assert time.monotonic() < deadline_s, f"no progress of {name}: {self.said[-5:]}"
            time.sleep(0.1)

    def hear(self, *beginning: Any) -> tuple[Any, ...]:
        deadline_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline_s:
            for words in list(self.said):
                if words[: len(beginning)] == beginning:
                    return words
            time.sleep(0.02)
        pods = self.cluster.kubectl("get", "pods", "-o", "wide", check=False).stdout
        raise AssertionError(f"{beginning} did not come; said: {self.said}; pods: {pods}")


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with own_cluster(2) as (cluster, records):
        yield Bench(cluster, records)


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


def _falls(losses: list[float]) -> bool:
    """The mean of the last fifth is well below that of the first."""
    fifth = max(1, len(losses) // 5)
    return float(np.mean(losses[-fifth:])) < 0.8 * float(np.mean(losses[:fifth]))


def test_a_pytorch_job_grows_and_shrinks_across_nodes_while_it_trains(bench: Bench) -> None:
    """gloo between pods of different nodes; the senior is among those who leave."""
    pytest.importorskip("torch")
    words = ["python3", "/source/examples/image_classifier.py", "--epochs", "1000"]
    key = bench.start("torch", ["node0"], words)
    bench.hear("settled", "torch", ("worker-0",))
    bench.trains_on("torch", 10)
    bench.add("torch", [PodSeat("worker-1", "worker", 1, "node1", 0, 0, 2, 0)], words)
    bench.hear("settled", "torch", ("worker-0", "worker-1"))
    bench.trains_on("torch", 50)
    bench.now(lambda: bench.attempts.dismiss(key, ["worker-0"]))
    assert bench.hear("exited", "torch", "worker-0")[3] == 0
    bench.hear("settled", "torch", ("worker-1",))
    bench.trains_on("torch", 50)
    works = [work for work, _ in bench.progress("torch")]
    assert works == sorted(works), "work was lost"
    assert _falls([loss for _, loss in bench.progress("torch")])
    bench.now(lambda: bench.attempts.stop(key, "enough", 20.0))
    assert bench.hear("exited", "torch", "worker-1")[3] == 75


def test_a_parameter_server_job_grows_and_shrinks_across_nodes(bench: Bench) -> None:
    words = ["python3", "/source/examples/matrix_factorisation_ps.py", "--steps", "1000000"]
    first = [
        PodSeat("worker-0", "worker", 0, "node0", 0, 0, 1, 1),
        PodSeat("server-0", "server", 0, "node1", 0, 0, 1, 1),
    ]
    key = bench.add("ps", first, words)
    bench.hear("settled", "ps")
    bench.trains_on("ps", 30)
    more = [
        PodSeat("worker-1", "worker", 1, "node1", 0, 0, 2, 2),
        PodSeat("server-1", "server", 1, "node0", 0, 0, 2, 2),
    ]
    bench.add("ps", more, words)
    deadline_s = time.monotonic() + PATIENCE_S
    while not any(said[:2] == ("settled", "ps") and len(said[2]) == 4 for said in bench.said):
        assert time.monotonic() < deadline_s, bench.said[-5:]
        time.sleep(0.1)
    bench.trains_on("ps", 30)
    bench.now(lambda: bench.attempts.dismiss(key, ["server-0", "worker-0"]))
    assert bench.hear("exited", "ps", "server-0")[3] == 0
    assert bench.hear("exited", "ps", "worker-0")[3] == 0
    bench.trains_on("ps", 30)
    assert _falls([loss for _, loss in bench.progress("ps")])
    bench.now(lambda: bench.attempts.stop(key, "enough", 20.0))
    bench.hear("exited", "ps", "worker-1")
