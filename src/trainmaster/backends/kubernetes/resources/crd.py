"""The TrainingJob resource: schema, defaults, rules and columns, as the API server takes them.

The fields of `spec` come from `jobspec`; `trainmaster kube manifests` and the Helm chart print what is made here. The
API server checks everything that it can be taught (types, ranges, `min <= max`, what may change); the rest is checked
when the job is first seen (`training_job.py`) and ends in `rejected`.
"""

from __future__ import annotations

from typing import Any

from trainmaster.backends.kubernetes.api.paths import GROUP, VERSION
from trainmaster.jobspec.model import CHANGEABLE, CRD_PATHS
from trainmaster.jobspec.schema import crd_properties
from trainmaster.jobspec.training_job import KIND, MAX_NAME, NAME_PATTERN

Json = dict[str, Any]

PLURAL = "trainingjobs"
NAME = f"{PLURAL}.{GROUP}"

MAX_CONTAINERS = 64

STATES = ("pending", "running", "paused", "finished", "failed", "cancelled", "rejected")
OVER = ("finished", "failed", "cancelled", "rejected")


def crd() -> Json:
    """The CustomResourceDefinition."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": NAME, "labels": {"app.kubernetes.io/name": "trainmaster"}},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": "trainingjob",
                "shortNames": ["tj", "tjs"],
                "categories": ["all"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": COLUMNS,
                    "schema": {"openAPIV3Schema": _root()},
                }
            ],
        },
    }


def _column(name: str, path: str, text: str, priority: int = 0, kind: str = "string") -> Json:
    column: Json = {"name": name, "type": kind, "jsonPath": path, "description": text}
    return {**column, "priority": priority} if priority else column


COLUMNS: list[Json] = [
    _column("State", ".status.state", "pending, running, paused, finished, failed, cancelled or rejected."),
    _column("Workers", ".status.shown.workers", "Workers it has, of those it may have."),
    _column("Type", ".status.shown.type", "Accelerators it has."),
    _column("Progress", ".status.shown.progress", "Share of its work that is done."),
    _column("ETA", ".status.shown.eta", "When it is expected to finish (UTC)."),
    _column("Reason", ".status.reason", "Why it waits, or how it ended."),
    _column("Message", ".status.message", "The reason in a sentence.", priority=1),
    _column("Attempts", ".status.attempts", "How often it was started.", priority=1, kind="integer"),
    _column("Age", ".metadata.creationTimestamp", "Since it was created.", kind="date"),
]


def _text(description: str, **more: Any) -> Json:
    return {"type": "string", "description": description, **more}


def _integer(description: str) -> Json:
    return {"type": "integer", "format": "int64", "description": description}


def _number(description: str) -> Json:
    return {"type": "number", "description": description}


def _object(
    description: str,
    properties: Json,
    required: tuple[str, ...] = (),
    rules: tuple[Json, ...] = (),
    preserve: bool = False,
    **more: Any,
) -> Json:
    """`preserve`: keep what the schema does not name."""
    made: Json = {"type": "object", "description": description, "properties": properties, **more}
    if preserve:
        made["x-kubernetes-preserve-unknown-fields"] = True
    if required:
        made["required"] = list(required)
    if rules:
        made["x-kubernetes-validations"] = list(rules)
    return made


def _rule(rule: str, message: str, field: str = "", **more: str) -> Json:
    made = {"rule": rule, "message": message, **more}
    return {**made, "fieldPath": field} if field else made


def _root() -> Json:
    return {
        "type": "object",
        "description": (
            "A training job that Trainmaster schedules: a gang of worker pods (and, if wished, parameter servers) "
            "that starts whole or not at all. The namespace is the team that it counts for, unless spec.entity says "
            "otherwise."
        ),
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": _spec(),
            "status": _status(),
        },
        "x-kubernetes-validations": [
            _rule(
                f"self.metadata.name.matches('{NAME_PATTERN}') && size(self.metadata.name) <= {MAX_NAME}",
                f"metadata.name must be a lower-case word of letters, digits and '-' that begins with a letter, at "
                f"most {MAX_NAME} characters long: pods and host names are made from it",
            ),
            _rule(
                f"!has(oldSelf.status) || !has(oldSelf.status.state) || !(oldSelf.status.state in {list(OVER)!r}) "
                "|| self.spec == oldSelf.spec",
                "the job is over and cannot be changed: delete it, or create another",
                ".spec",
            ),
        ],
    }


def _spec() -> Json:
    properties = crd_properties({name: _template() for name in ("template", "serverTemplate")})
    changeable = [CRD_PATHS[field] for field in CHANGEABLE]
    frozen = [name for name in properties if name not in changeable]
    return _object(
        "What the user wants.", properties, ("template",), tuple(_frozen(name, changeable) for name in frozen)
    )


def _frozen(name: str, changeable: list[str]) -> Json:
    """Present in both and equal, or absent from both. Fields with a default are always there."""
    same = f"has(self.{name}) == has(oldSelf.{name}) && (!has(self.{name}) || self.{name} == oldSelf.{name})"
    return _rule(
        same,
        f"{name} cannot be changed after creation; only {', '.join(changeable)} can: delete the job and create it anew",
        f".{name}",
        reason="FieldValueForbidden",
    )


def _template() -> Json:
    """PodTemplateSpec, as far as it is looked into; the API server checks the rest when pods are made."""
    container = _object(
        "A container, as in any pod.",
        {
            "name": _text("Name of the container.", minLength=1, maxLength=63),
            "image": _text("Image that it runs.", maxLength=1024),
        },
        ("name",),
        preserve=True,
    )
    pod = _object(
        "PodSpec, as in any pod. schedulerName, restartPolicy, hostname and subdomain are set by Trainmaster.",
        {
            "containers": {
                "type": "array",
                "description": "Containers of the pod; the first is the trainer, whose end is the worker's end.",
                "minItems": 1,
                "maxItems": MAX_CONTAINERS,
                "items": container,
            },
        },
        ("containers",),
        preserve=True,
    )
    metadata = _object("Labels and annotations of the pods.", {}, preserve=True)
    return {"properties": {"metadata": metadata, "spec": pod}, "required": ["spec"]}


_CONDITION = _object(
    "One condition.",
    {
        "type": _text("Scheduled, Running, Finished or Rejected."),
        "status": _text("True, False or Unknown.", enum=["True", "False", "Unknown"]),
        "reason": _text("A word for programs."),
        "message": _text("A sentence for people."),
        "lastTransitionTime": _text("When it became so.", format="date-time"),
        "observedGeneration": _integer("Generation of the spec that it speaks of."),
    },
    ("type", "status"),
)
_PLACE = _object(
    "Members on one node.",
    {
        "node": _text("Name of the node."),
        "workers": _integer("Workers on it."),
        "servers": _integer("Parameter servers on it."),
        "type": _text("GPU type of the node."),
    },
)
_SHOWN = _object(
    "The same, as `kubectl get` shows it.",
    {
        "workers": _text("Workers it has, of those it may have."),
        "type": _text("GPU types it has."),
        "progress": _text("Per cent of the work."),
        "eta": _text("Expected finish, UTC."),
    },
)


def _status() -> Json:
    return _object(
        "What Trainmaster knows of the job.",
        {
            "state": _text("Where the job stands.", enum=list(STATES)),
            "reason": _text("Why it waits or how it ended, as a word: Capacity, Behind, Deadline, Invalid..."),
            "message": _text("The same as a sentence: what is short, who holds it, what would help."),
            "conditions": {
                "type": "array",
                "description": "Conditions by type.",
                "items": _CONDITION,
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["type"],
            },
            "allocation": _object(
                "Where it runs now; empty while it waits.",
                {
                    "workers": _integer("Workers in all."),
                    "servers": _integer("Parameter servers in all."),
                    "places": {"type": "array", "description": "By node.", "items": _PLACE},
                },
            ),
            "progress": _number("Share of the work that is done, from 0 to 1."),
            "etaSeconds": {**_number("Seconds to the expected finish, when this was written."), "nullable": True},
            "expectedFinish": {**_text("The expected finish.", format="date-time"), "nullable": True},
            "attempts": _integer("How often it was started."),
            "generation": _integer("Number of the present or last attempt; its pods carry it."),
            "observedGeneration": _integer("Generation of the spec that has been taken in."),
            "id": _text("The job's id for `trainmaster job`."),
            "startTime": {**_text("When it first ran.", format="date-time"), "nullable": True},
            "completionTime": {**_text("When it was over.", format="date-time"), "nullable": True},
            "shown": _SHOWN,
            "engine": {
                "type": "object",
                "description": "What the scheduler needs to go on after a restart. Not for users.",
                "x-kubernetes-preserve-unknown-fields": True,
            },
        },
    )
