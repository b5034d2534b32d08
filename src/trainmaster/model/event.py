"""What reaches the engine: wishes of users, reports of backends, changes of the cluster.

Reports name the attempt they speak of by `(job_id, generation)`; the engine ignores what speaks of
an attempt that is not the job's present one.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainmaster.model.cluster import Cluster
from trainmaster.model.job import DeadlineKind, JobId, JobSpec
from trainmaster.model.units import NEVER_MS


@dataclass(frozen=True, slots=True)
class JobSubmitted:
    spec: JobSpec


@dataclass(frozen=True, slots=True)
class JobCancelled:
    job_id: JobId


@dataclass(frozen=True, slots=True)
class JobPaused:
    job_id: JobId


@dataclass(frozen=True, slots=True)
class JobResumed:
    job_id: JobId


@dataclass(frozen=True, slots=True)
class JobRangeChanged:
    """The user changed how many workers the job may have; and how many servers, of a job without processes."""

    job_id: JobId
    workers_min: int
    workers_max: int
    servers: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class JobTermsChanged:
    """The user changed what the job wishes for; None: as it was. No deadline is `NEVER_MS` and kind `NONE`."""

    job_id: JobId
    deadline_ms: int | None = None
    deadline_kind: DeadlineKind | None = None
    weight: float | None = None
    priority: int | None = None
    time_s: float | None = None
    """Maximum run time; infinite: no limit any more."""
    preemptible: bool | None = None


@dataclass(frozen=True, slots=True)
class JobRoomChanged:
    """Whether the nodes that there are could take the job if they were empty. `lacks`: why not; empty: they could."""

    job_id: JobId
    lacks: str


@dataclass(frozen=True, slots=True)
class JobHalted:
    """The service ends the present attempt: `why` says which limit it broke. It counts as a failed attempt; `final`: as
    the last one."""

    job_id: JobId
    why: str
    final: bool = True


@dataclass(frozen=True, slots=True)
class EntityChanged:
    """The operator set a team's weight, its quota (thousandths of a GPU; None: no limit), and how its jobs divide what
    it gets ("fairness" or "fifo"; None: as the scheduling policy says)."""

    entity: str
    weight: float = 1.0
    quota_milli: int | None = None
    policy: str | None = None


@dataclass(frozen=True, slots=True)
class PolicyChanged:
    """Another policy decides from now on; its memory starts empty."""


@dataclass(frozen=True, slots=True)
class Woken:
    """A wake-up that the plan or the engine had asked for."""


@dataclass(frozen=True, slots=True)
class SpeedsLearned:
    """The estimator was told of speeds by somebody else than the jobs."""


@dataclass(frozen=True, slots=True)
class Started:
    """The whole gang runs; productive work begins at `productive_ms` (after loading a checkpoint).

    Here and below, work that is NaN was not measured: it is what the books say.
    """

    job_id: JobId
    generation: int
    work_done: float
    productive_ms: int


@dataclass(frozen=True, slots=True)
class StartFailed:
    """No member of the gang runs. `node`: the node that could not be reached; None: the job's own fault."""

    job_id: JobId
    generation: int
    why: str
    node: int | None = None


@dataclass(frozen=True, slots=True)
class Resized:
    """The attempt now has the allocation of command `seq`."""

    job_id: JobId
    generation: int
    seq: int
    work_done: float
    productive_ms: int


@dataclass(frozen=True, slots=True)
class Progressed:
    """Measured progress; `rate` in steps per second, `loss` at `work_done`; None: not measured."""

    job_id: JobId
    generation: int
    work_done: float
    at_ms: int
    rate: float | None = None
    loss: float | None = None
    checkpoints: bool = False
    """The job says that it saves and continues from checkpoints."""
    saved: float | None = None
    """Work that its last checkpoint holds; None: it has not said."""


@dataclass(frozen=True, slots=True)
class Exited:
    """The attempt ended by itself, or was killed. Exit code 0 is success."""

    job_id: JobId
    generation: int
    code: int
    work_saved: float
    why: str = ""
    output: str = ""
    """What the member that failed wrote last, in a few lines."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """The attempt ended without success or fault of its own. `work_saved` survives in its checkpoint.

    `silent` are nodes of the gang that could not be asked: members may live there until their lease ends.
    """

    job_id: JobId
    generation: int
    work_saved: float
    silent: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class NodeJoined:
    """A node came (back). The reports about what ran on it follow by an `Inventory`."""

    node: int


@dataclass(frozen=True, slots=True)
class NodeSet:
    """Which nodes jobs with this `node_set` may be given from now on. What they have already they keep."""

    name: str
    nodes: frozenset[int]


@dataclass(frozen=True, slots=True)
class ClusterGrew:
    """There are more nodes, or larger ones, and no other types. Nodes that were there keep their index."""

    cluster: Cluster


@dataclass(frozen=True, slots=True)
class NodeUsed:
    """Others than our jobs use so much of a node from now on (or it is closed to newcomers): what is left is ours.

    It does not disturb what runs: what cannot be withheld yet is, as soon as it is given back.
    """

    node: int
    gpus: int = 0
    cpu_milli: int = 0
    mem_mib: int = 0


@dataclass(frozen=True, slots=True)
class NodeLost:
    """A node is gone. `confirmed`: what ran there has certainly ended (power is off, agent says so).

    Otherwise its workers may go on until their lease, last renewed at `last_renewed_ms`, runs out. It is a
    promise: no lease of an attempt started by commands up to `seen_up_to` is renewed there any more,
    even if the node returns. It says nothing of attempts that later commands started.
    """

    node: int
    last_renewed_ms: int
    confirmed: bool
    seen_up_to: int = NEVER_MS


@dataclass(frozen=True, slots=True)
class Observed:
    """One attempt in an inventory: still there (`exit_code` None) or ended.

    `work` is NaN while it runs and nobody has measured it.
    """

    job_id: JobId
    generation: int
    work: float
    allocation_seq: int
    exit_code: int | None = None
    stopped: bool = False
    starting: bool = False


@dataclass(frozen=True, slots=True)
class Inventory:
    """Everything a backend can reach and vouch for, after every command up to `seen_up_to`.

    `nodes` lists the nodes it could ask; silence about a job on another node means nothing. An entry that
    has ended was ended on the nodes that could be asked.
    """

    entries: tuple[Observed, ...]
    seen_up_to: int
    nodes: frozenset[int]


UserEvent = (
    JobSubmitted | JobCancelled | JobPaused | JobResumed | JobRangeChanged | JobTermsChanged | JobHalted
    | EntityChanged | PolicyChanged | SpeedsLearned
)  # fmt: skip
Report = (
    JobRoomChanged | Started | StartFailed | Resized | Progressed | Exited | Stopped | NodeJoined | NodeSet
    | ClusterGrew | NodeUsed | NodeLost | Inventory
)  # fmt: skip
Event = UserEvent | Report | Woken
