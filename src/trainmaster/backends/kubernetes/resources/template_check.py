"""Whether a template can become a pod at all, asked of the API server before the job is taken: a creation that is not
carried out (`dryRun`), with unknown fields refused. Templates that are the same are asked for once."""

from __future__ import annotations

import asyncio
import copy
import hashlib
import re
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from trainmaster.backends.kubernetes.api import paths
from trainmaster.backends.kubernetes.api.client import ApiError, KubeClient
from trainmaster.backends.kubernetes.attempts.observations import SCHEDULER
from trainmaster.model.errors import InputError

Json = Mapping[str, Any]
MAX_KNOWN = 10_000
FAULTS = (400, 422)
"""Statuses that speak of the template. Quotas and policies of a namespace may change: they are left to the start."""
_UNKNOWN_FIELD = re.compile(r'(?:unknown|duplicate) field "([^"]+)"')


class TemplateCheck:
    """Belongs to the loop of the client."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._known: dict[bytes, InputError | None] = {}
        self._asking: set[bytes] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.news: Callable[[], None] = lambda: None
        """Is called when something is known that was asked for."""
        self.asked = 0

    def known(self, job: Json) -> bool:
        """Whether `fault` has an answer; if not, it is asked for."""
        missing = [(key, role) for key, role in self._keys(job) if key not in self._known]
        for key, role in missing:
            if key not in self._asking:
                self._asking.add(key)
                task = asyncio.get_running_loop().create_task(self._ask(key, role, job))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        return not missing

    def fault(self, job: Json) -> InputError | None:
        return next((self._known[key] for key, _ in self._keys(job) if self._known.get(key) is not None), None)

    def _keys(self, job: Json) -> list[tuple[bytes, str]]:
        namespace = job["metadata"]["namespace"].encode()
        spec = job.get("spec") or {}
        roles = [role for role in ("template", "serverTemplate") if spec.get(role)]
        options = orjson.OPT_SORT_KEYS
        return [
            (hashlib.sha256(namespace + b"\0" + orjson.dumps(spec[role], option=options)).digest(), role)
            for role in roles
        ]

    async def _ask(self, key: bytes, role: str, job: Json) -> None:
        fault: InputError | None = None
        self.asked += 1
        try:
            await self._client.request(
                "POST", paths.pods(job["metadata"]["namespace"]), body=trial_pod(job, role),
                params={"dryRun": "All", "fieldValidation": "Strict"}, patience_s=10.0,
            )  # fmt: skip
        except ApiError as error:
            fault = fault_of(error, f"spec.{role}")
        if len(self._known) >= MAX_KNOWN:
            self._known.clear()
        self._known[key] = fault
        self._asking.discard(key)
        self.news()


def trial_pod(job: Json, role: str) -> dict[str, Any]:
    template = copy.deepcopy(job["spec"][role])
    meta = template.get("metadata") or {}
    kept = {name: meta[name] for name in ("labels", "annotations") if meta.get(name)}
    spec = {**template["spec"], "schedulerName": SCHEDULER, "restartPolicy": "Never"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": f"{job['metadata']['name'][:40]}-trial-", **kept},
        "spec": spec,
    }


def fault_of(error: ApiError, where: str) -> InputError | None:
    """What is wrong with the template, with the path that its user knows; None: something else is."""
    if error.status not in FAULTS:
        return None
    causes = error.details.get("causes") or ()
    text = str(error)
    field = str(causes[0].get("field", "")) if causes else ""
    told = str(causes[0].get("message", "")) if causes else ""
    if not field:
        match = _UNKNOWN_FIELD.search(text)
        field, told = (match[1], match[0]) if match else ("", text)
    path = f"{where}.{field}" if field and field != "<nil>" else where
    return InputError((told or text)[:300], "what a pod may be", column=path)
