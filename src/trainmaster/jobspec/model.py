"""The fields of a job: type, bounds, default, help, command-line option and place in a TrainingJob.

The one list. A field that is added here is validated by REST and YAML files, has an option of `submit` and `run`, a
property of the CRD and of job-spec.schema.json, and travels with the job; the engine gets it when its own `JobSpec` has
a field of that name.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator

from trainmaster.jobspec import limits as of
from trainmaster.jobspec.limits import Range, Workers
from trainmaster.model.units import SERVER_CPU_MILLI

SIZE, WORK, ORDER = "Size and placement", "Work", "Order and limits"
_LIKE_AN_ID = re.compile(r"^job-\d+$")


class Option(NamedTuple):
    """The command-line option of a field. A field without this has `--its-name`."""

    names: tuple[str, ...] = ()
    panel: str = ""
    form: str = ""
    """How text becomes the value (`request.build`); default: by the field's type."""
    metavar: str | None = None
    sets: Any = None
    """A flag, and the value it sets."""
    hidden: bool = False
    """No option."""


class Crd(NamedTuple):
    """Where a field stands in the spec of a TrainingJob. A field without this is `spec.itsName`."""

    path: str = ""
    changeable: bool = False
    """May be edited while the job exists."""
    whole: bool = False
    """An integer there: Kubernetes deals out whole devices and seconds."""
    default: bool = True
    """Whether the API server fills the default in."""


