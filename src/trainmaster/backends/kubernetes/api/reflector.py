"""A copy of a collection of API objects, kept by one list and a watch after it. No polling.

The watch ends when the server says so, and begins again where it was. When that is too long ago for the server
(410), the collection is listed again and compared: what is missing then was deleted meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from typing import Literal

from trainmaster.backends.kubernetes.api.client import ApiError, Expired, Forbidden, KubeClient, Object

log = logging.getLogger(__name__)
ADDED, MODIFIED, DELETED = "ADDED", "MODIFIED", "DELETED"
Change = Literal["ADDED", "MODIFIED", "DELETED"]
Key = tuple[str, str]
"""Namespace (empty for objects without one) and name."""
FIRST_WAIT_S, MAX_WAIT_S = 0.1, 1.0
"""Between attempts: a server that is back should not wait for us, and a few replicas are no burden to it."""
PAGE = 500
"""Objects of a list that are asked for, and taken, at a stretch."""
BREATH = 500
"""Changes that are taken at a stretch before others get a turn."""


def key_of(thing: Object) -> Key:
    meta = thing["metadata"]
    return meta.get("namespace", ""), meta["name"]


class Reflector:
    """`run` until cancelled. `on_change(kind, now, before)` is called within the loop; it must not block."""

    def __init__(
        self,
        client: KubeClient,
        path: str,
        on_change: Callable[[Change, Object, Object | None], None],
        *,
        labels: str | None = None,
        fields: str | None = None,
        trim: Callable[[Object], Object] | None = None,
        on_sync: Callable[[], None] | None = None,
        page: int = PAGE,
    ) -> None:
        """`trim` drops what nobody needs, before it is kept. `on_sync` is told whenever a list was taken in whole."""
        self._client = client
        self._path = path
        self._on_change = on_change
        self.set_aside: dict[Key, Exception] = {}
        """Objects that whoever is told could not take; the log says why."""
        self.on_set_aside: Callable[[str, Exception], None] | None = None
        """Told once for each."""
        self._on_sync = on_sync
        self._trim = trim or _without_managed_fields
        self._params = {key: value for key, value in (("labelSelector", labels), ("fieldSelector", fields)) if value}
        self._page = page
        self.objects: dict[Key, Object] = {}
        self.synced = asyncio.Event()
        self.version = ""
        self.lists = 0
        self.heard_s = float("-inf")
        """When the server last said something, by the monotonic clock: whether we may believe the copy."""
        self.fault: ApiError | None = None
        self._watching: asyncio.Task[None] | None = None
        self._asked = self._done = 0
        """Fresh lists that were asked for, and that came."""
        self._fresh = asyncio.Event()

    async def refresh(self) -> None:
        """Wait for a list that is asked for from now on. A watch may be broken, and the copy out of date, without
        anybody knowing: who begins to act on it must not conclude that what is missing there is gone."""
        self._asked += 1
        self._fresh.clear()
        if self._watching is not None:
            self._watching.cancel()
        await self._fresh.wait()

    async def run(self) -> None:
        wait_s = FIRST_WAIT_S
        while True:
            try:
                if not self.version or self._done < self._asked:
                    await self._list()
                    continue
                await self._watch_on()
                wait_s = FIRST_WAIT_S
                continue
            except Expired:
                self.version = ""
            except Forbidden as error:
                self.fault = error
            except ApiError as error:
                self.fault = error
                if error.status in (400, 404):
                    self.version = ""
            begun_s = time.monotonic()
            await asyncio.sleep(wait_s * random.uniform(0.5, 1.0))
            # After a spell of quiet watching the first pause is short again.
            wait_s = FIRST_WAIT_S if begun_s - self.heard_s < FIRST_WAIT_S else min(wait_s * 2, MAX_WAIT_S)

    async def _watch_on(self) -> None:
        """Until the watch ends, or a fresh list is asked for."""
        self._watching = asyncio.ensure_future(self._watch())
        try:
            await asyncio.wait([self._watching])
            if not self._watching.cancelled():
                self._watching.result()
        finally:
            self._watching.cancel()
            self._watching = None

    async def _list(self) -> None:
        asked = self._asked
        gone = dict(self.objects)
        version = ""
        async for items, listed in self._client.pages(self._path, page=self._page, **self._params):
            self._heard()
            version = listed
            for thing in items:
                self._listed(thing, gone.pop(key_of(thing), None))
        self.lists += 1
        for thing in gone.values():
            self._take(DELETED, thing)
        self.version = version
        self.fault = None
        self.synced.set()
        self._done = asked
        if self._done == self._asked:
            self._fresh.set()
        if self._on_sync is not None:
            self._on_sync()

    def _listed(self, thing: Object, before: Object | None) -> None:
        if before is not None and before["metadata"]["uid"] != thing["metadata"]["uid"]:
            self._take(DELETED, before)  # deleted and made again while nobody looked
            before = None
        if before is None:
            self._take(ADDED, thing)
        elif before["metadata"]["resourceVersion"] != thing["metadata"]["resourceVersion"]:
            self._take(MODIFIED, thing)

    async def _watch(self) -> None:
        taken = 0
        async for kind, thing in self._client.watch(self._path, self.version, **self._params):
            self._heard()
            self.version = thing["metadata"]["resourceVersion"]
            if kind != "BOOKMARK":
                self._take(kind, thing)  # type: ignore[arg-type]
                taken += 1
                if taken % BREATH == 0:
                    await asyncio.sleep(0)

    def _heard(self) -> None:
        self.heard_s = time.monotonic()
        self.fault = None

    def _take(self, kind: Change, thing: Object) -> None:
        """One object that whoever is told cannot read is set aside alone: anybody may have written it."""
        key = key_of(thing)
        before = self.set_aside.pop(key, None)
        try:
            self._tell(kind, thing)
        except Exception as error:
            name = f"{'/'.join(filter(None, key))} of {self._path}"
            log.exception("%s was set aside", name)
            if kind != DELETED:
                self.set_aside[key] = error
            if before is None and self.on_set_aside is not None:
                self.on_set_aside(name, error)

    def _tell(self, kind: Change, thing: Object) -> None:
        key = key_of(thing)
        before = self.objects.get(key)
        if kind == DELETED:
            if before is not None:
                del self.objects[key]
            self._on_change(kind, self._trim(thing), before)
            return
        thing = self.objects[key] = self._trim(thing)
        self._on_change(ADDED if before is None else MODIFIED, thing, before)


def _without_managed_fields(thing: Object) -> Object:
    thing["metadata"].pop("managedFields", None)
    return thing
