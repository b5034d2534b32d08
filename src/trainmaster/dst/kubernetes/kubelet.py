"""Simulated nodes: a kubelet each, power, network, and the cluster's controller that calls silent nodes lost."""

from __future__ import annotations

import asyncio
import math
import random
from dataclasses import dataclass, field

from trainmaster.dst.engine.invariants import Violation
from trainmaster.dst.kubernetes.api_server import ApiServer, Object, Path
from trainmaster.dst.kubernetes.launchers import Launcher, Network
from trainmaster.dst.kubernetes.trainers import KILLED, Trainer, Trainers

GPU = "nvidia.com/gpu"
SILENT_S = 40.0
"""A node that has not reported for so long is called not ready."""
EVICT_S = 120.0
"""Its pods are deleted after so long; nobody carries that out before it is back."""

COLLECT_EVERY_S = 4.0
"""Pods without their owner are deleted so often."""


@dataclass(eq=False)
class Container:
    """A pod on its node. `starts_s`: when its image is there."""

    pod: Object
    gpus: int
    starts_s: float
    work: Launcher | Trainer | None = None
    code: int | None = None
    reported: bool = False
    released: bool = False
    """Its sandbox is down, and its devices count as free."""
    asked: bool = False
    sidecar: bool = False
    """A second container runs until it is told to end, and some seconds longer."""
    sidecar_ends_s: float = math.inf

    @property
    def live(self) -> bool:
        return self.code is None

    def look(self) -> None:
        if self.code is None and self.work is not None:
            self.code = self.work.exit if isinstance(self.work, Launcher) else self.work.code


