"""Tells why a gang of another controller waits: one Event on the object that the user created, and the same condition
on every pod of the gang, so that `kubectl describe` of either says it. Written only when the reason changes."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from trainmaster.backends.kubernetes.api import paths
from trainmaster.backends.kubernetes.api.client import ApiError, KubeClient
from trainmaster.backends.kubernetes.gangs.foreign_gangs import object_path
from trainmaster.backends.kubernetes.gangs.gang_scheduler import Gang, GangRuns
from trainmaster.backends.kubernetes.resources.events import JobEvent
from trainmaster.backends.kubernetes.resources.status import StatusUpdate, clipped, reason_word
from trainmaster.backends.kubernetes.resources.training_job import stamp_of
from trainmaster.service.kubernetes.status_writer import StatusWriter

WRITERS = 8
LOOK_S = 5.0


class GangStatusWriter:
    """`tell` is what a `StatusWriter` calls for jobs without TrainingJob; `run` tells of gangs that are no jobs yet."""

    def __init__(self, client: KubeClient, runs: GangRuns, status_writer: StatusWriter) -> None:
        self._client = client
        self._runs = runs
        self._status_writer = status_writer
        self._told: dict[str, str] = {}
        self._slots = asyncio.Semaphore(WRITERS)
        self._tasks: set[asyncio.Task[None]] = set()
        self.conditions = 0

    def tell(self, job_id: str, update: StatusUpdate) -> None:
        gang = self._runs.by_id.get(job_id)
        view = update.view
        if gang is None or gang.places or view["state"] != "pending" or not view["why"]:
            return
        self._soon(gang, reason_word(view["why"]), clipped(view["reason"]))

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            known = set()
            for gang in list(self._runs.gangs.values()):
                known.add(gang.key.text)
                if gang.spec is None and gang.fault and time.monotonic() - gang.since_s > LOOK_S:
                    reason = "Incomplete" if gang.fault.startswith("waits") else "Invalid"
                    with self._status_writer.faults.alone(f"what gang {gang.key.text} waits for"):
                        self._soon(gang, reason, clipped(gang.fault))
            self._told = {text: told for text, told in self._told.items() if text in known}

    def _soon(self, gang: Gang, reason: str, message: str) -> None:
        untold = [pod for pod in gang.waiting() if _says(pod) != reason]
        news = self._told.get(gang.key.text) != reason
        if not news and not untold:
            return
        self._told[gang.key.text] = reason
        task = asyncio.get_running_loop().create_task(self._write(gang, reason, message, untold, news))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._status_writer.faults.follow(task, f"what gang {gang.key.text} waits for")

    async def _write(self, gang: Gang, reason: str, message: str, pods: list[Any], news: bool) -> None:
        try:
            await asyncio.gather(*(self._condition(pod, reason, message) for pod in pods))
            if news:
                about = await self._about(gang)
                if about is not None:
                    await self._status_writer.event(about, JobEvent("Waiting", message, said=reason))
        except ApiError:
            self._told.pop(gang.key.text, None)  # told again at the next look

    async def _condition(self, pod: Any, reason: str, message: str) -> None:
        """`Unschedulable` is the word that cluster autoscalers look for; ours stands before the message."""
        meta = pod["metadata"]
        told = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": f"{reason}: {message}",
            "lastTransitionTime": stamp_of(time.time()),
        }
        async with self._slots:
            await self._client.patch(
                paths.pod(meta["namespace"], meta["name"], "status"), {"status": {"conditions": [told]}}, "strategic"
            )
        self.conditions += 1

    async def _about(self, gang: Gang) -> dict[str, Any] | None:
        """The object that the user created: the owner, or for pods that nobody owns the first of them."""
        key = gang.key
        if key.owned:
            about = {"apiVersion": key.api_version, "kind": key.kind, "namespace": key.namespace, "name": key.name}
            uid = key.uid or (await self._client.get(object_path(key)))["metadata"]["uid"]
            return {**about, "uid": uid}
        waiting = gang.waiting()
        if not waiting:
            return None
        meta = waiting[0]["metadata"]
        for owner in meta.get("ownerReferences") or ():
            if owner.get("controller"):
                wanted = ("apiVersion", "kind", "name", "uid")
                return {"namespace": key.namespace, **{name: owner[name] for name in wanted if name in owner}}
        return {"apiVersion": "v1", "kind": "Pod", "namespace": key.namespace, "name": meta["name"], "uid": meta["uid"]}


def _says(pod: Any) -> str:
    for condition in (pod.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return str(condition.get("message", "")).partition(":")[0]
    return ""
