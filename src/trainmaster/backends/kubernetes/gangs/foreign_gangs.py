"""Pods of other controllers that name our scheduler: which of them make a gang, and what job that is. No I/O.

A batch Job of parallelism 4 is a gang of 4 without further words, as are a whole JobSet and a whole PyTorchJob; pods
with the label `trainmaster.dev/gang` and a `trainmaster.dev/gang-size` (label or annotation) are one whatever made
them. Everything else is a gang of one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

from trainmaster.backends.kubernetes.attempts.observations import LABEL
from trainmaster.backends.kubernetes.attempts.pod_objects import is_number
from trainmaster.backends.kubernetes.nodes.cluster_model import GPU_RESOURCES, TYPE_LABELS
from trainmaster.backends.kubernetes.resources.quantity import cpu_milli_up, mem_mib_up, pod_requests
from trainmaster.backends.kubernetes.resources.training_job import engine_ms_of
from trainmaster.model.errors import InputError
from trainmaster.model.job import Demand, JobId, JobSpec
from trainmaster.model.units import GPU_MILLI

Json = Mapping[str, Any]
GANG, GANG_SIZE = f"{LABEL}/gang", f"{LABEL}/gang-size"
PREEMPTIBLE = f"{LABEL}/preemptible"
JOBSET_LABEL = "jobset.sigs.k8s.io/jobset-name"
KUBEFLOW = "kubeflow.org/v1"
MAX_SIZE = 10_000
MAX_NAME = 45

_PLURALS = {
    ("batch/v1", "Job"): "jobs",
    ("jobset.x-k8s.io/v1alpha2", "JobSet"): "jobsets",
    (KUBEFLOW, "PyTorchJob"): "pytorchjobs",
    (KUBEFLOW, "TFJob"): "tfjobs",
    (KUBEFLOW, "MPIJob"): "mpijobs",
    (KUBEFLOW, "JAXJob"): "jaxjobs",
    (KUBEFLOW, "PaddleJob"): "paddlejobs",
    (KUBEFLOW, "XGBoostJob"): "xgboostjobs",
}


class GangKey(NamedTuple):
    """`kind` is that of the object whose pods make the gang; `Label` when a label says so, `Pod` for one alone."""

    namespace: str
    api_version: str
    kind: str
    name: str
    uid: str

    @property
    def owned(self) -> bool:
        """Whether the object says how large the gang is."""
        return (self.api_version, self.kind) in _PLURALS

    @property
    def text(self) -> str:
        return f"{self.namespace}/{self.kind}/{self.name}/{self.uid}"


def gang_key(pod: Json) -> GangKey:
    meta = pod["metadata"]
    namespace, labels = meta["namespace"], meta.get("labels") or {}
    named = _note(pod, GANG)
    if named:
        return GangKey(namespace, "", "Label", named, "")
    if labels.get(JOBSET_LABEL):
        return GangKey(namespace, "jobset.x-k8s.io/v1alpha2", "JobSet", labels[JOBSET_LABEL], "")
    for owner in meta.get("ownerReferences") or ():
        if owner.get("controller") and (owner.get("apiVersion"), owner.get("kind")) in _PLURALS:
            return GangKey(namespace, owner["apiVersion"], owner["kind"], owner["name"], owner.get("uid", ""))
    return GangKey(namespace, "v1", "Pod", meta["name"], meta["uid"])


def object_path(key: GangKey) -> str:
    plural = _PLURALS[key.api_version, key.kind]
    return f"/apis/{key.api_version}/namespaces/{key.namespace}/{plural}/{key.name}"


def size_of_object(thing: Json) -> int:
    """How many pods the object runs at a time. Those that have succeeded are not made again."""
    spec, status = thing.get("spec") or {}, thing.get("status") or {}
    if thing.get("kind") == "Job":
        uncounted = (status.get("uncountedTerminatedPods") or {}).get("succeeded") or ()
        done = int(status.get("succeeded") or 0) + len(uncounted)
        completions = spec.get("completions")
        return _parallel(spec if completions is None else {**spec, "completions": int(completions) - done})
    if thing.get("kind") == "JobSet":
        jobs = spec.get("replicatedJobs") or ()
        return max(
            sum(int(j.get("replicas", 1)) * _parallel((j.get("template") or {}).get("spec") or {}) for j in jobs), 1
        )
    roles = [value for name, value in spec.items() if name.endswith("ReplicaSpecs") and isinstance(value, Mapping)]
    done = sum(int(role.get("succeeded") or 0) for role in (status.get("replicaStatuses") or {}).values())
    return max(sum(int(role.get("replicas", 1)) for group in roles for role in group.values()) - done, 1)


def _parallel(spec: Json) -> int:
    parallelism, completions = int(spec.get("parallelism", 1)), spec.get("completions")
    return max(parallelism if completions is None else min(parallelism, int(completions)), 1)


def labelled_size(pods: Iterable[Json]) -> int:
    """The size that the pods state; `InputError` when they do not, or not the same."""
    sizes = {_note(pod, GANG_SIZE) for pod in pods}
    text = max(sizes, default="")
    if len(sizes) != 1 or not is_number(text) or not 1 <= int(text) <= MAX_SIZE:
        told = ", ".join(sorted(repr(size) for size in sizes))
        raise InputError(f"the pods of the gang say {told}", f"the same number from 1 to {MAX_SIZE}", column=GANG_SIZE)
    return int(text)


def _note(pod: Json, name: str) -> str:
    meta = pod["metadata"]
    return str((meta.get("labels") or {}).get(name) or (meta.get("annotations") or {}).get(name) or "")


@dataclass(frozen=True)
class GangFacts:
    key: GangKey
    size: int
    pods: tuple[Json, ...]
    """Those that wait for a node, oldest first."""


def gang_spec(facts: GangFacts, epoch_ms: int) -> JobSpec:
    """The job; members may differ, so each counts as the largest. Foreign pods know no leases and no resizing."""
    asked = [pod_requests(pod["spec"]) for pod in facts.pods]
    resource = next((name for name in GPU_RESOURCES if any(a.get(name) for a in asked)), GPU_RESOURCES[0])
    most = {
        name: max((a.get(name, Fraction(0)) for a in asked), default=Fraction(0))
        for name in (resource, "cpu", "memory")
    }
    demand = Demand(int(most[resource]) * GPU_MILLI, cpu_milli_up(most["cpu"]), mem_mib_up(most["memory"]))
    first = facts.pods[0]
    since = min(pod["metadata"]["creationTimestamp"] for pod in facts.pods)
    key = facts.key
    return JobSpec(
        id=gang_id(key, since, first["metadata"]["uid"]),
        submit_ms=engine_ms_of(since, epoch_ms),
        name=key.name[:MAX_NAME],
        workers_min=facts.size,
        workers_max=facts.size,
        workers_ref=facts.size,
        worker=demand,
        gpu_types=_types(first),
        entity=key.namespace,
        priority=int(first["spec"].get("priority") or 0),
        max_attempts=1,
        preemptible=_note(first, PREEMPTIBLE) == "true",
        leased=False,
        payload={
            "kind": "Gang",
            "namespace": key.namespace,
            "gang": key.text,
            "owner": {"apiVersion": key.api_version, "kind": key.kind, "name": key.name, "uid": key.uid},
            "gpu_resource": resource,
        },
    )


def gang_id(key: GangKey, since: str, uid: str) -> JobId:
    """Another id whenever the gang begins anew: an id that was ever taken is not taken again."""
    digest = hashlib.sha256(f"{key.text}\0{since}\0{uid}".encode()).hexdigest()[:8]
    plain = "".join(c if c.isascii() and (c.isalnum() or c == "-") else "-" for c in key.name.lower())[:MAX_NAME]
    plain = plain.strip("-") or "gang"
    return JobId(f"{key.namespace}.{plain if plain[0].isalpha() else f'g{plain}'}.{digest}")


def _types(pod: Json) -> tuple[str, ...]:
    """GPU types that the pod's node selector or affinity insists on."""
    spec = pod["spec"]
    chosen = spec.get("nodeSelector") or {}
    for label in TYPE_LABELS:
        if chosen.get(label):
            return (chosen[label],)
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    ) or {}
    terms = required.get("nodeSelectorTerms") or ()
    if len(terms) == 1:
        for expression in terms[0].get("matchExpressions") or ():
            if expression.get("key") in TYPE_LABELS and expression.get("operator") == "In":
                return tuple(expression.get("values") or ())
    return ()
