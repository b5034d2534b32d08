"""Schedules the gangs of other controllers: they become jobs, their pods are bound when the policy gives them nodes.

Pods are theirs, so nothing is created here; a gang that is to stop has its pods deleted, and its controller makes new
ones that wait again. Belongs to the event loop of the watch.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from trainmaster.backends.kubernetes.api.client import ApiError, KubeClient
from trainmaster.backends.kubernetes.attempts.pod_objects import Object, is_over
from trainmaster.backends.kubernetes.attempts.pod_writer import PodWriter, Refused
from trainmaster.backends.kubernetes.gangs.foreign_gangs import (
    GangFacts,
    GangKey,
    gang_key,
    gang_spec,
    labelled_size,
    object_path,
    size_of_object,
)
from trainmaster.backends.kubernetes.resources.quantity import QuantityError
from trainmaster.backends.kubernetes.set_aside import SetAside
from trainmaster.model import event as ev
from trainmaster.model.command import Command, Launch, Stop
from trainmaster.model.errors import InputError
from trainmaster.model.job import JobSpec

SETTLE_S = 0.2
"""Pods of a gang come one by one; it is looked at when they stop coming."""
OVER_S = 3.0
"""A gang none of whose pods lives is over when its controller has made no new one for so long."""
UNTOLD_S = 5.0
"""A gang that lacks pods is told so after this time."""
NAN = float("nan")


@dataclass
class Gang:
    key: GangKey
    pods: dict[str, Object] = field(default_factory=dict)
    size: int | None = None
    spec: JobSpec | None = None
    """Set while the engine knows it."""
    generation: int = 0
    seq: int = 0
    places: list[str] = field(default_factory=list)
    """Nodes that the engine gave it, one for each member; empty while it waits."""
    bound: dict[str, str] = field(default_factory=dict)
    """Members of the present attempt: pod name to node."""
    started: bool = False
    stopping: bool = False
    binding: bool = False
    fault: str = ""
    """Why it is no job yet."""
    refused: str = ""
    """Why its pods could not be bound."""
    since_s: float = field(default_factory=time.monotonic)
    lonely_s: float | None = None

    def waiting(self) -> list[Object]:
        free = [pod for pod in self.pods.values() if _waits(pod) and pod["metadata"]["name"] not in self.bound]
        return sorted(free, key=lambda pod: (pod["metadata"].get("creationTimestamp", ""), pod["metadata"]["name"]))

    def living(self) -> list[str]:
        return [name for name in self.bound if name in self.pods and not is_over(self.pods[name])]

    def placed(self) -> dict[str, str]:
        """Pods that have a node and live, whoever gave it to them."""
        pods = [pod for pod in self.pods.values() if pod["spec"].get("nodeName") and not is_over(pod)]
        return {pod["metadata"]["name"]: str(pod["spec"]["nodeName"]) for pod in pods}


def _waits(pod: Object) -> bool:
    gone = pod["metadata"].get("deletionTimestamp") or pod["spec"].get("schedulingGates")
    return not pod["spec"].get("nodeName") and not gone and not is_over(pod)


class GangRuns:
    def __init__(
        self,
        client: KubeClient,
        deliver: Callable[[ev.Event], None],
        now_ms: Callable[[], int],
        epoch_ms: int,
        node_name: Callable[[int], str],
        node_set: Callable[[JobSpec, Object], str] = lambda _spec, _pod: "",
        lacks: Callable[[JobSpec], str] = lambda _: "",
    ) -> None:
        """`node_name` names a node by its index; `node_set` names the nodes that a gang may use; `lacks` says why these
        could not take it even if they were empty."""
        self._client = client
        self._writer = PodWriter(client)
        self._deliver = deliver
        self._now_ms = now_ms
        self._epoch_ms = epoch_ms
        self._node_name = node_name
        self._lacks = lacks
        self._node_set = node_set
        self.faults = SetAside()
        self.gangs: dict[GangKey, Gang] = {}
        self.by_id: dict[str, Gang] = {}
        self._looking: set[GangKey] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._halted = False
        self.binds = 0

    def owns(self, job_id: str) -> bool:
        return job_id in self.by_id

    # -- life ----------------------------------------------------------------------------------------

    def start(self, pods: Iterable[Object], active: Iterable[JobSpec], expected: Iterable[Launch]) -> None:
        """Take up what another leader left: `active` are the jobs of the engine, `expected` what has been started."""
        known = {str(spec.payload.get("gang")): spec for spec in active if spec.payload.get("kind") == "Gang"}
        held = {launch.job_id: launch for launch in expected if launch.spec.payload.get("kind") == "Gang"}
        for pod in pods:
            self.pod_changed(pod, gone=False)
        for text, spec in sorted(known.items()):
            gang = next((gang for gang in self.gangs.values() if gang.key.text == text), None)
            launch = held.get(spec.id)
            if gang is None:  # all its pods are gone
                gang = self.gangs[_key_of(spec)] = Gang(_key_of(spec))
            gang.spec, gang.size = spec, spec.workers_min
            for pod in list(gang.pods.values())[:1]:
                self._node_set(spec, pod)  # so that changes of its nodes are told
            self.by_id[spec.id] = gang
            gang.bound = gang.placed()  # also if its command is under way: it is said again
            if launch is not None:
                gang.generation, gang.seq, gang.started = launch.generation, launch.seq, True
                gang.places = self._places(launch)
                gang.bound = {
                    name: str(pod["spec"]["nodeName"]) for name, pod in gang.pods.items() if pod["spec"].get("nodeName")
                }
            self._look(gang.key)

    def halt(self) -> None:
        self._halted = True
        for task in self._tasks:
            task.cancel()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.faults.follow(task, f"work for a gang ({work.__qualname__})")

    # -- what was seen -------------------------------------------------------------------------------

    def pod_changed(self, pod: Object, gone: bool) -> None:
        key = gang_key(pod)
        gang = self.gangs.get(key)
        if gang is None:
            if gone or is_over(pod):
                return
            gang = self.gangs[key] = Gang(key)
        name = pod["metadata"]["name"]
        if gone:
            gang.pods.pop(name, None)
        else:
            gang.pods[name] = pod
        self._look(key)

    def _look(self, key: GangKey, wait_s: float = SETTLE_S) -> None:
        """Judge the gang in a moment, once for many changes."""
        if key not in self._looking and not self._halted:
            self._looking.add(key)
            asyncio.get_running_loop().call_later(wait_s, self._judge, key)

    def _judge(self, key: GangKey) -> None:
        self._looking.discard(key)
        gang = self.gangs.get(key)
        if gang is None or self._halted:
            return
        if gang.spec is None:
            self._spawn(self._enter(gang))
        elif gang.places or gang.stopping:
            self._watch_over(gang)
        elif not gang.waiting() and not gang.living():
            self._leave(gang)

    async def _enter(self, gang: Gang) -> None:
        """Make a job of it when all its pods are there."""
        waiting = gang.waiting()
        if not waiting:
            if not any(not is_over(pod) for pod in gang.pods.values()):
                self.gangs.pop(gang.key, None)
            return
        try:
            size = await self._size(gang, waiting)
            gang.size = size
            if len(waiting) < size:
                gang.fault = f"waits for the rest of its gang: {len(waiting)} of {size} pods are there"
                if time.monotonic() - gang.since_s < UNTOLD_S:
                    self._look(gang.key, UNTOLD_S)
                return
            spec = gang_spec(GangFacts(gang.key, size, tuple(waiting)), self._epoch_ms)
            spec = replace(spec, node_set=self._node_set(spec, waiting[0]))
        except (InputError, QuantityError) as error:
            gang.fault = str(error)
            return
        except ApiError as error:
            gang.fault = f"its {gang.key.kind} cannot be read: {error}"
            self._look(gang.key, UNTOLD_S)
            return
        if gang.spec is None and not self._halted:
            gang.fault = ""
            gang.spec = spec
            self.by_id[spec.id] = gang
            self._deliver(ev.JobSubmitted(spec))
            if lacks := self._lacks(spec):
                self._deliver(ev.JobRoomChanged(spec.id, lacks))

    async def _size(self, gang: Gang, waiting: list[Object]) -> int:
        if gang.key.kind == "Label":
            return labelled_size(waiting)
        if not gang.key.owned:
            return 1
        if gang.size is None or len(waiting) < gang.size:  # it may want fewer by now
            gang.size = size_of_object(await self._client.get(object_path(gang.key)))
        return gang.size

    def _leave(self, gang: Gang) -> None:
        """Its pods were deleted before it ran."""
        assert gang.spec is not None
        self._deliver(ev.JobCancelled(gang.spec.id))
        self._forget(gang)

    def _forget(self, gang: Gang) -> None:
        if gang.spec is not None:
            self.by_id.pop(gang.spec.id, None)
        gang.spec, gang.places, gang.bound = None, [], {}
        gang.started = gang.stopping = False
        gang.lonely_s, gang.refused = None, ""
        if gang.pods:
            self._look(gang.key)
        else:
            self.gangs.pop(gang.key, None)

    # -- commands ------------------------------------------------------------------------------------

    def take(self, command: Command) -> None:
        gang = self.by_id.get(command.job_id)
        if gang is None or self._halted:
            return
        gang.seq = max(gang.seq, command.seq)
        if isinstance(command, Launch):
            if gang.generation != command.generation or not gang.places:
                gang.generation, gang.places = command.generation, self._places(command)
                # Pods that live on nodes already were bound by a leader before, by the same command.
                gang.bound, gang.started, gang.stopping, gang.lonely_s = gang.placed(), False, False, None
            elif gang.started:
                self._tell_started(gang)
            self._watch_over(gang)
        elif isinstance(command, Stop) and command.generation >= gang.generation:
            gang.generation, gang.stopping = command.generation, True
            self._watch_over(gang)

    def _places(self, launch: Launch) -> list[str]:
        return [self._node_name(part.node) for part in launch.allocation.parts for _ in range(part.workers)]

    def _watch_over(self, gang: Gang) -> None:
        """Bind what is to be bound, and see whether it runs or is over."""
        living = gang.living()
        if gang.stopping:
            self._stop(gang, living)
            return
        free = list(gang.places)
        for name in living:
            if gang.bound[name] in free:
                free.remove(gang.bound[name])
        waiting = gang.waiting()
        if not gang.bound and len(waiting) < len(gang.places) and not gang.binding:
            why = f"only {len(waiting)} of its {len(gang.places)} pods are left"
            self._end(gang, ev.StartFailed(self._id(gang), gang.generation, why))
            return
        if free and waiting and not gang.binding:
            gang.binding = True
            self._spawn(self._bind(gang, list(zip(waiting, free, strict=False))))
            return
        if gang.binding:
            return
        members = [gang.pods[name] for name in gang.bound if name in gang.pods]
        if not gang.started and len(members) >= len(gang.places) and all(_has_started(pod) for pod in members):
            gang.started = True
            self._tell_started(gang)
        if not living:
            self._perhaps_over(gang, members)
        else:
            gang.lonely_s = None

    async def _bind(self, gang: Gang, pairs: list[tuple[Object, str]]) -> None:
        names = [(pod["metadata"]["name"], node) for pod, node in pairs]
        try:
            await self._writer.bind(gang.key.namespace, names)
            self.binds += len(names)
            gang.bound.update(names)
        except Refused as refused:
            # Some may be bound: those end, and their controller makes new ones. The others need not: perhaps nobody
            # would make them again.
            gang.bound.update((name, node) for name, node in names if name in refused.done)
            gang.refused, gang.stopping = refused.why, True
        finally:
            gang.binding = False
        self._look(gang.key)

    def _perhaps_over(self, gang: Gang, members: list[Object]) -> None:
        if gang.waiting():
            return
        now_s = time.monotonic()
        if gang.lonely_s is None:
            gang.lonely_s = now_s
        if now_s - gang.lonely_s < OVER_S:
            self._look(gang.key, OVER_S)
            return
        done = sum(pod["status"].get("phase") == "Succeeded" for pod in members)
        fine = done > 0 and done >= min(len(members), len(gang.places))  # one that failed may have been made good
        why = "" if fine else "its pods failed or were deleted"
        self._end(gang, ev.Exited(self._id(gang), gang.generation, 0 if fine else 1, NAN, why))

    def _stop(self, gang: Gang, living: list[str]) -> None:
        going = [name for name in living if not gang.pods[name]["metadata"].get("deletionTimestamp")]
        if going:
            doomed: list[tuple[str, str | None]] = [(name, gang.pods[name]["metadata"]["uid"]) for name in going]
            self._spawn(self._writer.delete(gang.key.namespace, doomed, None))
        if living or gang.binding:
            return
        assert gang.spec is not None
        report: ev.Event = ev.Stopped(gang.spec.id, gang.generation, NAN)
        if gang.refused:  # not its fault, but not to be tried again at once
            report = ev.StartFailed(gang.spec.id, gang.generation, gang.refused, 0)
        gang.places, gang.bound, gang.stopping, gang.started, gang.refused = [], {}, False, False, ""
        self._deliver(report)  # its controller's new pods are waited for under the same id
        self._look(gang.key, OVER_S)

    def _end(self, gang: Gang, report: ev.Event) -> None:
        self._deliver(report)
        self._forget(gang)

    def _tell_started(self, gang: Gang) -> None:
        self._deliver(ev.Started(self._id(gang), gang.generation, 0.0, self._now_ms()))

    def _id(self, gang: Gang) -> Any:
        assert gang.spec is not None
        return gang.spec.id

    def observed(self) -> list[ev.Observed]:
        """For an inventory: attempts that live."""
        return [
            ev.Observed(gang.spec.id, gang.generation, NAN, gang.seq, starting=not gang.started)
            for gang in self.by_id.values()
            if gang.spec is not None and (gang.places or gang.stopping)
        ]


def _has_started(pod: Object) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Running", "Succeeded", "Failed")


def _key_of(spec: JobSpec) -> GangKey:
    owner = spec.payload.get("owner") or {}
    return GangKey(
        str(spec.payload.get("namespace", "")),
        str(owner.get("apiVersion", "")),
        str(owner.get("kind", "")),
        str(owner.get("name", "")),
        str(owner.get("uid", "")),
    )
