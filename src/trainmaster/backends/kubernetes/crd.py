"""The TrainingJob resource: schema, defaults, rules and columns, as the API server takes them.

This is the one source; `trainmaster kube manifests` and the Helm chart print what is made here. The API server
checks everything that it can be taught (types, ranges, `min <= max`, what may change); the rest is checked when
the job is first seen (`translate.py`) and ends in `rejected`.
"""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]

GROUP = "trainmaster.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "TrainingJob"
PLURAL = "trainingjobs"
NAME = f"{PLURAL}.{GROUP}"

MAX_NAME = 45
"""Pods are called NAME-gGENERATION-wRANK, and a pod's name is its host name: at most 63 characters."""
MAX_MEMBERS = 10_000
MAX_GPUS_PER_WORKER = 1024
MAX_SECONDS = 1_000_000_000
MAX_GPU_TYPES = 64
MAX_CONTAINERS = 64
DEFAULT_GPU_RESOURCE = "nvidia.com/gpu"

CHANGEABLE = ("workers", "deadlineSeconds", "suspend", "weight", "priority")
"""What may be edited after creation. The rest makes the job what it is."""

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


def _integer(description: str, low: int | None = None, high: int | None = None, **more: Any) -> Json:
    bounds = {key: value for key, value in (("minimum", low), ("maximum", high)) if value is not None}
    return {"type": "integer", "format": "int64", "description": description, **bounds, **more}


def _number(description: str, **more: Any) -> Json:
    return {"type": "number", "description": description, **more}


def _positive(description: str) -> Json:
    return _number(description, minimum=0, exclusiveMinimum=True, maximum=1e15)


def _object(
    description: str, properties: Json, required: tuple[str, ...] = (), rules: tuple[Json, ...] = (),
    preserve: bool = False, **more: Any,
) -> Json:  # fmt: skip
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
                f"self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$') && size(self.metadata.name) <= {MAX_NAME}",
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
    properties: Json = {
        "workers": _object(
            "How many workers the job may have. Equal numbers make a rigid gang; otherwise the policy chooses the size "
            "and changes it while the job runs. May be edited at any time.",
            {
                "min": _integer("Fewest workers with which the job can run.", 1, MAX_MEMBERS, default=1),
                "max": _integer("Most workers that the job can use. Default: min.", 1, MAX_MEMBERS),
            },
            default={},
            rules=(
                _rule("!has(self.max) || self.min <= self.max", "workers.min must not be above workers.max", ".max"),
            ),
        ),
        "servers": _object(
            "How many parameter servers the job may have; leave it out for a job without any.",
            {
                "min": _integer("Fewest parameter servers.", 0, MAX_MEMBERS, default=0),
                "max": _integer("Most parameter servers. Default: min.", 0, MAX_MEMBERS),
            },
            rules=(
                _rule("!has(self.max) || self.min <= self.max", "servers.min must not be above servers.max", ".max"),
            ),
        ),
        "gpusPerWorker": _integer(
            "GPUs of each worker, in units of gpuResource. Default: what the template's first container asks for, else "
            "1. 0: the job needs no GPU.",
            0,
            MAX_GPUS_PER_WORKER,
        ),
        "gpuResource": _text(
            "Name of the extended resource that is the GPU.",
            default=DEFAULT_GPU_RESOURCE,
            maxLength=253,
            pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$",
        ),
        "gpuTypes": {
            "type": "array",
            "description": "Acceptable GPU types: values of the node label nvidia.com/gpu.product. Empty: any type.",
            "maxItems": MAX_GPU_TYPES,
            "items": {"type": "string", "minLength": 1, "maxLength": 63},
            "x-kubernetes-list-type": "set",
        },
        "deadlineSeconds": _integer(
            "Seconds after creation by which the job should be finished. May be edited at any time.", 1, MAX_SECONDS
        ),
        "deadlineKind": _text(
            "hard: worth nothing after the deadline, may be refused; soft: still run when it is late.",
            enum=["hard", "soft"],
            default="hard",
        ),
        "weight": {**_positive("Share of this job among the others, for policies that share."), "default": 1},
        "priority": _integer("Higher goes first, for policies that look at it.", -1000, 1000, default=0),
        "utility": {
            "type": "object",
            "description": (
                "What finishing is worth, by seconds after creation, such as {kind: sigmoid, theta1: 10, theta2: 0.01, "
                "theta3: 3600}; read by policies that maximise utility."
            ),
            "x-kubernetes-preserve-unknown-fields": True,
            "properties": {"kind": _text("Shape of the function: sigmoid, linear, step or constant.", maxLength=40)},
        },
        "budget": _positive("Most that the job may cost, in the currency of the price list."),
        "entity": _text(
            "Team that the job counts for, in weights and quotas. Default: the namespace.",
            maxLength=63,
            pattern=r"^[A-Za-z0-9]([-A-Za-z0-9._]*[A-Za-z0-9])?$",
        ),
        "model": _text("Name of the model in the throughput catalogue, such as ResNet-50.", maxLength=200),
        "batchSize": _integer("Batch size of a worker, to look the speed up.", 1, MAX_SECONDS),
        "work": _object(
            "How much there is to do; without it the job ends when it ends, and no finish time is predicted.",
            {"steps": _positive("Training steps in all."), "epochs": _positive("Epochs in all.")},
            rules=(_rule("has(self.steps) != has(self.epochs)", "give either work.steps or work.epochs"),),
        ),
        "stepsPerSecond": {
            "type": "object",
            "description": "Declared speed by GPU type, at workers.max workers. Types left out cannot run the job.",
            "maxProperties": MAX_GPU_TYPES,
            "additionalProperties": {"type": "number", "minimum": 0, "exclusiveMinimum": True, "maximum": 1e15},
        },
        "suspend": {
            "type": "boolean",
            "description": "true: stop the pods and keep the job paused; false: let it go on from its checkpoint.",
            "default": False,
        },
        "preemptible": {
            "type": "boolean",
            "description": "false: once started, the policy neither stops nor moves it.",
            "default": True,
        },
        "maxAttempts": _integer("How often the job is started before it counts as failed.", 1, 1000, default=3),
        "template": _template("Pod of a worker; its first container is the trainer."),
        "serverTemplate": _template("Pod of a parameter server. Default: the worker's, with TRAINMASTER_ROLE=server."),
    }
    frozen = [name for name in properties if name not in CHANGEABLE]
    return _object(
        "What the user wants.",
        properties,
        ("template",),
        tuple(_frozen(name) for name in frozen),
    )  # fmt: skip