class JobFields(BaseModel):
    """What a job may say on every way in."""

    model_config = ConfigDict(defer_build=True)

    workers: Annotated[
        Workers,
        Field(description="Number of workers. min = max: a rigid gang; else the policy chooses and changes the size."),
        Option(("--elastic",), SIZE, "range", "A..B"),
        Crd(changeable=True),
    ] = Workers(min=1, max=1)
    servers: Annotated[
        Range, Field(description="Number of parameter servers."), Option((), SIZE, "range", "A..B"), Crd(default=False)
    ] = Range(min=0, max=0)
    worker_mbps: Annotated[
        of.Positive | None,
        Field(
            description="Bandwidth in Mbit/s that a worker needs to its parameter servers. With --server-mbps: a "
            "policy that chooses the numbers gives as many servers as the workers need."
        ),
        Option((), SIZE),
    ] = None
    server_mbps: Annotated[
        of.Positive | None, Field(description="Bandwidth in Mbit/s of a parameter server."), Option((), SIZE)
    ] = None
    gpus_per_worker: Annotated[
        of.Gpus,
        Field(description="GPUs of each worker (0.5: half of one); 0: no GPU. Kubernetes: whole GPUs."),
        Option((), SIZE),
        Crd(whole=True, default=False),
    ] = 1
    gpu_types: Annotated[
        list[of.Word],
        Field(max_length=64, description="Acceptable GPU types, such as v100; default: any."),
        Option(("--gpu-type",), SIZE),
    ] = Field(default_factory=list)
    gpu_memory_mib: Annotated[
        Annotated[int, Field(ge=1, le=of.MAX_INTEGER)] | None,
        Field(
            description="GPU memory that the job takes on each GPU, in MiB. Where neither this nor a known model "
            "tells it, the job shares no GPU. Option: 6GiB."
        ),
        Option(("--gpu-memory",), SIZE, "memory", "6GiB"),
        Crd("gpuMemoryMib"),
    ] = None
    model: Annotated[
        str,
        StringConstraints(pattern=of.TEXT_PATTERN, max_length=200),
        Field(description="Model name, to look up its speed in the throughput catalogue."),
        Option((), WORK),
        Crd(default=False),
    ] = ""
    batch_size: Annotated[of.Whole | None, Field(description="Batch size of a worker."), Option((), WORK)] = None
    steps: Annotated[
        of.Positive | None, Field(description="Training steps in total."), Option((), WORK), Crd("work.steps")
    ] = None
    epochs: Annotated[
        of.Positive | None, Field(description="Epochs in total."), Option((), WORK), Crd("work.epochs")
    ] = None
    steps_per_s: Annotated[
        dict[of.Word, of.Positive],
        Field(max_length=64, description="Declared speed by GPU type, at workers.max; other types cannot run the job."),
        Option(("--speed",), WORK, "speeds", "TYPE=STEPS/S"),
        Crd("stepsPerSecond"),
    ] = Field(default_factory=dict)
    scaling: Annotated[
        of.Curve,
        Field(
            description="How speed depends on size: steps per second by number of workers (1: 10, 2: 18); or serial, "
            "the part of a step that does not divide; or terms of the step time a/w + b + c w/p + d w + e p + f/p + "
            "g p/w with w workers and p servers. What jobs measure counts more."
        ),
        Option((), WORK, "curve", "W=STEPS/S,..."),
    ] = Field(default_factory=dict)
    deadline_s: Annotated[
        of.Seconds | None,
        Field(description="Deadline in seconds after submission. Option: 90m, 2h, 3d, or 2026-11-17T18:00."),
        Option(("--deadline",), ORDER, "deadline", "2h|DATE"),
        Crd("deadlineSeconds", changeable=True, whole=True),
    ] = None
    deadline_kind: Annotated[
        Literal["hard", "soft"],
        Field(description="soft: runs even when late; hard: refused if it cannot be met."),
        Option(("--soft",), ORDER, sets="soft"),
    ] = "hard"
    utility: Annotated[
        of.FreeObject | None,
        Field(
            description="Value of finishing, by seconds after submission, such as "
            '{"kind": "sigmoid", "theta1": 10, "theta2": 0.01, "theta3": 3600}.',
            json_schema_extra={"properties": {"kind": of.UTILITY_KIND}},
        ),
        Option((), ORDER, "json", "JSON"),
    ] = None
    weight: Annotated[
        of.Positive, Field(description="Share relative to other jobs."), Option((), ORDER), Crd(changeable=True)
    ] = 1
    priority: Annotated[
        int,
        Field(
            ge=-1000,
            le=1000,
            description="Higher goes first. Kubernetes: default the value of the template's PriorityClass.",
        ),
        Option((), ORDER),
        Crd(changeable=True, default=False),
    ] = 0
    entity: Annotated[
        of.Name | None, Field(description="Team; Kubernetes: default the namespace."), Option((), ORDER)
    ] = None
    budget: Annotated[of.Positive | None, Field(description="Maximum cost, in the currency of the price list."),
                      Option((), ORDER)] = None  # fmt: skip
    time_s: Annotated[
        of.Seconds | None,
        Field(
            description="Maximum run time in seconds, all attempts together; then the job is stopped. Option: 90m, 2h."
        ),
        Option(("--time",), ORDER, "duration", "2h"),
        Crd("timeLimitSeconds", changeable=True, whole=True),
    ] = None
    stall_factor: Annotated[
        float,
        Field(
            ge=0,
            le=of.MAX_INTEGER,
            allow_inf_nan=False,
            description="A job that reports steps is stalled after this many times its usual step time without a step, "
            "at least a minute; 0: never.",
        ),
        Option((), ORDER),
        Crd(whole=True),
    ] = 100
    restart_stalled: Annotated[
        bool,
        Field(description="Restart the job when it is stalled; counts as a failed attempt."),
        Option(("--restart-stalled",), ORDER, sets=True),
    ] = False
    max_attempts: Annotated[
        int, Field(ge=1, le=1000, description="Starts before the job counts as failed."), Option((), ORDER)
    ] = 3
    preemptible: Annotated[
        bool | None,
        Field(
            description="Whether the policy may stop or move the job once it runs: the command continues from "
            "checkpoints. Default: elastic jobs, and others from when the runtime says that they save."
        ),
        Option(("--preemptible/--no-preempt",), ORDER, "switch"),
    ] = None
    after: Annotated[
        list[of.Reference],
        Field(max_length=of.MAX_ITEMS, description="Ids or names of jobs that must finish first."),
        Option((), ORDER, metavar="JOB"),
    ] = Field(default_factory=list)