@dataclass(eq=False)
class Kubelet:
    name: str
    gpus: int
    server: ApiServer
    trainers: Trainers
    network: Network
    rng: random.Random
    on: bool = True
    cut: bool = False
    """Neither it nor its launchers reach anybody."""
    deaf: bool = False
    """It does not reach the API server; its launchers reach the leader."""
    late: float = 0.0
    """Share of its turns in which it does not get to anything."""
    containers: dict[str, Container] = field(default_factory=dict)
    heard_s: float = 0.0
    ready: bool = True

    def node(self) -> Object:
        return {
            "metadata": {"name": self.name, "labels": {"nvidia.com/gpu.product": "v100"}},
            "spec": {},
            "status": {
                "allocatable": {"cpu": "64", "memory": "256Gi", GPU: str(self.gpus)},
                "conditions": [{"type": "Ready", "status": "True"}],
                "addresses": [],
            },
        }

    # -- its turn ------------------------------------------------------------------------------------

    def turn(self, now_s: float) -> None:
        if not self.on:
            return
        for container in self.containers.values():
            self._run(container, now_s)
        if self.cut or self.deaf or self.rng.random() < self.late:
            return
        self.heard_s = now_s
        if not self.ready:
            self.say_ready(True)
        pods = {
            pod["metadata"]["uid"]: pod
            for (kind, _, _), pod in self.server.objects.items()
            if kind == "pods" and pod["spec"].get("nodeName") == self.name
        }
        for uid, pod in pods.items():
            self._tend(uid, pod, now_s)
        for uid in [uid for uid in self.containers if uid not in pods]:  # deleted by force
            container = self.containers[uid]
            self._stop(container, 1.0)
            if not container.live:
                del self.containers[uid]

    def _run(self, container: Container, now_s: float) -> None:
        if container.work is None and container.live and now_s >= container.starts_s and not container.asked:
            pod = container.pod
            if self.trainers.jobs[pod["metadata"]["labels"]["trainmaster.dev/job"]].launcher:
                boot = f"{self.rng.getrandbits(32):x}"
                container.work = Launcher(self.network, self.trainers, pod, self.name, container.gpus, boot)
            else:
                container.work = self.trainers.start(pod, self.name, container.gpus)
        if isinstance(container.work, Launcher):
            container.work.poll()
        container.look()

    def _tend(self, uid: str, pod: Object, now_s: float) -> None:
        container = self.containers.get(uid)
        going = "deletionTimestamp" in pod["metadata"]
        if container is None:
            if pod["status"].get("phase") in ("Succeeded", "Failed"):
                return
            if going:
                self._remove(pod)
                return
            container = self._admit(uid, pod, now_s)
        elif going:
            self._stop(container, float(pod["metadata"].get("deletionGracePeriodSeconds", 30)))
        self._report(container, pod)
        if going and container.released:
            self._remove(pod)
            del self.containers[uid]

    def _admit(self, uid: str, pod: Object, now_s: float) -> Container:
        limits = pod["spec"]["containers"][0].get("resources", {}).get("limits", {})
        gpus = int(limits.get(GPU, 0))
        held = [each for each in self.containers.values() if not each.released and self._known(each)]
        if sum(each.gpus for each in held) + gpus > self.gpus:
            holders = [each.pod["metadata"]["name"] for each in held]
            raise Violation(f"{pod['metadata']['name']} needs {gpus} GPUs of {self.name}, which {holders} hold")
        sidecar = len(pod["spec"]["containers"]) > 1
        container = Container(pod, gpus, now_s + 3.0 * self.rng.random(), sidecar=sidecar)
        self.containers[uid] = container
        if sum(each.gpus for each in self.containers.values() if not each.released) > self.gpus:
            # Somebody deleted a pod before its sandbox was down, and nobody can know: the newcomer is rejected.
            container.code, container.reported, container.released = KILLED, True, True
            self._status(pod, "Failed", [], [], "UnexpectedAdmissionError")
        return container

    def _known(self, container: Container) -> bool:
        """Whether a scheduler can know that it holds its devices: its pod is there, or its trainer lives."""
        meta = container.pod["metadata"]
        pod = self.server.objects.get(("pods", meta["namespace"], meta["name"]))
        if pod is not None and pod["metadata"]["uid"] == meta["uid"]:
            return True
        work = container.work.trainer if isinstance(container.work, Launcher) else container.work
        return work is not None and work.code is None

    def _stop(self, container: Container, grace_s: float) -> None:
        if container.asked:
            return
        container.asked = True
        now_s = asyncio.get_running_loop().time()
        container.sidecar_ends_s = min(container.sidecar_ends_s, now_s + min(grace_s, 10.0 * self.rng.random()))
        if container.work is None:
            container.code = KILLED
        elif isinstance(container.work, Launcher):
            container.work.terminate(grace_s)
        else:
            self.trainers.terminate(container.work, grace_s)

    # -- what it reports -----------------------------------------------------------------------------

    def _report(self, container: Container, pod: Object) -> None:
        name = pod["spec"]["containers"][0]["name"]
        sandbox = {"type": "PodReadyToStartContainers", "status": "True"}
        phase = pod["status"].get("phase")
        if container.live:
            if container.work is not None and phase != "Running":
                state = {"running": {"startedAt": self.server.timestamp()}}
                self._status(pod, "Running", [{"name": name, "state": state}], [sandbox])
        elif not container.reported:
            outlived = container.sidecar and asyncio.get_running_loop().time() < container.sidecar_ends_s
            container.reported = not outlived
            ended: Object = {"exitCode": container.code, "reason": "Completed" if container.code == 0 else "Error"}
            ended["finishedAt"] = self.server.timestamp()
            if container.code == KILLED and not container.asked:
                ended["reason"] = "ContainerStatusUnknown"
            statuses: list[Object] = [{"name": name, "state": {"terminated": ended}}]
            if not outlived:
                self._status(pod, "Succeeded" if container.code == 0 else "Failed", statuses, [sandbox])
            elif len(pod["status"].get("containerStatuses", ())) < 2:
                self._status(pod, "Running", [*statuses, {"name": "sidecar", "state": {"running": {}}}], [sandbox])
        elif not container.released:
            container.released = True
            self._status(pod, str(phase), pod["status"].get("containerStatuses", []), [{**sandbox, "status": "False"}])

    def _status(
        self, pod: Object, phase: str, containers: list[Object], conditions: list[Object], reason: str = ""
    ) -> None:
        status = {"phase": phase, "podIP": "10.0.0.9", "containerStatuses": containers, "conditions": conditions}
        status |= {"reason": reason} if reason else {}
        self.server.patch(_where(pod), {"status": status})

    def _remove(self, pod: Object) -> None:
        self.server.delete(_where(pod), {"gracePeriodSeconds": 0, "preconditions": {"uid": pod["metadata"]["uid"]}})

    # -- power and network ---------------------------------------------------------------------------

    def power_off(self) -> None:
        self.on = False
        for container in self.containers.values():
            if isinstance(container.work, Launcher):
                container.work.power_off()
            elif container.work is not None:
                self.trainers.kill(container.work)
            container.code = KILLED if container.code is None else container.code
            container.sidecar_ends_s = 0.0

    def power_on(self) -> None:
        self.on = True

    def say_ready(self, ready: bool) -> None:
        self.ready = ready
        condition = {"type": "Ready", "status": "True" if ready else "Unknown"}
        self.server.patch(Path("nodes", None, self.name, "status"), {"status": {"conditions": [condition]}})

    def controller_turn(self, now_s: float) -> None:
        """The cluster's node controller looks at it."""
        if self.ready and now_s > self.heard_s + SILENT_S:
            self.say_ready(False)
        if not self.ready and now_s > self.heard_s + EVICT_S:
            for (kind, _, _), pod in list(self.server.objects.items()):
                here = kind == "pods" and pod["spec"].get("nodeName") == self.name
                if here and "deletionTimestamp" not in pod["metadata"]:
                    self.server.delete(_where(pod), {})


def _where(pod: Object) -> Path:
    return Path("pods", pod["metadata"]["namespace"], pod["metadata"]["name"], None)


async def run_all(kubelets: list[Kubelet], trainers: Trainers, every_s: float = 0.5) -> None:
    """All nodes, in turn, and the cluster's controllers."""
    collect_s = 0.0
    while True:
        await asyncio.sleep(every_s)
        now_s = asyncio.get_running_loop().time()
        trainers.tick()
        for kubelet in kubelets:
            kubelet.turn(now_s)
            kubelet.controller_turn(now_s)
        if now_s >= collect_s:
            kubelets[0].server.collect_garbage()
            collect_s = now_s + COLLECT_EVERY_S
