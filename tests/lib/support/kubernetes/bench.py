"""A bench for `check_backend` on a real cluster: TrainingJobs become pods on real kubelets, or on fake nodes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import socket
import time
from pathlib import Path
from typing import Any

from support import ROOT
from support.loop_thread import LoopThread
from support.queue_bench import STUBBORN, QueueBench
from trainmaster.backends.kubernetes.api import paths
from trainmaster.backends.kubernetes.api.client import Conflict, KubeClient, NotFound, Object
from trainmaster.backends.kubernetes.api.config import load_config
from trainmaster.backends.kubernetes.backend import KubernetesBackend, PodOptions
from trainmaster.backends.kubernetes.launchers.hub import AgentHub
from trainmaster.backends.kubernetes.nodes.cluster_watch import ClusterWatch
from trainmaster.backends.kubernetes.resources.crd import crd
from trainmaster.backends.kubernetes.resources.training_job import spec_of_trainingjob
from trainmaster.gang import linux
from trainmaster.model import event as ev
from trainmaster.model.cluster import Cluster
from trainmaster.model.job import JobSpec
from trainmaster.model.lease import LeaseRule
from trainmaster.testing.backend_contract import FAILURE_CODE, Kind

IMAGE = "registry.local/python:3.11"
SOURCE = ROOT / "src"
SECRET = b"of a test"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
COMMANDS = {
    Kind.SUCCEEDS: ["sleep", "0.3"],
    Kind.FAILS: ["sh", "-c", f"exit {FAILURE_CODE}"],
    Kind.ENDLESS: ["python3", "-m", "trainmaster.runtime.emulated", "--steps", "1000000"],
    Kind.STUBBORN: ["python3", "-c", STUBBORN],
    Kind.UNSTARTABLE: ["no-such-command-anywhere"],
}


async def install_crd(client: KubeClient) -> None:
    """The TrainingJob resource, and wait until it is served."""
    try:
        await client.create(CRDS, crd())
    except Conflict:
        found = await client.get(f"{CRDS}/{crd()['metadata']['name']}")
        body = crd()
        body["metadata"]["resourceVersion"] = found["metadata"]["resourceVersion"]
        await client.replace(f"{CRDS}/{crd()['metadata']['name']}", body)
    while True:
        try:
            await client.get(paths.training_jobs())
            return
        except NotFound:
            await asyncio.sleep(0.1)


def training_job(
    name: str, command: list[str], workers: tuple[int, int] = (1, 1), gpus: int = 1, *, launcher: bool = True,
    image: str = IMAGE, **spec: Any,
) -> Object:  # fmt: skip
    """A TrainingJob whose pods have this source tree, and a folder to share, from the host."""
    container = {
        "name": "trainer", "image": image, "command": command, "imagePullPolicy": "IfNotPresent",
        "env": [{"name": "PYTHONPATH", "value": "/source"}],
        "volumeMounts": [{"name": "source", "mountPath": "/source", "readOnly": True}],
    }  # fmt: skip
    pod = {
        "containers": [container],
        "volumes": [{"name": "source", "hostPath": {"path": str(SOURCE)}}],
        "tolerations": [{"key": "kwok.x-k8s.io/node", "operator": "Exists"}],
        "terminationGracePeriodSeconds": 2,
    }
    annotations = {} if launcher else {"trainmaster.dev/launcher": "false"}
    return {
        "apiVersion": paths.API_VERSION,
        "kind": "TrainingJob",
        "metadata": {"name": name, "annotations": annotations},
        "spec": {
            "workers": {"min": workers[0], "max": workers[1]}, "gpusPerWorker": gpus, "template": {"spec": pod}, **spec
        },
    }  # fmt: skip


def host_address(server: str) -> str:
    """The address of this machine that the cluster's side sees."""
    host, _, port = server.split("://")[1].rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, int(port)))
        return str(probe.getsockname()[0])


