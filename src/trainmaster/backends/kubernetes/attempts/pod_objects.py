"""Pods as data: what is asked of the API server for a member of a gang, and what a pod's status says of it. No I/O."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import orjson

from trainmaster.backends.kubernetes.api.paths import API_VERSION
from trainmaster.backends.kubernetes.attempts import observations as f
from trainmaster.backends.kubernetes.attempts.observations import PodSeat, RunFacts, RunKey
from trainmaster.backends.kubernetes.resources.training_job import asks_for_cpu, job_id_of
from trainmaster.gang.actions import NOBODYS, NODES, OWN, Exited
from trainmaster.gang.failure_text import excerpt
from trainmaster.gang.protocol import EXIT_LEASE_OVER, EXIT_NOT_RUN, EXIT_STOPPED, SERVER, WORKER

Object = dict[str, Any]
NOBODYS_FAULT = frozenset({EXIT_STOPPED, EXIT_LEASE_OVER, EXIT_NOT_RUN})
KILLED = 137
HOPELESS = frozenset(
    {"ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError", "CreateContainerError"}
)
"""Reasons for which a container waits that time does not mend: the job's description is at fault."""
EVICTED = frozenset(
    {"Evicted", "Preempting", "NodeShutdown", "Terminated", "NodeLost", "Shutdown", "TerminationByKubelet"}
)
CANNOT_RUN = frozenset({"StartError", "ContainerCannotRun"})
CLOCK_SKEW_S = 30.0
"""A node's clock and the API server's differ by no more than this."""


# -- making ------------------------------------------------------------------------------------------


def base_name(name: str, uid: str, generation: int) -> str:
    """A job that is made anew under the same name has other pods; the last one may linger on a lost node."""
    return f"{name}-{uid.replace('-', '')[:5]}-g{generation}"


def pod_name(run: RunFacts, role: str, number: int) -> str:
    return f"{base_name(run.name, run.uid, run.key.generation)}-{role[0]}{number}"


def pod_body(run: RunFacts, seat: PodSeat, number: int) -> Object:
    """The pod of one member, not bound to a node yet."""
    spec = run.job["spec"]
    template = spec.get("serverTemplate") if seat.role == SERVER else None
    template = orjson.loads(orjson.dumps(template or spec["template"]))  # a copy, several times as fast as copy's
    meta = template.get("metadata") or {}
    name = pod_name(run, seat.role, number)
    pod: Object = template["spec"]
    pod.pop("nodeName", None)
    pod["schedulerName"] = f.SCHEDULER
    pod["restartPolicy"] = "Never"
    pod.setdefault("hostname", name[:63].rstrip("-."))
    if seat.role == SERVER and run.spec.server.cpu_milli and not asks_for_cpu(pod):
        resources = pod["containers"][0].setdefault("resources", {})
        resources["requests"] = {**(resources.get("requests") or {}), "cpu": f"{run.spec.server.cpu_milli}m"}
    _ask_for_gpus(pod["containers"][0], str(run.spec.payload["gpu_resource"]), seat.n_devices)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": run.namespace,
            "labels": {
                **(meta.get("labels") or {}),
                f.JOB: run.name,
                f.ROLE: seat.role,
                f.RANK: str(seat.rank),
                f.GENERATION: str(run.key.generation),
            },
            "annotations": {
                **(meta.get("annotations") or {}),
                f.JOB_ID: run.key.job_id,
                f.SEQ: str(run.seq),
                f.MEMBER: seat.member,
                f.NODE: seat.node,
            },
            "ownerReferences": [
                {
                    "apiVersion": API_VERSION,
                    "kind": "TrainingJob",
                    "name": run.name,
                    "uid": run.uid,
                    "controller": True,
                    "blockOwnerDeletion": False,
                }
            ],
        },
        "spec": pod,
    }


def _ask_for_gpus(container: Object, resource: str, n_devices: int) -> None:
    """Extended resources cannot be over-committed: request and limit are the same."""
    resources = container.setdefault("resources", {})
    for side in ("limits", "requests"):
        amounts = dict(resources.get(side) or {})
        amounts.pop(resource, None)
        if n_devices:
            amounts[resource] = str(n_devices)
        if amounts:
            resources[side] = amounts
        else:
            resources.pop(side, None)


def binding_body(name: str, namespace: str, node: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name, "namespace": namespace},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }


# -- reading -----------------------------------------------------------------------------------------


