"""Blobs as ConfigMaps of one namespace: creation of a name happens once, whoever tries."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import Any

import orjson

from trainmaster.backends.kubernetes.api import paths
from trainmaster.backends.kubernetes.api.client import ApiError, Conflict, KubeClient, NotFound
from trainmaster.backends.kubernetes.api.loop_thread import LoopPortal
from trainmaster.engine.ports import StoreError
from trainmaster.stores.journal import BlobTaken

STATE_LABEL = "trainmaster.dev/state"
KEY = "blob"
PAGE = 50
"""Blobs of one answer: each may be close to a megabyte."""


class ConfigMapBlobs:
    """See `trainmaster.stores.journal.Blobs`. Called from other threads than the loop's."""

    def __init__(
        self,
        client: KubeClient,
        portal: LoopPortal,
        namespace: str,
        name: str,
        *,
        patience_s: float = 8.0,
        may_write: Callable[[], bool] = lambda: True,
    ) -> None:
        """`name` tells one service's blobs from another's. `may_write` is asked before each write."""
        self._client = client
        self._portal = portal
        self._path = paths.config_maps(namespace)
        self._prefix = f"{name}-state-"
        self._name = name
        self._patience_s = patience_s
        self._may_write = may_write

    def create(self, name: str, data: bytes) -> None:
        self._check()
        body = orjson.dumps(
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": self._prefix + name, "labels": {STATE_LABEL: self._name}},
                "immutable": True,
                "binaryData": {KEY: base64.b64encode(data).decode()},
            }
        )
        try:
            self._do(self._client.create(self._path, body, patience_s=self._patience_s, urgent=True))
        except Conflict:
            raise BlobTaken(name) from None

    def read(self, name: str) -> bytes | None:
        try:
            return _data(self._do(self._client.get(f"{self._path}/{self._prefix}{name}")))
        except NotFound:
            return None

    def read_all(self) -> dict[str, bytes]:
        found, _ = self._do(self._client.list_all(self._path, page=PAGE, labelSelector=f"{STATE_LABEL}={self._name}"))
        return {thing["metadata"]["name"].removeprefix(self._prefix): _data(thing) for thing in found}

    def delete(self, names: Sequence[str]) -> None:
        self._check()
        self._do(self._delete_all(names))

    async def _delete_all(self, names: Sequence[str]) -> None:
        for name in names:  # one by one: it is not urgent, and others want to write too
            try:
                await self._client.delete(f"{self._path}/{self._prefix}{name}")
            except NotFound:
                continue

    def _check(self) -> None:
        if not self._may_write():
            raise StoreError("this service does not lead any more; another one does, or will")

    def _do(self, work: Any) -> Any:
        try:
            return self._portal.call(work, 120.0)
        except (NotFound, Conflict):
            raise
        except ApiError as error:
            raise StoreError(f"the API server did not keep the state: {error}") from error
        except TimeoutError as error:
            raise StoreError("the API server did not answer") from error


def _data(thing: dict[str, Any]) -> bytes:
    return base64.b64decode(thing.get("binaryData", {}).get(KEY, ""))
