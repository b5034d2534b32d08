"""What the engine asks of a backend. Idempotent; fenced by (job_id, generation); numbered by `seq`."""

from __future__ import annotations

from dataclasses import dataclass

from trainmaster.model.allocation import Allocation
from trainmaster.model.job import JobId, JobSpec


@dataclass(frozen=True, slots=True)
class Launch:
    """Start the job's gang, all or nothing, as attempt `generation`."""

    job_id: JobId
    generation: int
    seq: int
    allocation: Allocation
    spec: JobSpec


@dataclass(frozen=True, slots=True)
class Resize:
    """Bring the running attempt to this allocation without stopping what stays."""

    job_id: JobId
    generation: int
    seq: int
    allocation: Allocation


@dataclass(frozen=True, slots=True)
class Stop:
    """End the attempt: notice, SIGTERM, grace, SIGKILL. `why` is told to the job."""

    job_id: JobId
    generation: int
    seq: int
    why: str


Command = Launch | Resize | Stop
