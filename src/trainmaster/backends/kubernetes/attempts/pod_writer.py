"""Writes pods: a gang is created whole, then bound whole, or not at all; deletions are repeated until they are done."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

import orjson

from trainmaster.backends.kubernetes.api import paths
from trainmaster.backends.kubernetes.api.client import ApiError, Conflict, KubeClient, NotFound, Object, Unreachable
from trainmaster.backends.kubernetes.attempts.pod_objects import binding_body, trimmed
from trainmaster.backends.kubernetes.attempts.trainer_container import ensure_namespace

QUOTA = "exceeded quota"
"""Of a namespace: others may leave room at any time, so that it is waited for."""
BUSY = (0, 429, 500, 502, 503, 504)
"""Statuses that say nothing of the request itself."""
AGAIN_S = 1.0
PATIENCE_S = 60.0
"""A creation that a server which answers does not carry out, such as for a webhook that is down, is given up after so
long: the job tries again later, and others get their turn."""
TAKEN_AS_IT_IS = {"fieldValidation": "Ignore"}
"""Templates have been checked, strictly, when their job came; otherwise the server would look again for unknown and
double fields in every pod, and warn us of them."""


class Refused(Exception):
    """The gang cannot be had. `node`: the node is to blame; None: the job's own description. `done`: what was had all
    the same, in the order in which it was asked for; None for the others."""

    def __init__(self, why: str, node: str | None = None) -> None:
        super().__init__(why)
        self.why = why
        self.node = node
        self.done: list[Any] = []


class PodWriter:
    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._ready: dict[str, asyncio.Task[None]] = {}

    async def ensure_namespace(self, namespace: str) -> None:
        """What launchers need there, once."""
        task = self._ready.get(namespace)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = self._ready[namespace] = asyncio.ensure_future(ensure_namespace(self._client, namespace))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody may wait for it any more
        try:
            await asyncio.shield(task)
        except ApiError as error:
            raise Refused(f"namespace {namespace} could not be prepared: {error}", node="") from None

    async def create(
        self, namespace: str, bodies: Sequence[Object], wanted: Callable[[], bool] = lambda: True
    ) -> list[Object]:
        """The pods as the server has them; `Refused` when one cannot be made, or is not `wanted` any more."""
        path = paths.pods(namespace)
        outcomes = await asyncio.gather(*(self._create(path, body, wanted) for body in bodies), return_exceptions=True)
        return _all_or_refused(outcomes)

    async def _create(self, path: str, body: Object, wanted: Callable[[], bool]) -> Object:
        data, name = orjson.dumps(body), body["metadata"]["name"]
        until_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                try:
                    return trimmed(await self._client.create(path, data, params=TAKEN_AS_IT_IS))
                except Conflict as error:
                    if error.reason == "AlreadyExists":
                        return await self._same(f"{path}/{name}", body)
                    fault: ApiError = error  # such as a quota that is being counted
            except ApiError as error:
                if error.status not in BUSY:
                    node = body["metadata"]["annotations"].get("trainmaster.dev/node") if QUOTA in str(error) else None
                    raise Refused(f"{name}: {error}", node) from None
                fault = error
            if not wanted() or time.monotonic() >= until_s:
                raise Refused(f"{name}: {fault}", node="")
            await asyncio.sleep(AGAIN_S)

    async def _same(self, path: str, body: Object) -> Object:
        """It is there already: made by us (the answer was lost, or an earlier leader), or by somebody else."""
        try:
            found = await self._client.get(path)
        except NotFound:
            raise Refused(f"{body['metadata']['name']} vanished", node="") from None
        ours = body["metadata"]["annotations"]["trainmaster.dev/job-id"]
        if (found["metadata"].get("annotations") or {}).get("trainmaster.dev/job-id") != ours:
            raise Refused(f"there is another pod with the name {body['metadata']['name']}")
        return trimmed(found)

    async def bind(self, namespace: str, pods: Sequence[tuple[str, str]]) -> None:
        """Give each pod its node; `Refused` when one cannot be had."""
        outcomes = await asyncio.gather(
            *(self._bind(namespace, name, node) for name, node in pods), return_exceptions=True
        )
        _all_or_refused(outcomes)

    async def _bind(self, namespace: str, name: str, node: str) -> str:
        path = paths.pod(namespace, name)
        data = orjson.dumps(binding_body(name, namespace, node))
        while True:
            try:
                await self._client.create(f"{path}/binding", data, params=TAKEN_AS_IT_IS)
                return name
            except NotFound:
                raise Refused(f"{name} was deleted", node) from None
            except Conflict:
                try:
                    found = await self._client.get(path)
                except NotFound:
                    raise Refused(f"{name} was deleted", node) from None
                except ApiError as error:
                    if error.status not in BUSY:
                        raise Refused(f"{name} could not be bound to {node}: {error}", node) from None
                    await asyncio.sleep(AGAIN_S)
                    continue
                if found["spec"].get("nodeName") == node:
                    return name
                raise Refused(
                    f"{name} is bound to {found['spec'].get('nodeName')}, or is being deleted", node
                ) from None
            except ApiError as error:
                if error.status not in BUSY:
                    raise Refused(f"{name} could not be bound to {node}: {error}", node) from None
                await asyncio.sleep(AGAIN_S)

    async def delete(self, namespace: str, pods: Sequence[tuple[str, str | None]], grace_s: int | None) -> None:
        """Ask for the end of these pods; those that are other objects by now (`uid`) are left alone."""
        await asyncio.gather(*(self._delete(namespace, name, uid, grace_s) for name, uid in pods))

    async def _delete(self, namespace: str, name: str, uid: str | None, grace_s: int | None) -> None:
        path = paths.pod(namespace, name)
        while True:
            try:
                await self._client.delete(path, grace_s=grace_s, uid=uid)
                return
            except (NotFound, Conflict):
                return
            except Unreachable:
                await asyncio.sleep(AGAIN_S)
            except ApiError as error:
                if error.status not in BUSY:
                    raise
                await asyncio.sleep(AGAIN_S)


def _all_or_refused(outcomes: Sequence[Any]) -> list[Any]:
    for outcome in outcomes:
        if isinstance(outcome, Refused):
            outcome.done = [None if isinstance(one, BaseException) else one for one in outcomes]
        if isinstance(outcome, BaseException):
            raise outcome
    return list(outcomes)
