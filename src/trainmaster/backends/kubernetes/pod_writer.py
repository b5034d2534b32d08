"""Writes pods: a gang is created whole, then bound whole, or not at all; deletions are repeated until they are done."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import orjson

from trainmaster.backends.kubernetes import paths
from trainmaster.backends.kubernetes.client import ApiError, Conflict, KubeClient, NotFound, Object, Unreachable
from trainmaster.backends.kubernetes.launching import ensure_namespace
from trainmaster.backends.kubernetes.pods import binding_body, trimmed

BUSY = (0, 429, 500, 502, 503, 504)
"""Statuses that say nothing of the request itself."""
AGAIN_S = 1.0
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
        try:
            await asyncio.shield(task)
        except ApiError as error:
            raise Refused(f"namespace {namespace} could not be prepared: {error}", node="") from None

    async def create(self, namespace: str, bodies: Sequence[Object]) -> list[Object | None]:
        """The pods as the server has them (None: it was there already); `Refused` when one cannot be made."""
        path = paths.pods(namespace)
        outcomes = await asyncio.gather(*(self._create(path, body) for body in bodies), return_exceptions=True)
        return _all_or_refused(outcomes)

    async def _create(self, path: str, body: Object) -> Object | None:
        data = orjson.dumps(body)
        while True:
            try:
                return trimmed(await self._client.create(path, data, params=TAKEN_AS_IT_IS))
            except Conflict as error:
                if error.reason == "AlreadyExists":
                    return await self._same(f"{path}/{body['metadata']['name']}", body)
                await asyncio.sleep(AGAIN_S)  # such as a quota that is being counted
            except ApiError as error:
                if error.status not in BUSY:
                    quota = "exceeded quota" in str(error)
                    node = body["metadata"]["annotations"].get("trainmaster.dev/node") if quota else None
                    raise Refused(f"{body['metadata']['name']}: {error}", node) from None
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

    async def _bind(self, namespace: str, name: str, node: str) -> None:
        path = paths.pod(namespace, name)
        data = orjson.dumps(binding_body(name, namespace, node))
        while True:
            try:
                await self._client.create(f"{path}/binding", data, params=TAKEN_AS_IT_IS)
                return
            except NotFound:
                raise Refused(f"{name} was deleted", node) from None
            except Conflict:
                try:
                    found = await self._client.get(path)
                except NotFound:
                    raise Refused(f"{name} was deleted", node) from None
                if found["spec"].get("nodeName") == node:
                    return
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
