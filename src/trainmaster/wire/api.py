"""What clients and the service say to each other: the bodies of the REST interface under `/api/v1`.

    POST   /jobs                      JobRequest -> Accepted (201; the same `request_id` again: the same answer)
    POST   /jobs/preview              JobRequest -> Preview: when it would start and finish; nothing is changed
    GET    /jobs                      ?state=&name=&entity=&limit=&cursor= -> JobPage, oldest first (`state` repeatable)
    GET    /jobs/{job}                id or unique name -> JobView
    GET    /jobs/{job}/why            -> WhyView
    GET    /jobs/{job}/speeds         -> SpeedsView: what is believed of its speed at every size
    GET    /jobs/{job}/logs           ?attempt=&member=&offset=&limit=&wait_s= -> LogChunk
    POST   /jobs/{job}/cancel|pause|resume   -> JobView
    POST   /jobs/{job}/resize         ResizeRequest -> JobView
    POST   /jobs/{job}/edit           fields of JobRequest that may change -> JobView
    GET    /nodes                     -> list[NodeView]
    GET    /events                    ?after=&last=&limit=&job=&wait_s= -> EventPage; `last=N`: the newest N
    GET    /entities                  -> list[EntityView];  PUT /entities/{name}  EntityRequest (operator)
    GET    /situation                 -> what `trainmaster whatif` starts from
    GET    /accuracy                  -> list[AccuracyRow]
    POST   /speeds                    SpeedsRequest -> SpeedsKept: what `trainmaster profile` measured
    GET    /service                   -> ServiceView;       PUT /policy           PolicyRequest (operator)
                                                         PUT /clock            ClockRequest (operator)

Errors have the body of `Problem` and a 4xx status. Times are seconds; instants are seconds since 1970.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, StringConstraints

from trainmaster.jobspec.limits import (
    MAX_MEMBERS,
    TEXT_PATTERN,
    Body,
    Gpus,
    Positive,
    Seconds,
    Text,
    Whole,
    Word,
    Workers,
)
from trainmaster.jobspec.model import JobRequest

StateName = Literal["pending", "running", "paused", "finished", "failed", "cancelled", "rejected"]


class ResizeRequest(Body):
    workers: Workers


class PolicyRequest(Body):
    policy: Text


class MeasuredSpeed(Body):
    """`spread`: on more than one node."""

    accelerator: Word
    workers: Annotated[int, Field(ge=1, le=MAX_MEMBERS)]
    servers: Annotated[int, Field(ge=0, le=MAX_MEMBERS)] = 0
    spread: bool = False
    steps_per_s: Positive
    seconds: Seconds
    """For how long it was measured."""


class SpeedsRequest(Body):
    """Of jobs that say this model and batch size."""

    model: Annotated[str, StringConstraints(pattern=TEXT_PATTERN, min_length=1, max_length=200)]
    batch_size: Whole | None = None
    gpus_per_worker: Gpus = 1
    measured: Annotated[list[MeasuredSpeed], Field(min_length=1, max_length=64)]


class SpeedsKept(BaseModel):
    profile: str
    """What jobs alike have in common."""
    measured: int


class SpeedView(BaseModel):
    """Steps per second at one size; eight times of ten it is between `p10` and `p90`."""

    accelerator: str
    workers: int
    servers: int
    spread: bool
    p10: float
    p50: float
    p90: float
    measured: float | None
    """By jobs alike, at just this place."""


class SpeedsView(BaseModel):
    profile: str
    known: bool
    """False: nothing says how fast it is, only how its speed changes with size."""
    text: str
    """What it rests on."""
    speeds: list[SpeedView]


class ClockRequest(Body):
    confirmed: Literal[True]


MIN_TEAM_WEIGHT, MAX_TEAM_WEIGHT = 1e-3, 1e3
"""Shares are ratios of weights: further apart than this, a team has nothing or everything."""


class EntityRequest(Body):
    weight: Annotated[float, Field(ge=MIN_TEAM_WEIGHT, le=MAX_TEAM_WEIGHT, allow_inf_nan=False)] = 1
    quota_gpus: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)] | None = None
    policy: Literal["fairness", "fifo"] | None = None
    """How its jobs divide what it gets, under `gavel-hierarchical`; None: as that says."""


class Accepted(BaseModel):
    id: str
    """The first id of an array."""
    ids: list[str]


class Band(BaseModel):
    """Seconds from now; nine times of ten it is between `p05_s` and `p95_s`."""

    p05_s: float
    p50_s: float
    p90_s: float
    p95_s: float


class Foreseen(BaseModel):
    """What would become of one job; bands are None for what is not foreseen to happen."""

    starts: Band | None
    eta: Band | None
    ends_as: str
    """`finished`, or what else most futures end it as."""
    work_known: bool
    """False: the amount of work or the speed is a guess without any history, and so is the time."""
    eta_note: str = ""
    """What the time rests on, or what stops the job: `by 3 jobs like it`, `stopped at its limit --time 60 s`."""
    slack_s: float | None
    """Until the deadline, less the expected time."""


class Preview(BaseModel):
    """An array has one entry for each copy."""

    jobs: list[Foreseen]


class PlaceView(BaseModel):
    node: str
    accelerator: str
    workers: int
    servers: int
    devices: list[int]


class ProgressView(BaseModel):
    """As the job reported it; before its first report, what is saved."""

    work_done: float
    work_total: float | None
    fraction: float | None
    rate: float | None
    """Steps per second, as last reported."""
    loss: float | None
    age_s: float | None = None
    """Since the last report with news; None: this attempt has reported nothing."""


class SharedWithView(BaseModel):
    """Another job on the same devices."""

    job_id: str
    kept: float | None = None
    """Part of its speed alone that the job keeps beside it; None: not known."""
    low: float | None = None
    high: float | None = None
    """Bounds of `kept` that hold 8 times of 10."""
    measured: bool = False
    """The pair has shown it; else it is expected."""


class JobView(BaseModel):
    id: str
    name: str
    namespace: str | None = None
    """On Kubernetes: where the job is."""
    state: StateName
    phase: str
    reason: str
    """One sentence: why it waits or was refused; empty when it runs or has finished."""
    why: str
    """The reason's type, such as `capacity`."""
    position: int | None
    """In the queue, from 1; None when it does not wait."""
    allocation: list[PlaceView]
    sharing: list[SharedWithView] = []
    """Jobs on the same devices."""
    progress: ProgressView
    eta_s: float | None
    """Seconds until it is expected to finish."""
    eta: Band | None = None
    eta_note: str = ""
    """What `eta` rests on, why there is none, or what stops the job then."""
    starts: Band | None = None
    slack_s: float | None
    """Until the deadline, less the expected remaining time."""
    stalled_s: float | None = None
    """How long a stalled job has made no step; None: it is not stalled."""
    preempted_in_s: float | None = None
    """It was given notice of a preemption: how long it is spared, unless it saves; None: it was not."""
    attempts: int
    preemptions: int
    submitted: float
    started: float | None
    ended: float | None
    exit: str | None
    """How the last attempt ended: `exit 0`, `signal SIGKILL`..."""
    output: str = ""
    """If it failed: the error, as the member that failed wrote it."""
    hint: str = ""
    """What to do about a common cause."""
    emulated: bool
    """Speeds on this cluster are emulated, not measured on real accelerators."""
    cost: float | None
    request: JobRequest


