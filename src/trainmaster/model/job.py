"""What a user submits: a job with its roles, range of sizes, work, and wishes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any, NewType

from trainmaster.model.scaling import LINEAR, Scaling
from trainmaster.model.units import GPU_MILLI, NEVER_MS, SERVER_CPU_MILLI

JobId = NewType("JobId", str)


class State(StrEnum):
    """The states a user sees."""

    PENDING = "pending"
    RUNNING = "running"
    PAUSED = "paused"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"
    REJECTED = "rejected"


class Phase(IntEnum):
    """The states the engine distinguishes; `STATE_OF` maps them to what users see."""

    PENDING = 0
    RESERVED = 1
    """Planned; its launch waits until the devices it was given are physically free."""
    LAUNCHING = 2
    RUNNING = 3
    RESIZING = 4
    STOPPING = 5
    LOST = 6
    """A node of its gang is gone: members may still run, until their lease has certainly run out."""
    PAUSED = 7
    FINISHED = 8
    FAILED = 9
    CANCELLED = 10
    REJECTED = 11


class PhaseCode:
    """The phases as plain integers, for columns: NumPy handles members of an enum class very slowly."""

    PENDING = int(Phase.PENDING)
    RESERVED = int(Phase.RESERVED)
    LAUNCHING = int(Phase.LAUNCHING)
    RUNNING = int(Phase.RUNNING)
    RESIZING = int(Phase.RESIZING)
    STOPPING = int(Phase.STOPPING)
    LOST = int(Phase.LOST)
    PAUSED = int(Phase.PAUSED)
    FINISHED = int(Phase.FINISHED)
    FAILED = int(Phase.FAILED)
    CANCELLED = int(Phase.CANCELLED)
    REJECTED = int(Phase.REJECTED)


STATE_OF: Mapping[Phase, State] = {
    Phase.PENDING: State.PENDING,
    Phase.RESERVED: State.PENDING,
    Phase.LAUNCHING: State.PENDING,
    Phase.RUNNING: State.RUNNING,
    Phase.RESIZING: State.RUNNING,
    Phase.STOPPING: State.RUNNING,
    Phase.LOST: State.RUNNING,
    Phase.PAUSED: State.PAUSED,
    Phase.FINISHED: State.FINISHED,
    Phase.FAILED: State.FAILED,
    Phase.CANCELLED: State.CANCELLED,
    Phase.REJECTED: State.REJECTED,
}
TERMINAL = frozenset({PhaseCode.FINISHED, PhaseCode.FAILED, PhaseCode.CANCELLED, PhaseCode.REJECTED})


class DeadlineKind(IntEnum):
    NONE = 0
    SOFT = 1
    HARD = 2


@dataclass(frozen=True, slots=True)
class Demand:
    """Resources of one member of a role. `gpu_milli` is 0, a fraction of one GPU, or whole GPUs."""

    gpu_milli: int = GPU_MILLI
    cpu_milli: int = 0
    mem_mib: int = 0

    @property
    def devices(self) -> int:
        """How many devices one member occupies (a fraction occupies part of one)."""
        return -(-self.gpu_milli // GPU_MILLI)

    @property
    def share_milli(self) -> int:
        """How much of each of its devices it takes."""
        return min(self.gpu_milli, GPU_MILLI)


NO_DEMAND = Demand(gpu_milli=0)
SERVER_DEMAND = Demand(gpu_milli=0, cpu_milli=SERVER_CPU_MILLI)
"""Of a parameter server of which nobody says what it needs."""


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A job as submitted. Rigid when `workers_min == workers_max`; with servers, parameter-server style.

    `work_total` is in steps (`None`: unknown, the job ends when it ends); `steps_per_s` maps an
    accelerator type to the speed of `workers_ref` workers (and `servers_ref` servers) on one node, and
    `steps_per_s_spread` to the speed when they are on several. Types absent from a non-empty mapping
    cannot run the job; an empty mapping means one step per second on every type.
    """

    id: JobId
    submit_ms: int = 0
    name: str = ""
    workers_min: int = 1
    workers_max: int = 1
    servers_min: int = 0
    servers_max: int = 0
    worker: Demand = Demand()
    server: Demand = NO_DEMAND
    workers_ref: int = 1
    servers_ref: int = 0
    gpu_types: tuple[str, ...] = ()
    work_total: float | None = None
    steps_per_s: Mapping[str, float] = field(default_factory=dict)
    steps_per_s_spread: Mapping[str, float] = field(default_factory=dict)
    scaling: Scaling = LINEAR
    weight: float = 1.0
    priority: int = 0
    entity: str = ""
    deadline_ms: int = NEVER_MS
    deadline_kind: DeadlineKind = DeadlineKind.NONE
    utility: Mapping[str, Any] | None = None
    budget: float | None = None
    gpu_memory_mib: int | None = None
    """What it takes of the memory of each of its GPUs, as its user says."""
    time_s: float | None = None
    """Maximum run time in all attempts together."""
    model: str = ""
    batch_size: int | None = None
    epochs_total: float | None = None
    max_attempts: int = 3
    preemptible: bool = True
    after: tuple[JobId, ...] = ()
    """Jobs that must have finished before this one starts."""
    node_set: str = ""
    """Name of the nodes that it may use (`event.NodeSet`); empty, or a name that nobody has explained: all."""
    leased: bool = True
    """Its workers end by themselves when they are cut off; else only a confirmed end lets it start elsewhere."""
    payload: Mapping[str, Any] = field(default_factory=dict)

    @property
    def gpus(self) -> float:
        """GPUs at the reference size."""
        return self.workers_ref * self.worker.gpu_milli / GPU_MILLI

    @property
    def elastic(self) -> bool:
        return self.workers_min != self.workers_max or self.servers_min != self.servers_max
