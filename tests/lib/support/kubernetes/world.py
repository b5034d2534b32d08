"""Trainmaster on a real cluster with everything that a fault run needs: replicas, jobs, and the trainers' records.

The replicas are processes of this machine, outside the cluster, started again when they die as a Deployment would.
Jobs are TrainingJobs of `support.trainer_records`; what is believed of them is what they wrote down.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from support.kubernetes.cluster import KubeCluster
from support.loop_thread import LoopThread
from support.trainer_records import PROGRAM, Life, read_lives
from trainmaster.backends.kubernetes.api import paths
from trainmaster.backends.kubernetes.api.client import ApiError, KubeClient, NotFound
from trainmaster.backends.kubernetes.api.config import load_config
from trainmaster.backends.kubernetes.config_map_blobs import ConfigMapBlobs
from trainmaster.backends.kubernetes.nodes import cluster_model
from trainmaster.engine.persistence import ended_from_record
from trainmaster.engine.records import Ended
from trainmaster.estimate.prices import PRICE_PER_GPU_HOUR
from trainmaster.estimate.profiles import JobProfiles
from trainmaster.forecast.situation import Costs
from trainmaster.forecast.worker_request import costs_of
from trainmaster.model.cluster import Cluster
from trainmaster.service.control.forecasts import PROFILES
from trainmaster.service.kubernetes.session import NAME
from trainmaster.stores.journal import JournalStore

HOST = "10.77.0.1"
"""Where pods of the test cluster reach this machine."""
NAMESPACE = "trainmaster-system"
IMAGE = "registry.local/python:3.11"
ENDED = ("finished", "failed", "cancelled", "rejected")


class NotInTime(AssertionError):
    """Something that had to happen did not."""


@dataclass
class Replica:
    """One process of the service."""

    number: int
    command: list[str]
    folder: Path
    env: dict[str, str]
    process: subprocess.Popen[bytes] | None = None
    log_start: int = 0
    """Where the words of the present process begin."""

    def start(self) -> None:
        if self.process is not None and self.process.poll() is None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / "log", "ab") as log:
            self.log_start = log.tell()
            self.process = subprocess.Popen(
                self.command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=self.env, start_new_session=True
            )

    def is_prepared(self) -> bool:
        """Whether the process that runs now could lead at once, by its own word."""
        return b"prepared to lead" in (self.folder / "log").read_bytes()[self.log_start :]

    def kill(self, number: int = signal.SIGKILL) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)
            self.process.wait(60)


@dataclass
class Probe:
    """A job that was submitted right after a fault (at `fault_s` of the clock since boot), how many seconds later it
    had its nodes, and how many its kubelet took it up (whole seconds, by the kubelet's own stamp)."""

    job: str
    fault_s: float
    placed_s: float
    taken_up_s: float | None = None


@dataclass
class World:
    cluster: KubeCluster
    records: Path
    folder: Path
    lease_s: float = 10.0
    policy: str = "fifo:backfill=true"
    n_replicas: int = 2
    options: tuple[str, ...] = ()
    replicas: list[Replica] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    """Work of each job."""
    probes: list[Probe] = field(default_factory=list)
    chosen: set[str] = field(default_factory=set)
    """Jobs that a fault is about to hit."""
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def open(self) -> None:
        self._loop = LoopThread("fault-run")
        self.client = KubeClient(load_config(self.cluster.kubeconfig))
        self._loop.call(self.client.open(), 30)
        self.ports = {}
        for number in range(self.n_replicas):
            port, agent_port = free_port(), free_port()
            self.ports[str(agent_port)] = self.ports[str(port)] = number
            words = ["up", "--backend", "kubernetes", "--kubeconfig", str(self.cluster.kubeconfig), "--namespace",
                     NAMESPACE, "--home", str(self.folder / f"replica-{number}"), "--port", str(port), "--agent-host",
                     HOST, "--agent-port", str(agent_port), "--policy", self.policy, "--lease", f"{self.lease_s:g}",
                     *self.options]  # fmt: skip
            start = "import sys; from trainmaster.cli.main import main; sys.exit(main())"
            replica = Replica(
                number, [sys.executable, "-c", start, *words], self.folder / f"replica-{number}", dict(os.environ)
            )
            replica.start()
            self.replicas.append(replica)

    def close(self) -> None:
        for replica in self.replicas:
            replica.kill(signal.SIGTERM)
            replica.kill()
        self._loop.call(self.client.close(), 30)
        self._loop.close()

    # -- the API ---------------------------------------------------------------------------------------

    def ask(self, method: str, *arguments: Any, timeout_s: float = 60.0, **options: Any) -> Any:
        return self._loop.call(getattr(self.client, method)(*arguments, **options), timeout_s)

    def leader(self) -> int | None:
        """The number of the replica that the Lease names, if it lives."""
        with contextlib.suppress(ApiError, TimeoutError):
            leases = self.ask("get", paths.leases(NAMESPACE), timeout_s=10)["items"]
            for lease in leases:
                address = (lease["metadata"].get("annotations") or {}).get("trainmaster.dev/address", "")
                number = self.ports.get(address.rpartition(":")[2].strip("/"))
                if number is not None and lease["spec"].get("holderIdentity"):
                    process = self.replicas[number].process
                    return number if process is not None and process.poll() is None else None
        return None

    def submit(
        self, seconds: float, workers: int = 1, image: str = IMAGE, pull: str = "IfNotPresent", **spec: Any
    ) -> str:
        name = f"t{next(self._numbers):04d}"
        container = {
            "name": "trainer", "image": image, "imagePullPolicy": pull,
            "command": ["python3", "-c", PROGRAM, "/records", f"{seconds:g}"],
            "volumeMounts": [{"name": "records", "mountPath": "/records"}],
        }  # fmt: skip
        template = {"spec": {"containers": [container], "volumes": [
            {"name": "records", "hostPath": {"path": str(self.records)}}]}}  # fmt: skip
        body = {
            "apiVersion": "trainmaster.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": name},
            "spec": {"workers": {"min": workers, "max": workers}, "maxAttempts": 100, "template": template, **spec},
        }  # fmt: skip
        until_s = time.monotonic() + 120
        while True:
            try:
                self.ask("create", paths.training_jobs("default"), body)
                break
            except (ApiError, TimeoutError) as error:  # the API server may be the one that is down
                if getattr(error, "status", 0) == 409:
                    break
                if time.monotonic() > until_s:
                    raise
                time.sleep(0.1)
        self.names.append(name)
        self.seconds[name] = seconds
        return name

    def statuses(self) -> dict[str, dict[str, Any]]:
        items = self.ask("get", paths.training_jobs("default"))["items"]
        return {item["metadata"]["name"]: item.get("status") or {} for item in items}

    def pods(self, job: str = "") -> list[dict[str, Any]]:
        items = self.ask("get", paths.pods("default"))["items"]
        return [pod for pod in items if not job or pod["metadata"].get("labels", {}).get("trainmaster.dev/job") == job]

    def note_kubelets(self) -> None:
        """When kubelets took up the pods of probes; asked while the pods are there."""
        since_boot_s = boot_s() - time.time()
        for probe in self.probes:
            for pod in self.pods(probe.job):
                stamp = pod.get("status", {}).get("startTime")
                if stamp and probe.taken_up_s is None:
                    probe.taken_up_s = datetime.fromisoformat(stamp).timestamp() + since_boot_s - probe.fault_s

    def ended(self) -> tuple[dict[str, Ended], Costs]:
        """Jobs by name, and what starting and ending cost: as the service's own books have it, which go by the first
        and the last report of each trainer."""
        blobs = ConfigMapBlobs(self.client, self._loop, NAMESPACE, NAME, may_write=lambda: False)
        store = JournalStore(blobs, "reader")
        found = [ended_from_record(record) for record in store.load().ended.values()]
        return {end.spec.name: end for end in found}, costs_of(JobProfiles.from_json(store.document(PROFILES) or {}))

    def nodes(self) -> Cluster:
        nodes = [cluster_model.read_node(node, cluster_model.GPU_RESOURCES).node
                 for node in self.ask("get", paths.nodes())["items"]]  # fmt: skip
        return Cluster(tuple(sorted(nodes, key=lambda node: node.id)), PRICE_PER_GPU_HOUR)

    def delete_jobs(self) -> None:
        for name in self.names:
            with contextlib.suppress(NotFound):
                self.ask("delete", f"{paths.training_jobs('default')}/{name}")
        self.names.clear()
        self.seconds.clear()
        self.chosen.clear()

    # -- the trainers' own records ---------------------------------------------------------------------

    def lives(self, job: str) -> list[Life]:
        return [life for life in read_lives(self.records, job) if life.job == job]

    def alive_now(self, job: str, workers: int = 1) -> bool:
        now_s = boot_s()
        return sum(now_s - life.last_s < 0.5 and not life.over for life in self.lives(job)) >= workers

    def until(self, what: str, check: Callable[[], Any], seconds: float = 120.0, every_s: float = 0.1) -> Any:
        deadline_s = time.monotonic() + seconds
        while True:
            with contextlib.suppress(ApiError):
                if found := check():
                    return found
            if time.monotonic() > deadline_s:
                raise NotInTime(f"{what} within {seconds:g} s; {self.story()}")
            time.sleep(every_s)

    def story(self) -> str:
        with contextlib.suppress(Exception):
            states = {name: (s.get("state"), s.get("reason"), s.get("message")) for name, s in self.statuses().items()}
            waiting = {name: state for name, state in states.items() if state[0] not in ENDED}
            return f"not ended: {json.dumps(waiting)}; leader: {self.leader()}"
        return "the API server does not answer"


def boot_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def world(cluster: KubeCluster, folder: Path, **options: Any) -> Iterator[World]:
    """Installs what a cluster needs, and starts the replicas."""
    records = folder / "records"
    records.mkdir(parents=True, exist_ok=True)
    records.chmod(0o777)
    from trainmaster.backends.kubernetes.resources.crd import crd

    cluster.apply(crd(), {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    cluster.kubectl("wait", "--for=condition=established", "crd/trainingjobs.trainmaster.dev", "--timeout=30s")
    made = World(cluster, records, folder, **options)
    made.open()
    try:
        made.until("replicas that could lead", lambda: all(replica.is_prepared() for replica in made.replicas), 300)
        made.until("a leader", lambda: made.leader() is not None)
        yield made
    finally:
        made.close()
