"""The attempts that a leader knows of: which there are, which of them are fenced, and what each is made from.

Shared by the parts of the backend, all of which live in one event loop; see `backend` for who does what.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from trainmaster.backends.kubernetes.api.client import Object
from trainmaster.backends.kubernetes.attempts import pod_objects as p
from trainmaster.backends.kubernetes.attempts.observations import RunFacts, RunKey, run_token
from trainmaster.backends.kubernetes.attempts.pod_attempt import RELEASE_S, Run, pod_seat
from trainmaster.backends.kubernetes.launchers.hub import AgentHub
from trainmaster.backends.kubernetes.nodes.cluster_model import Usage
from trainmaster.backends.kubernetes.nodes.cluster_watch import ClusterWatch
from trainmaster.gang.actions import Seat
from trainmaster.gang.protocol import SERVER, WORKER
from trainmaster.model.allocation import Allocation
from trainmaster.model.command import Stop
from trainmaster.model.job import JobSpec
from trainmaster.model.lease import LeaseRule
from trainmaster.model.units import MS_PER_S


@dataclass(frozen=True)
class PodOptions:
    """Choices of the operator. A template's terminationGracePeriodSeconds goes before `grace_s`."""

    grace_s: float = 20.0
    hello_wait_s: float = 10.0
    agents: tuple[str, ...] = ()
    """Addresses (host:port) under which launchers find the service."""


class AttemptRegistry:
    def __init__(
        self,
        watch: ClusterWatch,
        lease: LeaseRule,
        launchers: AgentHub,
        secret: bytes,
        options: PodOptions,
        job_of: Callable[[str, str], Object | None],
    ) -> None:
        """`job_of(namespace, name)` is the TrainingJob."""
        self.loop = asyncio.get_running_loop()
        self.watch = watch
        self.faults = watch.faults
        self.launchers = launchers
        self.options = options
        self.job_of = job_of
        self._lease = lease
        self._secret = secret
        self.runs: dict[RunKey, Run] = {}
        self.newest: dict[str, int] = {}
        """Highest generation of each job that was started, stopped or seen."""
        self._fenced: dict[str, int] = {}
        """Generations up to this one are over: what turns up of them is deleted."""
        self.orphans: dict[RunKey, set[str]] = {}
        """Pods that hold devices and whose TrainingJob is gone, by their uid: the garbage collector ends them."""
        self.in_use = Usage(watch.usage.resources)
        """What our pods hold, those included whose attempts are over for the engine."""
        self.unanswered: dict[RunKey, Stop] = {}
        """What waits for them."""
        self.seen_seq = 0
        """Of the last command that came."""
        self.adopting = False
        """What is there is being looked at; nothing is concluded yet."""
        self.halted = False
        self.tasks: set[asyncio.Task[None]] = set()

    # -- attempts ----------------------------------------------------------------------------------

    def note(self, key: RunKey) -> None:
        self.newest[key.job_id] = max(key.generation, self.newest.get(key.job_id, 0))

    def is_newest(self, key: RunKey) -> bool:
        return key.generation >= self.newest.get(key.job_id, 0)

    def is_fenced(self, key: RunKey) -> bool:
        return key.generation <= self._fenced.get(key.job_id, 0)

    def fence(self, key: RunKey) -> None:
        """This attempt and all before it are over for the engine."""
        self._fenced[key.job_id] = max(key.generation, self._fenced.get(key.job_id, 0))

    def note_pod(self, pod: Object, gone: bool = False) -> None:
        """It holds its devices from its making until its kubelet has freed them, or has had the time to."""
        over = p.is_over(pod)
        free = gone or (over and p.is_released(pod))
        self.in_use.note(pod, None if free else p.node_meant(pod))
        if over and not free:
            self.loop.call_later(RELEASE_S, self.in_use.note, pod, None)

    def full_node(self, wanted: Mapping[str, int]) -> str | None:
        """A node that has not so many free devices: the engine may give them away before all containers that it cannot
        know of have ended, as on a node that comes back."""
        for node, devices in wanted.items():
            index = self.watch.index_of(node)
            if index is not None and self.in_use.of(node)[0] + devices > self.watch.cluster.nodes[index].gpus:
                return node
        return None

    # -- what they are made from -----------------------------------------------------------------------

    def facts(self, spec: JobSpec, key: RunKey, seq: int) -> RunFacts | None:
        """None: its TrainingJob is gone, or it never had one."""
        payload = spec.payload
        if payload.get("kind") != "TrainingJob":  # a gang of other pods that nobody knows any more
            return None
        namespace, name = str(payload["namespace"]), str(payload["name"])
        job = self.job_of(namespace, name)
        if job is None or job["metadata"]["uid"] != payload["uid"]:
            return None
        given = (job["spec"]["template"].get("spec") or {}).get("terminationGracePeriodSeconds")
        return RunFacts(
            key,
            namespace,
            name,
            str(payload["uid"]),
            seq,
            run_token(self._secret, key),
            self.options.agents,
            self._lease.lease_ms / MS_PER_S,
            self.options.grace_s if given is None else float(given),
            spec,
            job,
        )

    def new_run(self, key: RunKey, facts: RunFacts) -> Run:
        """A run that was not known before."""
        run = self.runs[key] = Run(key, facts, self.options.hello_wait_s, self.launchers.first_version)
        self.note(key)
        if facts.launcher:
            self.launchers.open(facts)
        return run

    def seats(self, allocation: Allocation) -> list[Seat]:
        """A seat for each member."""
        seats = []
        for part in allocation.parts:
            node = self.watch.cluster.nodes[part.node].id
            seats += [pod_seat(WORKER, node)] * part.workers + [pod_seat(SERVER, node)] * part.servers
        return seats

    def accelerator_of(self, node: str) -> str:
        index = self.watch.index_of(node)
        return "" if index is None else self.watch.cluster.nodes[index].accelerator

    # -- tasks -----------------------------------------------------------------------------------------

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self.loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        self.faults.follow(task, f"work on pods ({work.__qualname__})")

    def halt(self) -> None:
        """This process does not lead any more: nothing is written from now on."""
        self.halted = True
        self.launchers.halt()
        for task in self.tasks:
            task.cancel()
