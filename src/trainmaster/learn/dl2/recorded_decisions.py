"""What a running service has decided, as demonstrations: its finished jobs become a trace, its log the sizes of each
slot.

The log tells when a job was launched, resized and stopped, and with how many workers and servers; the records of ended
jobs tell what they were. Rigid jobs are left out: they hold machines, but there is nothing to learn from them. What the
log has forgotten is missing here too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trainmaster.engine.ports import LogEntry
from trainmaster.engine.records import Ended
from trainmaster.learn.dl2.demonstrations import Sizes
from trainmaster.learn.dl2.online import finished_specs, history_spec
from trainmaster.learn.sizing.trace import TERMS, SizingSpec, SizingTrace
from trainmaster.model.errors import InputError
from trainmaster.model.job import JobSpec, Phase
from trainmaster.model.units import MS_PER_S

HISTORY = "history"
COMMANDS = ("launch", "resize", "stop")
"""Kinds of log entries that tell sizes."""


@dataclass(frozen=True)
class Lived:
    """Jobs that a service ran, and the sizes that it gave them in every slot."""

    trace: SizingTrace
    sizes: Sizes


def lived(ended: Sequence[Ended], log: Sequence[LogEntry], machines: SizingSpec) -> Lived:
    """The history of a service on these machines (of `machines` only they and the length of a slot count)."""
    types = sorted({place["accelerator"] for entry in log for place in entry.details.get("places", ())})
    told = {entry.job_id for entry in log if entry.kind == "launch"}
    usable = [end for end in ended if end.spec.id in told]
    first_ms = min((end.spec.submit_ms for end in usable if end.phase == Phase.FINISHED), default=0)
    jobs = [spec for spec in finished_specs(usable, types) if spec.elastic and spec.work_total]
    spec = history_spec(jobs, machines.cluster(), machines.slot_s)
    sizes = _sizes(jobs, log, first_ms, round(spec.slot_s * MS_PER_S))
    _check_machines(sizes, spec)
    names = [kind.name for kind in spec.kinds]
    kind = np.array([names.index(job.model or repr(job.scaling)) for job in jobs], np.int64)
    curves = np.array([[getattr(k.scaling(), term) for term in TERMS] for k in spec.kinds])[kind]
    trace = SizingTrace(
        spec,
        np.array([job.submit_ms for job in jobs], np.int64),
        kind,
        np.array([float(job.work_total or 0.0) for job in jobs]),
        curves,
        curves,
        np.ones(len(jobs)),
        tuple(job.id for job in jobs),
    )
    return Lived(trace, sizes)


def _sizes(jobs: Sequence[JobSpec], log: Sequence[LogEntry], first_ms: int, slot_ms: int) -> Sizes:
    """The last size that each job was given by the end of each slot."""
    known = {job.id for job in jobs}
    held: dict[str, tuple[int, int]] = {}
    sizes: dict[int, dict[str, tuple[int, int]]] = {}
    for entry in log:
        job_id = entry.job_id
        if job_id is None or job_id not in known:
            continue
        if entry.kind == "stop":
            held.pop(job_id, None)
        else:
            places = entry.details["places"]
            held[job_id] = (sum(int(at["workers"]) for at in places), sum(int(at["servers"]) for at in places))
        sizes[max(entry.at_ms - first_ms, 0) // slot_ms] = dict(held)
    return sizes


def _check_machines(sizes: Sizes, spec: SizingSpec) -> None:
    """Sizes that the stated machines cannot hold would be cut without a word. Jobs that have ended are still among
    the sizes, so single jobs are looked at."""
    most = max((workers for held in sizes.values() for workers, _ in held.values()), default=0)
    if most > spec.gpus:
        raise InputError(
            f"the service gave a job {most} workers; the stated machines have {spec.gpus} GPUs",
            "the service's machines",
            "State them: --cluster servers=N,gpus=G,cpus=C,slot=SECONDS.",
        )
