"""From a TrainingJob to the job that the engine takes. What cannot be a job is refused with the field's name.

The API server has checked types, ranges and names (`crd.py`); here is what its rules cannot say. Objects that
slipped past them (an older schema, a rule switched off) are refused as well, never taken on trust.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any

from trainmaster.backends.kubernetes.crd import DEFAULT_GPU_RESOURCE, MAX_GPUS_PER_WORKER, MAX_MEMBERS
from trainmaster.backends.kubernetes.facts import LAUNCHER, USERS_OWN
from trainmaster.backends.kubernetes.quantity import (
    QuantityError,
    container_requests,
    cpu_milli_up,
    mem_mib_up,
    pod_requests,
)
from trainmaster.model.errors import InputError
from trainmaster.model.job import NO_DEMAND, DeadlineKind, Demand, JobId, JobSpec
from trainmaster.model.units import GPU_MILLI, MS_PER_S, NEVER_MS
from trainmaster.model.utility import parse_utility

Json = Mapping[str, Any]

SCHEDULER_NAME = "trainmaster"
RESERVED_ENV = "TRAINMASTER_"
RENDEZVOUS_ENV = frozenset(
    {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT"}
)
MAX_SHOWN = 500
"""Characters of a command that are kept to be shown."""


def rejection(field: str, what: str, expected: str = "") -> InputError:
    """The job can never run as it stands. `field` is the path a user knows, such as `spec.template.spec`."""
    return InputError(what, expected, column=field)


def job_id_of(namespace: str, name: str, uid: str) -> JobId:
    """Deterministic, so that a restart needs no table; a job created anew under an old name is another job."""
    return JobId(f"{namespace}.{name}.{uid.replace('-', '')[:8]}")


def job_id_of_object(obj: Json) -> JobId:
    meta = obj["metadata"]
    return job_id_of(meta["namespace"], meta["name"], meta["uid"])


def instant_s(stamp: str) -> float:
    """Seconds since 1970 of an RFC 3339 time."""
    return datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp()


def stamp_of(seconds: float) -> str:
    return datetime.fromtimestamp(math.floor(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def range_of(spec: Json, field: str, least: int) -> tuple[int, int]:
    """`{min, max}` with its defaults."""
    given = spec.get(field) or {}
    low = _whole(given.get("min", least), f"spec.{field}.min", least, MAX_MEMBERS)
    high = _whole(given.get("max", low), f"spec.{field}.max", least, MAX_MEMBERS)
    if low > high:
        raise rejection(f"spec.{field}.max", f"{field}.min {low} is above {field}.max {high}", "min <= max")
    return low, high


def engine_ms_of(stamp: str, epoch_ms: int) -> int:
    """The engine's time of an RFC 3339 time; never before its beginning."""
    return max(round(instant_s(stamp) * MS_PER_S) - epoch_ms, 0)


