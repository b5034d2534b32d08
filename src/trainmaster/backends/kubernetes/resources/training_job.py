"""From a TrainingJob to the job that the engine takes. What cannot be a job is refused with the field's name.

The fields are those of `jobspec`; here is what concerns pods: templates, resources, ids and times. Objects that slipped
past the API server (an older schema, a rule switched off) are refused as well, never taken on trust.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any

from trainmaster.backends.kubernetes.attempts.observations import LAUNCHER, USERS_OWN
from trainmaster.backends.kubernetes.resources.quantity import (
    QuantityError,
    container_requests,
    cpu_milli_up,
    mem_mib_up,
    pod_requests,
)
from trainmaster.jobspec.engine import to_engine, unknown_to_engine
from trainmaster.jobspec.limits import MAX_GPUS
from trainmaster.jobspec.model import TrainingJobSpec
from trainmaster.jobspec.reading import training_job_from
from trainmaster.model.errors import InputError
from trainmaster.model.job import NO_DEMAND, SERVER_DEMAND, Demand, JobId, JobSpec
from trainmaster.model.units import GPU_MILLI, MS_PER_S

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


def engine_ms_of(stamp: str, epoch_ms: int) -> int:
    """The engine's time of an RFC 3339 time; never before its beginning."""
    return max(round(instant_s(stamp) * MS_PER_S) - epoch_ms, 0)


def spec_of_trainingjob(tj: Json, epoch_ms: int, after: tuple[JobId, ...] = ()) -> JobSpec:
    """The job; raises `InputError` with the field as its `column`.

    `epoch_ms`: wall time of engine time 0. `after`: ids of the jobs that `spec.after` names.
    """
    meta = tj["metadata"]
    fields = training_job_from(tj.get("spec") or {})
    template = checked_template(fields.template, "spec.template")
    own = None if fields.server_template is None else checked_template(fields.server_template, "spec.serverTemplate")
    payload = {
        "kind": "TrainingJob",
        "namespace": meta["namespace"],
        "name": meta["name"],
        "uid": meta["uid"],
        "gpu_resource": fields.gpu_resource,
        "command": _shown_command(template),
    }
    of_class = template["spec"].get("priority")  # as the API server knows it (`TemplateCheck.filled`)
    if isinstance(of_class, int):
        payload["class_priority"] = of_class
        if "priority" not in fields.model_fields_set:
            fields = fields.model_copy(update={"priority": of_class})
    others = unknown_to_engine(fields)
    if others:
        payload["fields"] = others
    try:
        return to_engine(
            fields,
            job_id_of_object(tj),
            engine_ms_of(meta["creationTimestamp"], epoch_ms),
            name=meta["name"],
            worker=_worker_demand(fields, template),
            server=NO_DEMAND if not fields.servers.max else _server_demand(own, template, fields.gpu_resource),
            after=after,
            payload=payload,
            entity=fields.entity or meta["namespace"],
            leased=(meta.get("annotations") or {}).get(LAUNCHER) not in ("false", "none"),
        )
    except InputError as error:
        raise (
            error if str(error.column).startswith("spec.") else replace(error, column=f"spec.{error.column}")
        ) from None


def _shown_command(template: Json) -> list[str]:
    """The trainer's words, for people; what is started is read from the object itself."""
    trainer = template["spec"]["containers"][0]
    words: list[str] = []
    left = MAX_SHOWN
    for word in (*(trainer.get("command") or ()), *(trainer.get("args") or ())):
        if len(str(word)) > left:
            words.append(f"{str(word)[:left]}...")
            break
        words.append(str(word))
        left -= len(str(word))
    return words


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


def _worker_demand(fields: TrainingJobSpec, template: Json) -> Demand:
    pod, gpu_resource = template["spec"], fields.gpu_resource
    asked = container_requests(pod["containers"][0])
    elsewhere = pod_requests(pod).get(gpu_resource, Fraction(0)) - asked.get(gpu_resource, Fraction(0))
    if elsewhere > 0:
        raise rejection(
            "spec.template.spec.containers",
            f"another container than the first asks for {gpu_resource}",
            "GPUs in the first container, the trainer, alone",
        )
    in_template = asked.get(gpu_resource)
    gpus = Fraction(1) if in_template is None else in_template
    if "gpus_per_worker" in fields.model_fields_set:
        gpus = Fraction(int(fields.gpus_per_worker))
        if in_template is not None and in_template != gpus:
            raise rejection(
                "spec.gpusPerWorker",
                f"{gpus}, but the template's first container asks for {in_template} {gpu_resource}",
                "the same number, or only one of the two",
            )
    if gpus.denominator != 1 or not 0 <= gpus <= MAX_GPUS:
        raise rejection("spec.template.spec.containers[0].resources", f"{gpus} {gpu_resource}", "a whole number")
    return _demand(pod, int(gpus))


def _server_demand(given: Json | None, template: Json, gpu_resource: str) -> Demand:
    """Servers hold parameters and have no GPU; without a template of their own they are workers without one."""
    pod = (given or template)["spec"]
    if given is not None and pod_requests(pod).get(gpu_resource):
        raise rejection("spec.serverTemplate.spec.containers", f"asks for {gpu_resource}", "servers without GPUs")
    demand = _demand(pod, 0)
    return demand if asks_for_cpu(pod) else replace(demand, cpu_milli=SERVER_DEMAND.cpu_milli)


def asks_for_cpu(pod: Json) -> bool:
    """Whether it says how many CPUs it needs; a parameter server's that does not gets those of `SERVER_DEMAND`."""
    return bool(pod_requests(pod).get("cpu"))


def _demand(pod: Json, gpus: int) -> Demand:
    asked = pod_requests(pod)
    cpu = cpu_milli_up(asked.get("cpu", Fraction(0)))
    memory = mem_mib_up(asked.get("memory", Fraction(0)))
    if cpu < 0 or memory < 0:
        raise rejection("spec.template.spec.containers[].resources", "a negative amount", "0 or more")
    return Demand(gpus * GPU_MILLI, min(cpu, 10**12), min(memory, 10**12))