class JobRequest(JobFields):
    """A job to submit by REST, a YAML file or options. Everything except the command has a default."""

    model_config = ConfigDict(extra="forbid")

    command: Annotated[
        of.Command,
        Field(description="Program and arguments; no shell is involved."),
        Option((), form="argument", metavar="COMMAND ARGS..."),
    ]
    name: Annotated[of.Name | None, Field(description="Name of the job."), Option(("--name", "-n"))] = None
    cpus_per_worker: Annotated[
        float, Field(ge=0, le=1e6, allow_inf_nan=False, description="CPUs of each worker."), Option(("--cpus",), SIZE)
    ] = 0
    memory_mib_per_worker: Annotated[
        int,
        Field(ge=0, le=of.MAX_INTEGER, description="Memory of each worker in MiB. Option: 512M, 8GiB."),
        Option(("--memory",), SIZE, "memory", "8GiB"),
    ] = 0
    cpus_per_server: Annotated[
        float,
        Field(ge=0, le=1e6, allow_inf_nan=False, description="CPUs of each parameter server."),
        Option((), SIZE),
    ] = SERVER_CPU_MILLI / 1000
    memory_mib_per_server: Annotated[
        int,
        Field(ge=0, le=of.MAX_INTEGER, description="Memory of each parameter server in MiB. Option: 512M, 8GiB."),
        Option(("--memory-per-server",), SIZE, "memory", "8GiB"),
    ] = 0
    env: Annotated[
        of.Environment,
        Field(description="Environment variables. Option: K alone takes the value from here."),
        Option(("--env", "-e"), WORK, "environment", "K=V"),
    ] = Field(default_factory=dict)
    image: Annotated[
        Annotated[str, StringConstraints(pattern=of.TEXT_PATTERN, min_length=1, max_length=1024)] | None,
        Field(description="Kubernetes: container image."),
        Option((), WORK),
    ] = None
    namespace: Annotated[
        of.Name | None, Field(description="Kubernetes: namespace; default: the kubeconfig's."), Option((), WORK)
    ] = None
    workdir: Annotated[
        of.AbsolutePath | None, Field(description="Working directory; default: the current one."), Option((), WORK)
    ] = None
    snapshot: Annotated[
        bool,
        Field(
            description="Copy the work folder at submission and run in the copy: later edits do not change the job. "
            "Of a git checkout: all files that are not ignored. For a service on this machine."
        ),
        Option(("--snapshot",), WORK, sets=True),
    ] = False
    server_command: Annotated[
        of.Command | None,
        Field(description="Command of parameter servers; default: the same, with TRAINMASTER_ROLE=server."),
        Option(hidden=True),
    ] = None
    array: Annotated[
        Annotated[int, Field(ge=1, le=10_000)] | None,
        Field(description="Number of copies; TRAINMASTER_ARRAY_INDEX tells them apart."),
        Option((), WORK),
    ] = None
    request_id: Annotated[
        Annotated[str, StringConstraints(pattern=of.TEXT_PATTERN, max_length=64)] | None,
        Field(description="The same id again gives the same answer: safe to repeat."),
        Option(hidden=True),
    ] = None

    @field_validator("name")
    @classmethod
    def _no_id(cls, name: str | None) -> str | None:
        if name is not None and _LIKE_AN_ID.match(name):
            raise ValueError(f"'{name}' is reserved for job ids: choose another name")
        return name


class TrainingJobSpec(JobFields):
    """The spec of a TrainingJob. What its pods run is in the templates."""

    gpu_resource: Annotated[
        str,
        StringConstraints(
            pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$", max_length=253
        ),
        Field(description="Extended resource that is the GPU."),
    ] = "nvidia.com/gpu"
    suspend: Annotated[
        bool,
        Field(description="true: stop the pods and keep the job paused; false: continue from its checkpoint."),
        Crd(changeable=True),
    ] = False
    template: Annotated[
        dict[str, Any] | None, Field(description="Pod of a worker; its first container is the trainer.")
    ] = None
    server_template: Annotated[
        dict[str, Any] | None,
        Field(description="Pod of a parameter server; default: the worker's, with TRAINMASTER_ROLE=server."),
    ] = None


def note_of(model: type[BaseModel], field: str, kind: type[Any]) -> Any:
    """The field's `Option` or `Crd`; the default one when it has none."""
    return next((note for note in model.model_fields[field].metadata if isinstance(note, kind)), kind())


def crd_path(field: str) -> str:
    """Dotted path below `spec` in a TrainingJob."""
    first, *rest = field.split("_")
    return note_of(TrainingJobSpec, field, Crd).path or first + "".join(word.title() for word in rest)


CRD_PATHS = {field: crd_path(field) for field in TrainingJobSpec.model_fields}
CHANGEABLE = tuple(field for field in TrainingJobSpec.model_fields if note_of(TrainingJobSpec, field, Crd).changeable)
"""Fields that may be edited while a job exists. The rest makes it what it is."""
EDITABLE = (*(field for field in CHANGEABLE if field in JobFields.model_fields), "servers")
"""The same on one machine, and the servers of a job that does not run."""
