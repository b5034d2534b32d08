"""The API server: objects with versions, lists, watches and their history, deletion with grace. No faults here."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import orjson

Object = dict[str, Any]
HISTORY = 400
"""Changes that a watch may begin before; older ones are compacted away."""


class Status(Exception):
    def __init__(self, code: int, reason: str, message: str = "") -> None:
        super().__init__(message or reason)
        self.code = code
        self.body = {"kind": "Status", "code": code, "reason": reason, "message": message or reason}


class Path(NamedTuple):
    kind: str
    namespace: str | None
    name: str | None
    sub: str | None


def parse(path: str) -> Path:
    words = path.strip("/").split("/")
    words = words[2:] if words[0] == "api" else words[3:]
    namespace = None
    if words[0] == "namespaces" and len(words) > 2:
        namespace, words = words[1], words[2:]
    return Path(words[0], namespace, *[*words[1:3], None, None][:2])


@dataclass
class Watcher:
    where: Path
    params: dict[str, str]
    tell: Callable[[str, Object], None]

    def wants(self, kind: str, thing: Object) -> bool:
        within = self.where.namespace in (None, thing["metadata"].get("namespace"))
        return kind == self.where.kind and within and matches(thing, self.params)


class ApiServer:
    """`now_s` is virtual time. Objects are handed out as copies."""

    def __init__(self, now_s: Callable[[], float], rng: random.Random) -> None:
        self._now_s = now_s
        self._rng = rng
        self.objects: dict[tuple[str, str, str], Object] = {}
        self.version = 100
        self.history: list[tuple[int, str, str, Object]] = []
        self.compacted = 100
        self.watchers: list[Watcher] = []

    # -- requests ------------------------------------------------------------------------------------

    def handle(self, method: str, path: str, body: Any, params: dict[str, str]) -> Object:
        where = parse(path)
        if method == "GET":
            return self.read(where, params)
        if method == "POST":
            if params.get("dryRun"):
                return body
            return self._bind(where, body) if where.sub == "binding" else self.create(where, body)
        if method == "PUT":
            return self.replace(where, body)
        if method == "PATCH":
            return self.patch(where, body)
        return self.delete(where, body or {})

    def read(self, where: Path, params: dict[str, str]) -> Object:
        if where.name is not None:
            return _copy(self._find(where))
        items = [_copy(each) for key, each in sorted(self.objects.items()) if self._listed(key, where, each, params)]
        return {"metadata": {"resourceVersion": str(self.version)}, "items": items}

    def _listed(self, key: tuple[str, str, str], where: Path, thing: Object, params: dict[str, str]) -> bool:
        return key[0] == where.kind and where.namespace in (None, key[1]) and matches(thing, params)

    def _find(self, where: Path) -> Object:
        found = self.objects.get((where.kind, where.namespace or "", where.name or ""))
        if found is None:
            raise Status(404, "NotFound", f"{where.kind} {where.name} not found")
        return found

    def create(self, where: Path, body: Object) -> Object:
        thing = _copy(body)
        meta = thing["metadata"]
        key = (where.kind, where.namespace or "", meta["name"])
        if key in self.objects:
            raise Status(409, "AlreadyExists", f"{where.kind} {meta['name']} already exists")
        meta["uid"] = f"{self._rng.getrandbits(64):016x}"
        meta["creationTimestamp"] = self.timestamp()
        if where.namespace is not None:
            meta["namespace"] = where.namespace
        if where.kind == "pods":
            thing.setdefault("status", {"phase": "Pending"})
        if where.kind == "trainingjobs":
            meta["generation"] = 1
        self.objects[key] = thing
        return self._changed("ADDED", where.kind, thing)

    def replace(self, where: Path, body: Object) -> Object:
        found = self._find(where)
        expected = body["metadata"].get("resourceVersion")
        if expected is not None and expected != found["metadata"]["resourceVersion"]:
            raise Status(409, "Conflict", "the object has been modified")
        meta = {**found["metadata"], **_copy(body["metadata"])}
        found.update({**_copy(body), "metadata": meta})
        return self._changed("MODIFIED", where.kind, found)

    def patch(self, where: Path, body: Object) -> Object:
        found = self._find(where)
        uid = body.get("metadata", {}).get("uid")
        if uid is not None and uid != found["metadata"]["uid"]:
            raise Status(409, "Conflict", "the UID in the patch does not match")
        _merge(found, body)
        if where.kind == "trainingjobs" and "spec" in body:
            found["metadata"]["generation"] += 1
        return self._changed("MODIFIED", where.kind, found)

    def _bind(self, where: Path, body: Object) -> Object:
        pod = self._find(where)
        if pod["spec"].get("nodeName") or pod["metadata"].get("deletionTimestamp"):
            raise Status(409, "Conflict", "pod is assigned already, or is being deleted")
        pod["spec"]["nodeName"] = body["target"]["name"]
        return self._changed("MODIFIED", "pods", pod)

    def delete(self, where: Path, options: Object) -> Object:
        thing = self._find(where)
        uid = options.get("preconditions", {}).get("uid")
        if uid is not None and uid != thing["metadata"]["uid"]:
            raise Status(409, "Conflict", "the UID in the precondition does not match")
        grace_s = options.get("gracePeriodSeconds")
        if grace_s is None:
            grace_s = thing.get("spec", {}).get("terminationGracePeriodSeconds", 30)
        held = where.kind == "pods" and thing["spec"].get("nodeName")
        if held and grace_s > 0 and thing["status"].get("phase") not in ("Succeeded", "Failed"):
            if "deletionTimestamp" in thing["metadata"]:
                return _copy(thing)
            thing["metadata"]["deletionTimestamp"] = self.timestamp(grace_s)
            thing["metadata"]["deletionGracePeriodSeconds"] = grace_s
            return self._changed("MODIFIED", where.kind, thing)
        del self.objects[where.kind, where.namespace or "", where.name or ""]
        return self._changed("DELETED", where.kind, thing)

    def collect_garbage(self) -> None:
        """Delete pods whose owner is gone."""
        uids = {each["metadata"]["uid"] for each in self.objects.values()}
        for (kind, namespace, name), thing in list(self.objects.items()):
            owners = thing["metadata"].get("ownerReferences") or ()
            if kind == "pods" and owners and not any(owner["uid"] in uids for owner in owners):
                self.delete(Path("pods", namespace, name, None), {})

    # -- changes and watches -------------------------------------------------------------------------

    def _changed(self, what: str, kind: str, thing: Object) -> Object:
        self.version += 1
        thing["metadata"]["resourceVersion"] = str(self.version)
        now = _copy(thing)
        self.history.append((self.version, what, kind, now))
        if len(self.history) > 2 * HISTORY:
            self.compact(self.history[HISTORY][0])
        for watcher in list(self.watchers):
            if watcher.wants(kind, now):
                watcher.tell(what, now)
        return _copy(now)

    def compact(self, before: int) -> None:
        """Forget changes before this version."""
        self.compacted = max(self.compacted, before)
        self.history = [entry for entry in self.history if entry[0] >= before]

    def watch(self, where: Path, params: dict[str, str], tell: Callable[[str, Object], None]) -> Watcher:
        """`tell` hears every change after the version asked for."""
        since = int(params.get("resourceVersion") or 0)
        if since < self.compacted - 1:
            raise Status(410, "Expired", "too old resource version")
        watcher = Watcher(where, params, tell)
        for version, what, kind, thing in self.history:
            if version > since and watcher.wants(kind, thing):
                tell(what, thing)
        self.watchers.append(watcher)
        return watcher

    def timestamp(self, ahead_s: float = 0.0) -> str:
        at = datetime(2024, 1, 1, tzinfo=UTC) + timedelta(seconds=self._now_s() + ahead_s)
        return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def matches(thing: Object, params: dict[str, str]) -> bool:
    labels = thing["metadata"].get("labels") or {}
    for term in filter(None, params.get("labelSelector", "").split(",")):
        name, _, value = term.partition("=")
        if labels.get(name) != value:
            return False
    for term in filter(None, params.get("fieldSelector", "").split(",")):
        name, _, value = term.partition("=")
        if name == "metadata.name" and thing["metadata"]["name"] != value:
            return False
    return True


def _copy(thing: Object) -> Object:
    return orjson.loads(orjson.dumps(thing))


def _merge(into: Object, patch: Object) -> None:
    for key, value in patch.items():
        if value is None:
            into.pop(key, None)
        elif isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value