def spec_of_trainingjob(tj: Json, epoch_ms: int) -> JobSpec:
    """The job; raises `InputError` with the field as its `column`. `epoch_ms`: wall time of engine time 0."""
    meta, spec = tj["metadata"], tj.get("spec") or {}
    workers_min, workers_max = range_of(spec, "workers", 1)
    servers_min, servers_max = range_of(spec, "servers", 0)
    gpu_resource = _word(spec.get("gpuResource", DEFAULT_GPU_RESOURCE), "spec.gpuResource")
    template = checked_template(spec.get("template"), "spec.template")
    given = spec.get("serverTemplate")
    server_template = None if given is None else checked_template(given, "spec.serverTemplate")
    worker = _worker_demand(spec, template, gpu_resource)
    server = NO_DEMAND if not servers_max else _server_demand(server_template, template, gpu_resource)
    deadline_ms, kind = deadline_of(tj, epoch_ms)
    work = spec.get("work") or {}
    types = tuple(_word(name, "spec.gpuTypes") for name in spec.get("gpuTypes") or ())
    speeds = {
        _word(name, "spec.stepsPerSecond"): _positive(speed, f"spec.stepsPerSecond.{name}")
        for name, speed in (spec.get("stepsPerSecond") or {}).items()
    }
    return JobSpec(
        id=job_id_of_object(tj),
        submit_ms=engine_ms_of(meta["creationTimestamp"], epoch_ms),
        name=meta["name"],
        workers_min=workers_min,
        workers_max=workers_max,
        workers_ref=workers_max,
        servers_min=servers_min,
        servers_max=servers_max,
        servers_ref=servers_max,
        worker=worker,
        server=server,
        gpu_types=types,
        work_total=_optional(work, "steps", "spec.work.steps"),
        epochs_total=_optional(work, "epochs", "spec.work.epochs"),
        steps_per_s=speeds,
        weight=_positive(spec.get("weight", 1), "spec.weight"),
        priority=_whole(spec.get("priority", 0), "spec.priority", -1000, 1000),
        entity=str(spec.get("entity") or meta["namespace"]),
        deadline_ms=deadline_ms,
        deadline_kind=kind,
        utility=_utility(spec.get("utility")),
        budget=_optional(spec, "budget", "spec.budget"),
        model=str(spec.get("model") or ""),
        batch_size=None if spec.get("batchSize") is None else _whole(spec["batchSize"], "spec.batchSize", 1, 10**9),
        max_attempts=_whole(spec.get("maxAttempts", 3), "spec.maxAttempts", 1, 1000),
        preemptible=bool(spec.get("preemptible", True)),
        leased=(meta.get("annotations") or {}).get(LAUNCHER) not in ("false", "none"),
        payload={
            "kind": "TrainingJob",
            "namespace": meta["namespace"],
            "name": meta["name"],
            "uid": meta["uid"],
            "gpu_resource": gpu_resource,
            "command": _shown_command(spec),
        },
    )


def _shown_command(spec: Json) -> list[str]:
    """The trainer's words, for people; what is started is read from the object itself."""
    containers = ((spec.get("template") or {}).get("spec") or {}).get("containers") or [{}]
    words: list[str] = []
    left = MAX_SHOWN
    for word in (*(containers[0].get("command") or ()), *(containers[0].get("args") or ())):
        if len(str(word)) > left:
            words.append(f"{str(word)[:left]}...")
            break
        words.append(str(word))
        left -= len(str(word))
    return words


def deadline_of(tj: Json, epoch_ms: int) -> tuple[int, DeadlineKind]:
    """When it must be finished, in the engine's time, and how firmly."""
    spec = tj.get("spec") or {}
    if spec.get("deadlineSeconds") is None:
        return NEVER_MS, DeadlineKind.NONE
    after_s = _whole(spec["deadlineSeconds"], "spec.deadlineSeconds", 1, 10**9)
    at_ms = engine_ms_of(tj["metadata"]["creationTimestamp"], epoch_ms) + after_s * MS_PER_S
    return at_ms, DeadlineKind.SOFT if spec.get("deadlineKind") == "soft" else DeadlineKind.HARD


# -- the template ------------------------------------------------------------------------------------


def checked_template(template: Any, field: str) -> dict[str, Any]:
    """A template that can become a pod of ours; what only the API server can judge is asked of it (`dry_run_pod`)."""
    if not isinstance(template, dict) or not isinstance(template.get("spec"), dict):
        raise rejection(f"{field}.spec", "is missing", "a PodSpec with at least one container")
    pod = template["spec"]
    containers = pod.get("containers")
    if not isinstance(containers, list) or not containers or not all(isinstance(c, dict) for c in containers):
        raise rejection(f"{field}.spec.containers", "is empty", "at least one container: the first is the trainer")
    scheduler = pod.get("schedulerName")
    if scheduler not in (None, "", SCHEDULER_NAME):
        raise rejection(f"{field}.spec.schedulerName", f"'{scheduler}' is another scheduler", SCHEDULER_NAME)
    if pod.get("nodeName"):
        raise rejection(f"{field}.spec.nodeName", f"'{pod['nodeName']}' is fixed", "a nodeSelector or nodeAffinity")
    if pod.get("restartPolicy") not in (None, "Never"):
        raise rejection(
            f"{field}.spec.restartPolicy",
            f"'{pod['restartPolicy']}'",
            "Never: attempts are counted by spec.maxAttempts",
        )
    for k, container in enumerate(containers):
        for variable in container.get("env") or ():
            name = variable.get("name", "") if isinstance(variable, dict) else ""
            if not isinstance(name, str) or name in USERS_OWN:
                continue
            if name.startswith(RESERVED_ENV) or (k == 0 and name in RENDEZVOUS_ENV):
                where = f"{field}.spec.containers[{k}].env"
                raise rejection(where, f"'{name}' is set by Trainmaster", "other names")
    try:
        pod_requests(pod)
    except (QuantityError, AttributeError, TypeError) as error:
        raise rejection(f"{field}.spec.containers[].resources", str(error), "quantities such as 500m or 2Gi") from None
    return template


