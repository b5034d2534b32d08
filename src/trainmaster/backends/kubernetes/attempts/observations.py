"""What is known of one attempt and of each of its pods: shared by backend, launcher and their tests."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from typing import Any, NamedTuple

from trainmaster.model.job import JobSpec

LABEL = "trainmaster.dev"
JOB, ROLE, RANK, GENERATION = f"{LABEL}/job", f"{LABEL}/role", f"{LABEL}/rank", f"{LABEL}/generation"
"""Labels of every pod of a job: the TrainingJob's name, `worker` or `server`, rank at creation, attempt."""
JOB_ID, SEQ, MEMBER, NODE = f"{LABEL}/job-id", f"{LABEL}/seq", f"{LABEL}/member", f"{LABEL}/node"
"""Annotations: the engine's id, number of the command that made the pod, member's name, node it is meant for."""
USERS_OWN = frozenset({"TRAINMASTER_ARRAY_INDEX", "TRAINMASTER_CHECKPOINT_DIR", "TRAINMASTER_EMULATED_SLOWDOWN"})
"""Variables with our prefix that a template may set."""
LAUNCHER = f"{LABEL}/launcher"
"""Annotation of a TrainingJob; `false`: its pods run without launcher, and so without a lease."""
SCHEDULER = "trainmaster"


class RunKey(NamedTuple):
    """One attempt."""

    job_id: str
    generation: int


@dataclass(frozen=True)
class PodSeat:
    """One member's place in the gang as it was when the pod was made. `rank` counts within the role."""

    member: str
    role: str
    rank: int
    node: str
    local_rank: int
    n_devices: int
    workers: int
    servers: int
    accelerator: str = ""


@dataclass(frozen=True)
class RunFacts:
    """`job` is the TrainingJob; `agents` are addresses (host:port) of the service that launchers turn to."""

    key: RunKey
    namespace: str
    name: str
    uid: str
    seq: int
    token: str
    agents: tuple[str, ...]
    lease_s: float
    grace_s: float
    spec: JobSpec
    job: dict[str, Any]

    @property
    def launcher(self) -> bool:
        """Whether its pods run under a lease."""
        annotations = self.job.get("metadata", {}).get("annotations") or {}
        return annotations.get(LAUNCHER) not in ("false", "none")


def run_token(secret: bytes, key: RunKey) -> str:
    """What members of an attempt prove themselves by; nothing need be stored for each."""
    return hmac.new(secret, f"{key.job_id}/{key.generation}".encode(), hashlib.sha256).hexdigest()
