"""The TrainingJob that a request of `trainmaster submit` means."""

from __future__ import annotations

import re
from typing import Any

from trainmaster.backends.kubernetes.crd import API_VERSION, KIND, MAX_NAME
from trainmaster.model.errors import InputError
from trainmaster.service.specs import check_request
from trainmaster.wire.api import JobRequest

_NAME = re.compile(r"^[a-z]([-a-z0-9]*[a-z0-9])?$")
_FIELDS = {
    "model": "model", "batch_size": "batchSize", "weight": "weight", "priority": "priority", "entity": "entity",
    "budget": "budget", "max_attempts": "maxAttempts", "preemptible": "preemptible", "utility": "utility",
}  # fmt: skip


def training_job(body: JobRequest, namespace: str, wanted: str, index: int | None, user: str) -> dict[str, Any]:
    """Raises `InputError` for what a pod cannot be. `wanted` tells this request from others."""
    check_request(body)
    if body.image is None:
        raise InputError("a pod needs an image", "the image that holds the program", "Give --image.", column="image")
    if body.after:
        raise InputError("is not known to TrainingJobs", "no dependencies", column="after")
    if body.gpus_per_worker != int(body.gpus_per_worker):
        raise InputError(f"{body.gpus_per_worker:g} GPUs", "whole GPUs on Kubernetes", column="gpus_per_worker")
    spec: dict[str, Any] = {
        "workers": {"min": body.workers.min, "max": body.workers.max},
        "gpusPerWorker": int(body.gpus_per_worker),
        "template": _template(body, body.command, index),
    }
    if body.servers.max:
        spec["servers"] = {"min": body.servers.min, "max": body.servers.max}
        if body.server_command is not None:
            spec["serverTemplate"] = _template(body, body.server_command, index)
    if body.gpu_types:
        spec["gpuTypes"] = list(body.gpu_types)
    if body.deadline_s is not None:
        spec.update(deadlineSeconds=max(round(body.deadline_s), 1), deadlineKind=body.deadline_kind)
    if body.steps is not None or body.epochs is not None:
        spec["work"] = {"steps": body.steps} if body.steps is not None else {"epochs": body.epochs}
    if body.steps_per_s:
        spec["stepsPerSecond"] = dict(body.steps_per_s)
    for ours, theirs in _FIELDS.items():
        if ours in body.model_fields_set and getattr(body, ours) not in (None, ""):
            spec[theirs] = getattr(body, ours)
    notes = {"trainmaster.dev/request": wanted, "trainmaster.dev/submitted-by": user}
    meta = {"name": _name(body, wanted, index), "namespace": namespace, "annotations": notes}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": meta, "spec": spec}


def _name(body: JobRequest, wanted: str, index: int | None) -> str:
    suffix = "" if index is None else f"-{index}"
    name = (body.name or f"job-{re.sub('[^a-z0-9]', '', wanted.lower())[:10] or 'x'}") + suffix
    if not _NAME.match(name) or len(name) > MAX_NAME:
        raise InputError(
            f"'{name[:80]}' is no name of a TrainingJob",
            f"at most {MAX_NAME} lower-case letters, digits and '-', beginning with a letter", column="name",
        )  # fmt: skip
    return name


def _template(body: JobRequest, command: list[str], index: int | None) -> dict[str, Any]:
    env = [{"name": name, "value": value} for name, value in sorted(body.env.items())]
    if index is not None:
        env.append({"name": "TRAINMASTER_ARRAY_INDEX", "value": str(index)})
    trainer: dict[str, Any] = {"name": "trainer", "image": body.image, "command": list(command)}
    if env:
        trainer["env"] = env
    if body.workdir is not None and "workdir" in body.model_fields_set:
        trainer["workingDir"] = body.workdir
    asked: dict[str, str] = {}
    if body.cpus_per_worker:
        asked["cpu"] = f"{round(body.cpus_per_worker * 1000)}m"
    if body.memory_mib_per_worker:
        asked["memory"] = f"{body.memory_mib_per_worker}Mi"
    if asked:
        trainer["resources"] = {"requests": asked}
    return {"spec": {"containers": [trainer]}}
