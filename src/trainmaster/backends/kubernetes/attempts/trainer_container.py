"""What a pod needs to be a trainer: the launcher around its command, the environment, a name that resolves.

Nothing in the image is asked for but a Python 3.8 or newer: the launcher comes in by a ConfigMap.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Set
from typing import Any, Protocol

from trainmaster.backends.kubernetes.attempts.observations import USERS_OWN, PodSeat, RunFacts
from trainmaster.backends.kubernetes.attempts.pod_attempt import pod_seat, port_of
from trainmaster.gang.member_env import Rendezvous, job_env, member_env, rank_env
from trainmaster.gang.protocol import WORKER
from trainmaster.launcher.bundle import FILE_NAME, launcher_bytes, launcher_hash
from trainmaster.launcher.settings import IDENTITY
from trainmaster.model.errors import InputError

SUBDOMAIN = "trainmaster-pods"
"""Headless Service of every namespace with jobs: `<pod name>.trainmaster-pods` resolves to a pod with the mark."""
POD_MARK = ("trainmaster.dev/first", "true")
"""Of the worker of rank 0, where the others meet. A cluster keeps an endpoint up to date for every pod that has it."""
LAUNCHER_VOLUME, LAUNCHER_DIR = "trainmaster-launcher", "/trainmaster"
RUN_VOLUME, RUN_DIR = "trainmaster-run", "/trainmaster-run"
_POD_IP = {"name": "TRAINMASTER_POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
FAREWELL_S = 5
"""After the grace of the command, for the launcher itself."""


def config_map_name() -> str:
    return f"trainmaster-launcher-{launcher_hash()}"


def equip(pod: dict[str, Any], seat: PodSeat, run: RunFacts) -> None:
    """Make a trainer of a pod that was made from the job's template. `InputError` names what the template lacks."""
    spec = pod["spec"]
    container = spec["containers"][0]
    metadata = pod.setdefault("metadata", {})
    if seat.role == WORKER and seat.rank == 0:
        metadata.setdefault("labels", {})[POD_MARK[0]] = POD_MARK[1]
    if not spec.get("hostNetwork"):
        spec["hostname"], spec["subdomain"] = metadata["name"][:63].rstrip("-."), SUBDOMAIN
    spec["restartPolicy"] = "Never"
    container.setdefault("terminationMessagePolicy", "FallbackToLogsOnError")  # so that its status says why it failed
    env = environment(seat, run)
    if run.launcher:
        env |= _launcher_environment(run)
        wrap(spec, container)
        spec["terminationGracePeriodSeconds"] = math.ceil(run.grace_s) + FAREWELL_S
        set_environment(container, env.keys(), [_POD_IP, {"name": IDENTITY, "value": folded(env)}])
    else:
        env |= static_rendezvous(metadata["name"], seat, run)
        spec.setdefault("terminationGracePeriodSeconds", math.ceil(run.grace_s))
        set_environment(container, env.keys(), [{"name": name, "value": env[name]} for name in sorted(env)])


def wrap(spec: dict[str, Any], container: dict[str, Any]) -> None:
    """The launcher becomes the container's command, and the command its argument."""
    words = [*(container.get("command") or ()), *(container.get("args") or ())]
    if not container.get("command"):
        raise InputError(
            "the trainer's container has no command",
            "the command to start, since the launcher cannot see the image's own",
            'Set it, or refuse the launcher by the annotation trainmaster.dev/launcher: "false".',
            column="spec.template.spec.containers[0].command",
        )
    container["command"] = ["python3", "-I", "-S", f"{LAUNCHER_DIR}/{FILE_NAME}", "--", *words]
    container.pop("args", None)
    volumes = [v for v in spec.get("volumes") or [] if v.get("name") not in (LAUNCHER_VOLUME, RUN_VOLUME)]
    spec["volumes"] = [
        *volumes,
        {"name": LAUNCHER_VOLUME, "configMap": {"name": config_map_name(), "defaultMode": 0o444}},
        {"name": RUN_VOLUME, "emptyDir": {}},
    ]
    container["volumeMounts"] = [
        *(container.get("volumeMounts") or []),
        {"name": LAUNCHER_VOLUME, "mountPath": LAUNCHER_DIR, "readOnly": True},
        {"name": RUN_VOLUME, "mountPath": RUN_DIR},
    ]


def set_environment(container: dict[str, Any], taken: Set[str], ours: list[dict[str, Any]]) -> None:
    """Ours wins over the template's, of which variables that look like ours but are not are left out. `taken`: the
    names of all that ours hold."""
    kept = [
        entry
        for entry in container.get("env") or []
        if entry.get("name") in USERS_OWN
        or (entry.get("name") not in taken and not str(entry.get("name")).startswith("TRAINMASTER_"))
    ]
    container["env"] = [*ours, *kept]


def folded(env: Mapping[str, str]) -> str:
    """As one variable, which the launcher unfolds; a kubelet would take `$(NAME)` for another one."""
    return json.dumps(env, sort_keys=True, separators=(",", ":")).replace("$(", "$$(")


def environment(seat: PodSeat, run: RunFacts) -> dict[str, str]:
    """What all members of Trainmaster's jobs are told, wherever they run."""
    spec = run.spec
    env = job_env(
        run.key.job_id,
        run.name,
        run.key.generation,
        seat.accelerator,
        spec.work_total,
        spec.steps_per_s,
        spec.workers_ref,
    )
    member = member_env(seat.member, pod_seat(seat.role, seat.node), run.token)
    if not run.launcher:
        del member["TRAINMASTER_AGENT_TOKEN"]
    return env | member | {"PYTHONUNBUFFERED": "1"}


def _launcher_environment(run: RunFacts) -> dict[str, str]:
    return {
        "TRAINMASTER_SERVICE": ",".join(run.agents),
        "TRAINMASTER_GRACE_S": f"{run.grace_s:g}",
        "TRAINMASTER_RUN_DIR": RUN_DIR,
    }


def static_rendezvous(pod_name: str, seat: PodSeat, run: RunFacts) -> dict[str, str]:
    """For a job without launcher, whom nobody can tell addresses: the name of the pod of rank 0."""
    base, _, last = pod_name.rpartition("-")
    number = int(last[1:]) - seat.rank if seat.role == WORKER else 0  # a gang that was made anew counts on
    first = f"{base}-w{number}"
    gang = Rendezvous(seat.workers, f"{first}.{SUBDOMAIN}.{run.namespace}.svc", port_of(run.key, 0))
    return rank_env(pod_seat(seat.role, seat.node), seat.rank, gang)


def launcher_config_map() -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": config_map_name(), "labels": {"app.kubernetes.io/managed-by": "trainmaster"}},
        "immutable": True,
        "binaryData": {FILE_NAME: base64.b64encode(launcher_bytes()).decode()},
    }


def headless_service() -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": SUBDOMAIN, "labels": {"app.kubernetes.io/managed-by": "trainmaster"}},
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {POD_MARK[0]: POD_MARK[1]}},
    }


class Creating(Protocol):
    async def create(self, path: str, body: dict[str, Any]) -> dict[str, Any]: ...


async def ensure_namespace(client: Creating, namespace: str) -> None:
    """What must be in a namespace before trainers start there; what is there already stays."""
    from trainmaster.backends.kubernetes.api.client import Conflict

    for path, body in (
        (f"/api/v1/namespaces/{namespace}/configmaps", launcher_config_map()),
        (f"/api/v1/namespaces/{namespace}/services", headless_service()),
    ):
        try:
            await client.create(path, body)
        except Conflict:
            continue
