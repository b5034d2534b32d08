"""What a running service has decided, as demonstrations: its finished jobs become a trace, its experience the sizes of
each slot.

Experience (`service.control.experience`) tells what each job held after each step; before its first row, and in homes
of version 0.1, the log tells when a job was launched, resized and stopped. The records of ended jobs tell what they
were; without them (`lived_from_rows`) the experience itself does. Rigid jobs are left out: they hold machines, but
there is nothing to learn from them. What the service has forgotten is missing here too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from trainmaster.engine.ports import JsonObject, LogEntry
from trainmaster.engine.records import Ended
from trainmaster.learn.dl2.demonstrations import Sizes
from trainmaster.learn.dl2.online import finished_specs, history_spec
from trainmaster.learn.sizing.trace import TERMS, SizingSpec, SizingTrace
from trainmaster.model.errors import InputError
from trainmaster.model.job import Demand, JobSpec, Phase
from trainmaster.model.units import MS_PER_S, NEVER_MS

HISTORY = "history"
Given = tuple[int, str, tuple[int, int] | None]
"""When which job was given how many workers and servers; None: nothing."""
COMMANDS = ("launch", "resize", "stop")
"""Kinds of log entries that tell sizes."""


@dataclass(frozen=True)
class Lived:
    """Jobs that a service ran, and the sizes that it gave them in every slot."""

    trace: SizingTrace
    sizes: Sizes
    work: float = 0.0
    """Parts of jobs that were done, in all: the reward of what was decided, as far as the experience goes back."""


def lived(
    ended: Sequence[Ended], log: Sequence[LogEntry], machines: SizingSpec, rows: Sequence[JsonObject] = ()
) -> Lived:
    """The history of a service on these machines (of `machines` only they and the length of a slot count)."""
    types = sorted(
        {place["accelerator"] for entry in log for place in entry.details.get("places", ())}
        | {name for row in rows for name in row["state"]["types"]}
    )
    told = {entry.job_id for entry in log if entry.kind == "launch"}
    told |= {action["job"] for row in rows for action in row["actions"] if action["kind"] == "launch"}
    usable = [end for end in ended if end.spec.id in told]
    first_ms = min((end.spec.submit_ms for end in usable if end.phase == Phase.FINISHED), default=0)
    jobs = [spec for spec in finished_specs(usable, types) if spec.elastic and spec.work_total]
    spec = history_spec(jobs, machines.cluster(), machines.slot_s)
    begins_ms = [told["at_ms"] for row in rows[:1] for told in (row, *row["actions"])]
    before = [entry for entry in log if entry.at_ms < min(begins_ms, default=NEVER_MS)]
    sizes = _sizes(jobs, [*_told_by_log(before), *_told_by_rows(rows)], first_ms, round(spec.slot_s * MS_PER_S))
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
    return Lived(trace, sizes, sum(sum(row["reward"]["work"].values()) for row in rows))


def lived_from_rows(rows: Sequence[JsonObject], machines: SizingSpec) -> Lived:
    """The same from experience alone: of a service whose store is elsewhere."""
    last: dict[str, JobSpec] = {}
    finished: dict[str, Ended] = {}
    for row in rows:
        last |= {spec.id: spec for spec in _specs(row["state"])}
        for job_id, how in row["reward"]["ended"].items():
            spec = last.get(job_id)
            if how == "finished" and spec is not None and spec.work_total:
                at_ms = int(row["at_ms"])
                finished[job_id] = Ended(
                    spec,
                    Phase.FINISHED,
                    at_ms,
                    spec.submit_ms,
                    0.0,
                    (at_ms - spec.submit_ms) / MS_PER_S,
                    spec.work_total,
                    0,
                    1,
                )
    return lived(list(finished.values()), (), machines, rows)


def _specs(state: JsonObject) -> Iterator[JobSpec]:
    """The jobs of a row as far as it describes them: ranges, work, speeds."""
    jobs = state["jobs"]
    names = (
        "id",
        "submit_ms",
        "workers_min",
        "workers_max",
        "servers_min",
        "servers_max",
        "worker_gpu_milli",
        "work_total",
        "speeds",
    )
    for job_id, submit_ms, least, most, servers_min, servers_max, gpu_milli, work, speeds in zip(
        *(jobs[name] for name in names), strict=True
    ):
        yield JobSpec(
            id=job_id,
            submit_ms=submit_ms,
            workers_min=least,
            workers_max=most,
            workers_ref=most,
            servers_min=servers_min,
            servers_max=servers_max,
            servers_ref=servers_max,
            worker=Demand(gpu_milli),
            work_total=work,
            steps_per_s={name: speed for name, speed in zip(state["types"], speeds, strict=True) if speed},
        )


def _told_by_log(log: Sequence[LogEntry]) -> Iterator[Given]:
    for entry in log:
        if entry.job_id is not None:
            places = [] if entry.kind == "stop" else entry.details["places"]
            size = sum(int(at["workers"]) for at in places), sum(int(at["servers"]) for at in places)
            yield entry.at_ms, entry.job_id, size if places else None


def _told_by_rows(rows: Sequence[JsonObject]) -> Iterator[Given]:
    """Every action; and the state of the first row, and of those that do not name all actions."""
    for k, row in enumerate(rows):
        for action in row["actions"]:
            if action["kind"] in COMMANDS:
                size = (action["workers"], action["servers"]) if "workers" in action else None
                yield action["at_ms"], action["job"], size
        if k == 0 or row["actions_left_out"]:
            columns = (row["state"]["jobs"][name] for name in ("id", "workers", "servers"))
            for job_id, workers, servers in zip(*columns, strict=True):
                yield row["at_ms"], job_id, (workers, servers) if workers else None


def _sizes(jobs: Sequence[JobSpec], given: Iterable[Given], first_ms: int, slot_ms: int) -> Sizes:
    """The last size that each job was given by the end of each slot."""
    known = {job.id for job in jobs}
    held: dict[str, tuple[int, int]] = {}
    sizes: dict[int, dict[str, tuple[int, int]]] = {}
    for at_ms, job_id, size in given:
        if job_id not in known:
            continue
        if size is None:
            held.pop(job_id, None)
        else:
            held[job_id] = size
        sizes[max(at_ms - first_ms, 0) // slot_ms] = dict(held)
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
