"""Whether a template can become a pod at all, asked of the API server before the job is taken: a creation that is not
carried out (`dryRun`), with unknown fields refused. Templates that are the same are asked for once in a while.

The answer also says what the pod would ask of its node: a LimitRange of the namespace may add to the template.
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
import logging
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from trainmaster.backends.kubernetes.api import paths
from trainmaster.backends.kubernetes.api.client import ApiError, KubeClient
from trainmaster.backends.kubernetes.attempts.observations import SCHEDULER
from trainmaster.model.errors import InputError

log = logging.getLogger(__name__)
Json = Mapping[str, Any]
MAX_KNOWN = 10_000
KEEP_S = 60.0
"""An answer holds for so long: the defaults of a namespace may change."""
KINDS = ("initContainers", "containers")
FAULTS = (400, 422)
"""Statuses that speak of the template. Quotas and policies of a namespace may change: they are left to the start."""
_UNKNOWN_FIELD = re.compile(r'(?:unknown|duplicate) field "([^"]+)"')


@dataclass(frozen=True)
class Verdict:
    """`fault`: why no pod can be made of a template; `resources` of its containers, by kind and name, as they are with
    the defaults of the namespace; `priority`: the value of its PriorityClass."""

    fault: InputError | None = None
    resources: dict[tuple[str, str], Json] = field(default_factory=dict)
    priority: int | None = None
    until_s: float = 0.0


class TemplateCheck:
    """Belongs to the loop of the client."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._known: dict[bytes, Verdict] = {}
        self._asking: set[bytes] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.news: Callable[[], None] = lambda: None
        """Is called when something is known that was asked for."""
        self.asked = 0

    def known(self, job: Json) -> bool:
        """Whether `fault` has an answer; if not, it is asked for."""
        now_s, nothing = time.monotonic(), Verdict()
        missing = [(key, role) for key, role in self._keys(job) if self._known.get(key, nothing).until_s <= now_s]
        for key, role in missing:
            if key not in self._asking:
                self._asking.add(key)
                task = asyncio.get_running_loop().create_task(self._ask(key, role, job))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        return not missing

    def fault(self, job: Json) -> InputError | None:
        verdicts = [self._known[key] for key, _ in self._keys(job) if key in self._known]
        return next((verdict.fault for verdict in verdicts if verdict.fault is not None), None)

    def filled(self, job: Json) -> dict[str, Any]:
        """The job with what its containers would ask for, as the templates say or by default in the namespace, and with
        the value of their PriorityClass."""
        spec = dict(job["spec"])
        for key, role in self._keys(job):
            known = self._known.get(key)
            if known is None or not known.resources:
                continue
            pod = dict(spec[role]["spec"])
            if known.priority is not None:
                pod["priority"] = known.priority
            for kind in KINDS:
                if pod.get(kind):
                    pod[kind] = [
                        {**each, "resources": known.resources.get((kind, each.get("name", "")), each.get("resources"))}
                        for each in pod[kind]
                    ]
            spec[role] = {**spec[role], "spec": pod}
        return {**job, "spec": spec}

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
        resources: dict[tuple[str, str], Json] = {}
        priority = None
        self.asked += 1
        try:
            made = await self._client.request(
                "POST",
                paths.pods(job["metadata"]["namespace"]),
                body=trial_pod(job, role),
                params={"dryRun": "All", "fieldValidation": "Strict"},
                patience_s=10.0,
            )
            resources = resources_of(made or {})
            priority = ((made or {}).get("spec") or {}).get("priority")
        except ApiError as error:
            fault = fault_of(error, f"spec.{role}")
        except Exception as error:  # the job is refused, and asked about no more
            log.exception("the %s of %s cannot be asked about", role, job["metadata"].get("name"))
            fault = unreadable(error, f"spec.{role}")
        if len(self._known) >= MAX_KNOWN:
            self._known.clear()
        self._known[key] = Verdict(fault, resources, priority, time.monotonic() + KEEP_S)
        self._asking.discard(key)
        self.news()


def unreadable(error: Exception, where: str = "spec") -> InputError:
    return InputError(f"cannot be read: {type(error).__name__}", "what `kubectl explain` says", column=where)


def resources_of(pod: Json) -> dict[tuple[str, str], Json]:
    spec = pod.get("spec") or {}
    return {(kind, each["name"]): each.get("resources") or {} for kind in KINDS for each in spec.get(kind) or ()}


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
