"""The TrainingJob that a request means on Kubernetes."""

from __future__ import annotations

import re
from typing import Any

from trainmaster.jobspec.model import CRD_PATHS, Crd, JobFields, JobRequest, TrainingJobSpec, note_of
from trainmaster.model.errors import InputError

API_VERSION = "trainmaster.dev/v1alpha1"
KIND = "TrainingJob"
MAX_NAME = 45
"""Pods are called NAME-gGENERATION-wRANK, and a pod's name is its host name: at most 63 characters."""
NAME_PATTERN = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
_NAME = re.compile(NAME_PATTERN)


def to_training_job(request: JobRequest, namespace: str, wanted: str, index: int | None, user: str) -> dict[str, Any]:
    """Raises `InputError` for what a pod cannot be. `wanted` tells this request from others."""
    if request.image is None:
        raise InputError("a pod needs an image", "the image that holds the program", "Pass --image.", column="image")
    if request.snapshot:
        told = "copies a folder for a service on one machine; a pod runs what its image holds"
        raise InputError(told, "no such field on Kubernetes", column="snapshot")
    spec = _spec(request)
    worker = request.cpus_per_worker, request.memory_mib_per_worker
    spec["template"] = _template(request, request.command, worker, index)
    if request.servers.max:
        server = request.cpus_per_server, request.memory_mib_per_server
        spec["serverTemplate"] = _template(request, request.server_command or request.command, server, index)
    notes = {"trainmaster.dev/request": wanted, "trainmaster.dev/submitted-by": user}
    meta = {"name": _name(request, wanted, index), "namespace": namespace, "annotations": notes}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": meta, "spec": spec}


def _spec(request: JobRequest) -> dict[str, Any]:
    """Every field that was given, at its place; sizes always, since the API server's defaults are a pod's."""
    data = request.model_dump(mode="json", exclude_defaults=True, include=set(JobFields.model_fields))
    data = {**request.model_dump(include={"workers", "gpus_per_worker"}), **data}
    if "steps" in data:
        data.pop("epochs", None)
    spec: dict[str, Any] = {}
    for field, value in data.items():
        if note_of(TrainingJobSpec, field, Crd).whole:
            value = _whole(field, value)
        *parents, key = CRD_PATHS[field].split(".")
        holder = spec
        for parent in parents:
            holder = holder.setdefault(parent, {})
        holder[key] = value
    return spec


def _whole(field: str, value: float) -> int:
    if field in ("deadline_s", "time_s"):
        return max(round(value), 1)
    if value != int(value):
        raise InputError(f"invalid value {value:g}", "a whole number on Kubernetes", column=field)
    return int(value)


def _name(request: JobRequest, wanted: str, index: int | None) -> str:
    suffix = "" if index is None else f"-{index}"
    name = (request.name or f"job-{re.sub('[^a-z0-9]', '', wanted.lower())[:10] or 'x'}") + suffix
    if not _NAME.match(name) or len(name) > MAX_NAME:
        expected = f"at most {MAX_NAME} lower-case letters, digits and '-', starting with a letter"
        raise InputError(f"invalid TrainingJob name '{name[:80]}'", expected, column="name")
    return name


def _template(request: JobRequest, command: list[str], size: tuple[float, int], index: int | None) -> dict[str, Any]:
    """`size`: CPUs and MiB of memory."""
    cpus, memory_mib = size
    env = [{"name": name, "value": value} for name, value in sorted(request.env.items())]
    if index is not None:
        env.append({"name": "TRAINMASTER_ARRAY_INDEX", "value": str(index)})
    trainer: dict[str, Any] = {"name": "trainer", "image": request.image, "command": list(command)}
    if env:
        trainer["env"] = env
    if request.workdir is not None:
        trainer["workingDir"] = request.workdir
    asked: dict[str, str] = {}
    if cpus:
        asked["cpu"] = f"{round(cpus * 1000)}m"
    if memory_mib:
        asked["memory"] = f"{memory_mib}Mi"
    if asked:
        limits = {"limits": {"memory": asked["memory"]}} if "memory" in asked else {}
        trainer["resources"] = {"requests": asked, **limits}
    return {"spec": {"containers": [trainer]}}
