"""What an engine is set up with, and what it says last about a job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trainmaster.model.job import JobId, JobSpec, Phase
from trainmaster.model.lease import LeaseRule
from trainmaster.model.placement import Strategy
from trainmaster.model.plan import Rejection


@dataclass(frozen=True)
class Settings:
    """Choices of the operator that hold for the whole life of an engine."""

    placement: Strategy = Strategy.PACK
    round_ms: int | None = None
    seed: int = 0
    lease: LeaseRule = field(default_factory=LeaseRule)
    resend_ms: int = 5_000
    """A command without an answer is sent again after this time."""
    backoff_ms: int = 10_000
    """Pause after the first failure of a job; doubles with each further one."""
    restart_cost_ms: int = 0
    """What policies are told a restart costs."""
    resize_cost_ms: int = 0
    """What policies are told a resize in place costs."""
    elastic_fill: bool = False
    """Whether idle GPUs are offered to elastic jobs after a policy that decides at fixed sizes."""
    ask_after_start: bool = False
    """Whether the policy is asked again when a job runs that took time to start: it can be stopped and resized now."""
    min_run_ms: int = 120_000
    """A job runs at least so long before jobs of a higher priority may preempt it."""
    notice_ms: int = 0
    """For so long a job is spared, after a notice, that a preemption would cost more than `loss_max_ms` of work; 0: no
    notices."""
    loss_max_ms: int = 600_000
    entity_weights: Mapping[str, float] = field(default_factory=dict)
    entity_policies: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Notice:
    job_id: JobId
    generation: int
    until_ms: int
    loss_s: float
    """Work that a preemption would lose, when the notice was given."""
    has_saved: bool


@dataclass(frozen=True, slots=True)
class PairVerdict:
    """Two jobs that shared devices have shown what parts of their speeds they keep; whether that is `worth` it."""

    job_id: JobId
    other_id: JobId
    gpu_type: str
    kept: float
    other_kept: float
    worth: bool


@dataclass(frozen=True, slots=True)
class Ended:
    """The last word on a job."""

    spec: JobSpec
    phase: Phase
    ended_ms: int
    first_start_ms: int
    service_gpu_s: float
    run_s: float
    work_done: float
    preemptions: int
    attempts: int
    cost: float = 0.0
    """Dollars; NaN when a type it ran on has no price."""
    rejection: Rejection | None = None