def _worker_demand(spec: Json, template: Json, gpu_resource: str) -> Demand:
    pod = template["spec"]
    asked = container_requests(pod["containers"][0])
    elsewhere = pod_requests(pod).get(gpu_resource, Fraction(0)) - asked.get(gpu_resource, Fraction(0))
    if elsewhere > 0:
        raise rejection(
            "spec.template.spec.containers", f"another container than the first asks for {gpu_resource}",
            "GPUs in the first container, the trainer, alone",
        )  # fmt: skip
    in_template = asked.get(gpu_resource)
    wanted = spec.get("gpusPerWorker")
    if wanted is None:
        gpus = Fraction(1) if in_template is None else in_template
    else:
        gpus = Fraction(_whole(wanted, "spec.gpusPerWorker", 0, MAX_GPUS_PER_WORKER))
        if in_template is not None and in_template != gpus:
            raise rejection(
                "spec.gpusPerWorker", f"{wanted}, but the template's first container asks for {in_template} "
                f"{gpu_resource}", "the same number, or only one of the two",
            )  # fmt: skip
    if gpus.denominator != 1 or not 0 <= gpus <= MAX_GPUS_PER_WORKER:
        raise rejection("spec.template.spec.containers[0].resources", f"{gpus} {gpu_resource}", "a whole number")
    return _demand(pod, int(gpus))


def _server_demand(given: Json | None, template: Json, gpu_resource: str) -> Demand:
    """Servers hold parameters and have no GPU; without a template of their own they are workers without one."""
    pod = (given or template)["spec"]
    if given is not None and pod_requests(pod).get(gpu_resource):
        raise rejection("spec.serverTemplate.spec.containers", f"asks for {gpu_resource}", "servers without GPUs")
    return _demand(pod, 0)


def _demand(pod: Json, gpus: int) -> Demand:
    asked = pod_requests(pod)
    cpu = cpu_milli_up(asked.get("cpu", Fraction(0)))
    memory = mem_mib_up(asked.get("memory", Fraction(0)))
    if cpu < 0 or memory < 0:
        raise rejection("spec.template.spec.containers[].resources", "a negative amount", "0 or more")
    return Demand(gpus * GPU_MILLI, min(cpu, 10**12), min(memory, 10**12))


# -- single values -----------------------------------------------------------------------------------


def _whole(value: Any, field: str, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise rejection(field, f"{_short(value)}", f"a whole number from {low} to {high}")
    return value


def _positive(value: Any, field: str) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 < value <= 1e15:
        raise rejection(field, f"{_short(value)}", "a positive number")
    return float(value)


def _optional(obj: Json, key: str, field: str) -> float | None:
    return None if obj.get(key) is None else _positive(obj[key], field)


def _word(value: Any, field: str) -> str:
    if not isinstance(value, str) or not value or len(value) > 253:
        raise rejection(field, f"{_short(value)}", "a name")
    return value


def _utility(value: Any) -> Json | None:
    if value is None:
        return None
    try:
        parse_utility(value)
    except InputError as error:
        raise rejection("spec.utility", error.what, error.expected) from None
    return value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
