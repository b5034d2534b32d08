"""What a new TrainingJob may not ask for: required constraints that placement does not count are refused by field name.

Asked of new jobs alone: one that was taken before goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from trainmaster.backends.kubernetes.attempts.observations import LAUNCHER
from trainmaster.model.errors import InputError

Json = Mapping[str, Any]
MAX_DEPTH = 64
"""Objects and lists within each other; a PodSpec of Kubernetes has fewer than 20."""
COUNTED = frozenset({"cpu", "memory"})
"""Resources that nodes are compared by, beside the GPU."""
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
DEFAULT_GPU = "nvidia.com/gpu"


def check_depth(job: Json) -> None:
    """First of all: what is nested deeper cannot even be written."""
    level: list[Any] = [job.get("spec")]
    for _ in range(MAX_DEPTH):
        level = [part for item in level for part in _parts(item)]
        if not level:
            return
    raise InputError(f"is nested more than {MAX_DEPTH} deep", "a PodSpec", column="spec")


def _parts(item: Any) -> Iterable[Any]:
    if isinstance(item, Mapping):
        return item.values()
    return item if isinstance(item, list) else ()


def check_admission(job: Json) -> None:
    """Raise `InputError` for the first field of the templates that cannot be honoured."""
    spec = job["spec"]
    gpu = str(spec.get("gpuResource") or DEFAULT_GPU)
    for role in ("template", "serverTemplate"):
        pod = (spec.get(role) or {}).get("spec")
        if pod:
            check_pod(pod, gpu, f"spec.{role}.spec")
    annotations = job["metadata"].get("annotations") or {}
    if annotations.get(LAUNCHER) not in ("false", "none"):
        _check_commands(spec)


def check_pod(pod: Json, gpu: str, where: str) -> None:
    for field, what, expected in _unsupported(pod, gpu):
        raise InputError(what, expected, column=f"{where}.{field}")


def _unsupported(pod: Json, gpu: str) -> Iterator[tuple[str, str, str]]:
    """Field, what is wrong with it, what is supported."""
    affinity = pod.get("affinity") or {}
    for kind in ("podAffinity", "podAntiAffinity"):
        if (affinity.get(kind) or {}).get(REQUIRED):
            yield f"affinity.{kind}.{REQUIRED}", "is not supported", "node affinity, or a preference"
    for k, spread in enumerate(pod.get("topologySpreadConstraints") or ()):
        if spread.get("whenUnsatisfiable") != "ScheduleAnyway":
            yield f"topologySpreadConstraints[{k}]", "is not supported", "whenUnsatisfiable: ScheduleAnyway"
    if pod.get("resourceClaims"):
        yield "resourceClaims", "is not supported", f"GPUs by {gpu}"
    if pod.get("resources"):
        yield "resources", "is not supported", "resources of each container"
    for kind in ("initContainers", "containers"):
        for k, container in enumerate(pod.get(kind) or ()):
            for field, what, expected in _unsupported_of_container(container, gpu, bool(pod.get("hostNetwork"))):
                yield f"{kind}[{k}].{field}", what, expected


def _unsupported_of_container(container: Json, gpu: str, host_network: bool) -> Iterator[tuple[str, str, str]]:
    for k, port in enumerate(container.get("ports") or ()):
        if port.get("hostPort"):
            yield f"ports[{k}].hostPort", "is not supported", "containerPort alone"
        elif host_network:
            yield f"ports[{k}].containerPort", "is not supported with hostNetwork", "ports that are not declared"
    resources = container.get("resources") or {}
    if resources.get("claims"):
        yield "resources.claims", "is not supported", f"GPUs by {gpu}"
    for kind in ("requests", "limits"):
        for name in sorted(resources.get(kind) or {}):
            if name not in COUNTED and name != gpu:
                yield f"resources.{kind}.{name}", "is not supported", f"cpu, memory and {gpu}"


def _check_commands(spec: Json) -> None:
    """A launcher starts the command itself, so that it must know it: that of the image is not known here."""
    for role in ("template", "serverTemplate"):
        containers = ((spec.get(role) or {}).get("spec") or {}).get("containers")
        if containers and not containers[0].get("command"):
            raise InputError(
                "is required: the launcher cannot know the image's own",
                "the words of the command",
                f"Or set the annotation {LAUNCHER}: 'false'.",
                column=f"spec.{role}.spec.containers[0].command",
            )