def _frozen(name: str) -> Json:
    """Present in both and equal, or absent from both. Fields with a default are always there."""
    same = f"has(self.{name}) == has(oldSelf.{name}) && (!has(self.{name}) || self.{name} == oldSelf.{name})"
    return _rule(
        same,
        f"{name} cannot be changed after creation; only {', '.join(CHANGEABLE)} can: delete the job and create it anew",
        f".{name}",
        reason="FieldValueForbidden",
    )


def _template(description: str) -> Json:
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
    return _object(f"PodTemplateSpec. {description}", {"metadata": metadata, "spec": pod}, ("spec",))


def _status() -> Json:
    condition = _object(
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
    place = _object(
        "Members on one node.",
        {
            "node": _text("Name of the node."),
            "workers": _integer("Workers on it."),
            "servers": _integer("Parameter servers on it."),
            "type": _text("GPU type of the node."),
        },
    )
    return _object(
        "What Trainmaster knows of the job.",
        {
            "state": _text("Where the job stands.", enum=list(STATES)),
            "reason": _text("Why it waits or how it ended, as a word: Capacity, Behind, Deadline, Invalid..."),
            "message": _text("The same as a sentence: what is short, who holds it, what would help."),
            "conditions": {
                "type": "array",
                "description": "Conditions by type.",
                "items": condition,
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["type"],
            },
            "allocation": _object(
                "Where it runs now; empty while it waits.",
                {
                    "workers": _integer("Workers in all."),
                    "servers": _integer("Parameter servers in all."),
                    "places": {"type": "array", "description": "By node.", "items": place},
                },
            ),
            "progress": _number("Share of the work that is done, from 0 to 1."),
            "etaSeconds": {**_number("Seconds to the expected finish, when this was written."), "nullable": True},
            "expectedFinish": {**_text("The expected finish.", format="date-time"), "nullable": True},
            "attempts": _integer("How often it was started."),
            "generation": _integer("Number of the present or last incarnation; its pods carry it."),
            "observedGeneration": _integer("Generation of the spec that has been taken in."),
            "id": _text("The job's id for `trainmaster job`."),
            "startTime": {**_text("When it first ran.", format="date-time"), "nullable": True},
            "completionTime": {**_text("When it was over.", format="date-time"), "nullable": True},
            "shown": _object(
                "The same, as `kubectl get` shows it.",
                {
                    "workers": _text("Workers it has, of those it may have."),
                    "type": _text("GPU types it has."),
                    "progress": _text("Per cent of the work."),
                    "eta": _text("Expected finish, UTC."),
                },
            ),
            "engine": {
                "type": "object",
                "description": "What the scheduler needs to go on after a restart. Not for users.",
                "x-kubernetes-preserve-unknown-fields": True,
            },
        },
    )
