"""Logs of a job's pods, read in pieces like the files of one machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import aiohttp

from trainmaster.backends.kubernetes.api import paths
from trainmaster.backends.kubernetes.api.client import ApiError, KubeClient, Unreachable
from trainmaster.service.local.logs import Chunk, chosen_attempt, chosen_member

BYTES_PER_S = 4 << 20
"""Of a log that is followed: it is fetched as often as this allows, and at most once a second."""
MAX_FOLLOWED = 1_000
MAX_LOG = 64 << 20
"""The API server gives logs from their beginning only; of longer ones the end is shown."""


class PodLogs:
    """Logs of pods. The API server gives them whole, so that who waits at the end of one is not served anew each time
    they ask."""

    def __init__(self, client: KubeClient, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._ends: dict[tuple[str, int | None, str | None], tuple[float, Chunk]] = {}
        """Where logs ended when they were last fetched; until when that is believed."""

    async def read(self, job_id: str, attempt: int | None, member: str | None, offset: int, limit: int) -> Chunk:
        key = (job_id, attempt, member)
        until_s, end = self._ends.get(key, (0.0, None))
        if end is not None and offset == end.size and self._clock() < until_s:
            return replace(end, text="", offset=offset)
        found = await read_pod_log(self._client, job_id, attempt, member, offset, limit)
        if len(self._ends) >= MAX_FOLLOWED:
            self._ends.clear()
        self._ends[key] = (self._clock() + max(1.0, found.size / BYTES_PER_S), replace(found, text=""))
        return found


async def read_pod_log(
    client: KubeClient, job_id: str, attempt: int | None, member: str | None, offset: int, limit: int
) -> Chunk:
    namespace, name, _ = job_id.split(".")
    found = await client.get(paths.pods(namespace), labelSelector=f"trainmaster.dev/job={name}")
    pods = [pod for pod in found.get("items") or () if _note(pod, "job-id") in (job_id, "")]
    attempts = sorted({_generation(pod) for pod in pods})
    chosen = chosen_attempt(job_id, attempts, attempt, "pod")
    members = {_member(pod): pod for pod in pods if _generation(pod) == chosen}
    names = sorted(members, key=lambda text: (not text.startswith("worker"), len(text), text))
    picked = chosen_member(job_id, chosen, names, member)
    if not picked:
        return Chunk("", chosen, "", [], len(attempts), max(offset, 0), 0)
    pod = members[picked]
    data = await _text(client, namespace, pod)
    start = max(len(data) + offset, 0) if offset < 0 else min(offset, len(data))
    piece = data[start : start + limit]
    return Chunk(piece.decode("utf-8", "replace"), chosen, picked, names, len(attempts), start + len(piece), len(data))


async def _text(client: KubeClient, namespace: str, pod: Any) -> bytes:
    """Plain text, unlike everything else that the API server says."""
    path = paths.pod(namespace, pod["metadata"]["name"], "log")
    container = pod["spec"]["containers"][0]["name"]
    try:
        return await client.text(path, container=container, limitBytes=str(MAX_LOG))
    except (aiohttp.ClientError, TimeoutError) as fault:
        raise Unreachable(0, "Unreachable", str(fault)) from None
    except ApiError as error:
        if error.status == 400:  # the container has not started yet
            return b""
        raise


def _note(pod: Any, key: str) -> str:
    return str((pod["metadata"].get("annotations") or {}).get(f"trainmaster.dev/{key}", ""))


def _label(pod: Any, key: str) -> str:
    return str((pod["metadata"].get("labels") or {}).get(f"trainmaster.dev/{key}", ""))


def _generation(pod: Any) -> int:
    text = _label(pod, "generation")
    return int(text) if text.isdigit() else 0


def _member(pod: Any) -> str:
    """`worker-0`, as everywhere; newcomers of a resize have numbers of their own."""
    return f"{_label(pod, 'role') or 'worker'}-{_label(pod, 'rank') or _note(pod, 'member')}"