IDENTITY = ("labels", "annotations", "ownerReferences")
"""Metadata by which a pod is known for ours."""


def is_ours(pod: Object) -> bool:
    """Whether it is a member of a job of ours (which does not say that the job still exists).

    Anybody who may make pods somewhere can write a job's labels on them; so it must be in the job's namespace and
    owned by it."""
    meta = pod["metadata"]
    labels, job_id = meta.get("labels") or {}, (meta.get("annotations") or {}).get(f.JOB_ID)
    if job_id is None or f.GENERATION not in labels or f.JOB not in labels:
        return False
    return any(
        owner.get("kind") == "TrainingJob" and job_id == job_id_of(meta["namespace"], labels[f.JOB], owner["uid"])
        for owner in meta.get("ownerReferences") or ()
    )


def run_of(pod: Object) -> RunKey | None:
    """The attempt a pod belongs to; None when what it says of itself cannot be."""
    meta = pod["metadata"]
    generation = meta["labels"][f.GENERATION]
    if not is_number(generation):
        return None
    return RunKey(meta["annotations"][f.JOB_ID], int(generation))


def member_of(pod: Object) -> tuple[str, str, int]:
    """(member, role, number); the number is never used twice within an attempt."""
    member = str(pod["metadata"]["annotations"].get(f.MEMBER, ""))
    role, _, digits = member.rpartition("-")
    return member, role if role in (WORKER, SERVER) else WORKER, int(digits) if is_number(digits) else 0


def rank_of(pod: Object) -> int:
    """At its creation."""
    text = pod["metadata"]["labels"].get(f.RANK, "0")
    return int(text) if is_number(text) else 0


def seq_of(pod: Object) -> int:
    """Number of the command that made it."""
    text = pod["metadata"]["annotations"].get(f.SEQ, "0")
    return int(text) if is_number(text) else 0


def is_number(text: str) -> bool:
    """Anybody who may make pods may write anything: no digits but 0 to 9, and not many."""
    return text.isascii() and text.isdigit() and len(text) <= 18


def node_of(pod: Object) -> str | None:
    return pod["spec"].get("nodeName")


def node_meant(pod: Object) -> str:
    """Its node, also before it is bound."""
    return node_of(pod) or str(pod["metadata"]["annotations"].get(f.NODE, ""))


def unseen_pod(name: str, node: str) -> Object:
    """Stands in for a pod that ran, as far as anybody knows."""
    status = {"containerStatuses": [{"name": "", "state": {"running": {}}}]}
    return {"metadata": {"name": name}, "spec": {"nodeName": node, "containers": [{"name": ""}]}, "status": status}


def trainer_status(pod: Object) -> Object:
    name = pod["spec"]["containers"][0]["name"]
    for status in pod.get("status", {}).get("containerStatuses") or ():
        if status["name"] == name:
            return status
    return {}


def is_running(pod: Object) -> bool:
    return "running" in (trainer_status(pod).get("state") or {})


def is_over(pod: Object) -> bool:
    """Nothing of it occupies its node any more, as far as the node has told."""
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def is_released(pod: Object) -> bool:
    """Whether its node counts its devices as free. A kubelet does so when it has taken down the pod's sandbox, a moment
    after the status says that the containers have ended; a pod that comes in between is rejected."""
    for condition in pod.get("status", {}).get("conditions") or ():
        if condition.get("type") == "PodReadyToStartContainers":
            return condition.get("status") != "True"
    return True


def is_outlived(pod: Object) -> bool:
    """Whether its trainer has ended, and another container (or sidecar) runs on."""
    if "terminated" not in (trainer_status(pod).get("state") or {}):
        return False
    status = pod.get("status", {})
    every = (*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ()))
    return any("running" in (each.get("state") or {}) for each in every)