class JobPage(BaseModel):
    jobs: list[JobView]
    cursor: str | None
    total: int


class WhyView(BaseModel):
    id: str
    why: str
    text: str
    needs_gpus: float
    free: dict[str, float]
    holders: list[tuple[str, float]]
    missing_gpus: float
    missing_type: str
    behind: str | None
    details: dict[str, Any]
    notices: dict[str, float] = {}
    """Holders that will be preempted, and in how many seconds."""
    advice: list[str]
    """Smallest changes that would start the job, as sentences."""


class LogChunk(BaseModel):
    text: str
    attempt: int
    member: str
    members: list[str]
    attempts: int
    offset: int
    """Where the next chunk begins."""
    ended: bool
    """Nothing more will come."""


class NodeView(BaseModel):
    id: str
    accelerator: str
    gpus: int
    free_gpus: float
    up: bool
    emulated: bool
    rack: str
    jobs: list[str]


class EventView(BaseModel):
    number: int
    at: float
    job: str | None
    kind: str
    text: str
    details: dict[str, Any]


class EventPage(BaseModel):
    events: list[EventView]
    next: int


class ExperiencePage(BaseModel):
    rows: list[dict[str, Any]]
    next: int


class EntityView(BaseModel):
    name: str
    weight: float
    quota_gpus: float | None
    policy: str | None = None
    used_gpus: float
    jobs: int


class AccuracyRow(BaseModel):
    """How good predictions were that were made when this fraction of a job's life had passed."""

    at_fraction_of_life: float
    jobs: int
    median_error: float
    median_error_of_remaining: float
    inside_90_fraction: float
    below_p90_fraction: float


class ServiceView(BaseModel):
    version: str
    policy: str
    backend: str
    cluster: str
    emulated: bool
    started: float
    jobs: dict[str, int]
    decisions: int
    plans_refused: int
    quarantined: list[str] = Field(default=[], description="Stored jobs that could not be read, and were set aside.")
    clock_jump_s: float = Field(
        default=0.0,
        description="By how much the wall clock has jumped, unless an operator has confirmed it: until then no history "
        "is deleted for its age.",
    )
    role: Literal["user", "operator"]


class Problem(BaseModel):
    """What went wrong, where, what was expected, and what to do."""

    what: str
    where: str = ""
    expected: str = ""
    remedy: str = ""