class KubeBench(QueueBench):
    """`restart` drops the backend and its watches, as a leader that is killed, and makes others."""

    quiet_s = 3.0

    def __init__(
        self, kubeconfig: Path, namespace: str = "default", *, launcher: bool = True, agent_host: str = "10.77.0.1",
        wait_s: float = 60.0, lease: LeaseRule | None = None,
    ) -> None:  # fmt: skip
        self.config = load_config(kubeconfig)
        self.namespace = namespace
        self.launcher = launcher
        self.agent_host = agent_host
        self.wait_s = wait_s
        self.lease = lease or LeaseRule()
        self.events: queue.Queue[ev.Event] = queue.Queue()
        self._port = 0
        self._open()

    def _open(self) -> None:
        self.thread = LoopThread("bench")
        self.thread.call(self._begin(), 60)

    async def _begin(self) -> None:
        self.client = await KubeClient(self.config).open()
        await install_crd(self.client)
        self.watch = ClusterWatch(self.client)
        self._run = asyncio.ensure_future(self.watch.run())
        await self.watch.refresh()
        self.cluster = Cluster(self.watch.present(), {})
        self.watch.list_nodes(self.cluster)
        self.jobs: dict[tuple[str, str], Object] = {}
        for job in (await self.client.list_all(paths.training_jobs(self.namespace)))[0]:
            self.jobs[job["metadata"]["namespace"], job["metadata"]["name"]] = job
        events, begun_ms = self.events, time.time_ns() // 1_000_000

        def now_ms() -> int:
            return time.time_ns() // 1_000_000 - begun_ms

        hub = self.hub = AgentHub(SECRET, self.lease, now_ms)
        if self.launcher:
            self._port = await hub.listen("0.0.0.0", self._port)
            options = PodOptions(grace_s=2.0, hello_wait_s=15.0, agents=(f"{self.agent_host}:{self._port}",))
        else:
            options = PodOptions(grace_s=2.0)
        self.backend = KubernetesBackend(
            self.client, self.watch, self.lease, events.put, now_ms, secret=SECRET, hub=hub,
            job_of=lambda namespace, name: self.jobs.get((namespace, name)), options=options,
        )  # fmt: skip
        hub.listener = self.backend.launcher_words
        self.backend.start()

    async def _end(self) -> None:
        self.backend.halt()
        self._run.cancel()
        await self.hub.close()
        await self.client.close()

    def restart(self) -> None:
        self.thread.call(self._end(), 10)
        self.thread.close()
        self.events = queue.Queue()
        self._open()

    def close(self) -> None:
        self.thread.call(self._clean(), 60)
        self.thread.call(self._end(), 10)
        self.thread.close()

    async def _clean(self) -> None:
        for namespace, name in self.jobs:
            with contextlib.suppress(NotFound):
                await self.client.delete(paths.training_jobs(namespace, name), propagation="Background")
        for pod in list(self.watch.our_pods()):
            with contextlib.suppress(NotFound):
                await self.client.delete(paths.pod(pod["metadata"]["namespace"], pod["metadata"]["name"]), grace_s=0)

    def living(self, job_id: str) -> int:
        """By the marks of their environment, whatever the backend or the cluster believes; fake pods by the cluster."""
        if self.launcher:
            members = set()
            for pid in linux.marked("TRAINMASTER_JOB_ID", job_id):
                try:
                    environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                except OSError:
                    continue
                members.add(next((e for e in environment if e.startswith(b"TRAINMASTER_MEMBER=")), b""))
            return len(members)
        return sum(
            pod["metadata"]["annotations"]["trainmaster.dev/job-id"] == job_id
            and pod.get("status", {}).get("phase") == "Running"
            for pod in self.watch.our_pods()
        )

    def job(self, name: str, kind: Kind, workers: tuple[int, int]) -> JobSpec | None:
        if not self.launcher and kind in (Kind.STUBBORN, Kind.UNSTARTABLE):
            return None
        annotations: dict[str, str] = {}
        if not self.launcher:
            if kind in (Kind.SUCCEEDS, Kind.FAILS):
                annotations["trainmaster.dev/fake-run"] = "1s"
            if kind == Kind.FAILS:
                annotations["trainmaster.dev/fake-exit"] = str(FAILURE_CODE)
        short = f"{name[:36].strip('-')}-{os.urandom(2).hex()}"
        body = training_job(short, COMMANDS[kind], workers, launcher=self.launcher)
        body["spec"]["template"]["metadata"] = {"annotations": annotations}
        made = self.thread.call(self.client.create(paths.training_jobs(self.namespace), body), 20)
        self.jobs[self.namespace, short] = made
        return spec_of_trainingjob(made, 0)