def hopeless(pod: Object) -> str | None:
    """Why it will never start by its own fault; None: it may."""
    statuses = pod.get("status", {})
    for status in (*(statuses.get("initContainerStatuses") or ()), *(statuses.get("containerStatuses") or ())):
        waiting = (status.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") in HOPELESS:
            told = waiting.get("message") or ""
            return f"{waiting['reason']}: {told}" if told else f"{waiting['reason']}: image {status.get('image')}"
    return None


def waits_for(pod: Object) -> str:
    """What keeps its containers from running, in the kubelet's words; empty: nothing does, or nobody has said."""
    status = pod.get("status", {})
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        waiting = (container.get("state") or {}).get("waiting")
        if waiting is None or waiting.get("reason") == "PodInitializing":
            continue
        reason, told = waiting.get("reason") or "waiting", waiting.get("message")
        if told:
            return f"{reason}: {told}"
        since = f" since {status['startTime']}" if status.get("startTime") else ""
        return f"{reason}{since}: it pulls image {container.get('image')} or mounts volumes"
    return ""


def output_of(pod: Object) -> str:
    """What a trainer that failed wrote last, as far as its kubelet says it: where the error was raised, and which."""
    ended = (trainer_status(pod).get("state") or {}).get("terminated") or {}
    if not ended.get("exitCode") or ended.get("reason") in CANNOT_RUN:
        return ""
    return excerpt(str(ended.get("message") or ""))


def end_of(pod: Object, with_launcher: bool) -> Exited | None:
    """How its trainer ended; None: it may still live."""
    status = pod.get("status", {})
    phase, reason = status.get("phase"), status.get("reason") or ""
    ended = (trainer_status(pod).get("state") or {}).get("terminated")
    taken_away = (
        reason in EVICTED
        or _was_deleted(pod, ended or {})
        or any(
            c.get("type") == "DisruptionTarget" and c.get("status") == "True" for c in status.get("conditions") or ()
        )
    )
    name = pod["metadata"]["name"]
    if ended is None:
        if phase == "Succeeded":
            return Exited(0, "", NOBODYS if taken_away else OWN)
        if phase != "Failed":
            return None
        if taken_away:
            return Exited(KILLED, f"{name}: {reason}: {status.get('message', '')}", NOBODYS, ran=False)
        for init in status.get("initContainerStatuses") or ():
            broken = (init.get("state") or {}).get("terminated") or {}
            if broken.get("exitCode"):
                return Exited(broken["exitCode"], f"{name}: init container {init['name']} failed", OWN, ran=False)
        return Exited(KILLED, f"{name}: {reason}: {status.get('message', '')}", NODES, ran=False)
    code, why = int(ended.get("exitCode", KILLED)), ended.get("reason") or ""
    if why in CANNOT_RUN:
        return Exited(code, f"{name}: {ended.get('message') or why}", OWN, ran=False)
    if taken_away or (why == "ContainerStatusUnknown" and code == KILLED):
        return Exited(code, f"{name}: {reason or 'deleted, or its node went down'}", NOBODYS)
    if with_launcher and code in NOBODYS_FAULT:
        return Exited(code, f"{name}: stopped", NOBODYS)
    return Exited(code, "" if code == 0 else f"{name}: {why or 'exit code'} {code}", OWN)


def _was_deleted(pod: Object, ended: Object) -> bool:
    """Whether its deletion was asked for before its trainer had ended, as far as clocks tell."""
    meta = pod["metadata"]
    if not meta.get("deletionTimestamp"):
        return False
    grace = timedelta(seconds=float(meta.get("deletionGracePeriodSeconds") or 0) + CLOCK_SKEW_S)
    try:
        finished = datetime.fromisoformat(ended["finishedAt"])
        return finished >= datetime.fromisoformat(meta["deletionTimestamp"]) - grace
    except (KeyError, TypeError, ValueError):
        return True


# -- keeping ----------------------------------------------------------------------------------------

_POD_META = (
    "name", "namespace", "uid", "resourceVersion", "labels", "annotations", "deletionTimestamp", "ownerReferences",
    "deletionGracePeriodSeconds",
    "creationTimestamp",
)  # fmt: skip
_POD_SPEC = (
    "nodeName", "schedulerName", "overhead", "nodeSelector", "affinity", "tolerations", "priority",
    "schedulingGates",
)  # fmt: skip
_POD_STATUS = (
    "phase", "reason", "message", "conditions", "containerStatuses", "initContainerStatuses", "podIP", "startTime",
)  # fmt: skip


def trimmed(pod: Object) -> Object:
    """What is needed of a pod: whose it is, what it asks for, where it is, and how it fares."""
    meta, spec, status = pod["metadata"], pod["spec"], pod.get("status") or {}
    small = {key: spec[key] for key in _POD_SPEC if key in spec}
    for name in ("containers", "initContainers"):
        if spec.get(name):
            small[name] = [
                {key: c[key] for key in ("name", "resources", "restartPolicy") if key in c} for c in spec[name]
            ]
    return {
        "metadata": {key: meta[key] for key in _POD_META if key in meta},
        "spec": small,
        "status": {key: status[key] for key in _POD_STATUS if key in status},
    }
