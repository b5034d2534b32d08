"""What an estimator that learns says of the jobs' speeds, brought into the columns that policies read.

A measurement is told at the size that the job had, with the job that shared its devices; what it changes for jobs alike
reaches them at once. Also answers who is beside whom, and what that costs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from trainmaster.core.arrays import Ints
from trainmaster.engine.records import PairVerdict
from trainmaster.engine.state import State
from trainmaster.model import event as ev
from trainmaster.model.allocation import Allocation
from trainmaster.model.job import JobSpec, PhaseCode
from trainmaster.model.policy import traits_of
from trainmaster.model.scaling import Measurement, News
from trainmaster.model.units import MS_PER_S

Observe = Callable[[Measurement], News]


class SharedWith(NamedTuple):
    """Another job on the devices of a job. `kept`: the part of its speed that the job keeps beside it, with the bounds
    that hold 8 times of 10; None: nothing is known. `measured`: the pair itself has shown it."""

    job_id: str
    kept: float | None = None
    low: float | None = None
    high: float | None = None
    measured: bool = False


def believe(state: State, job_index: int) -> None:
    """Ask the estimator anew about a job, if it has more to say than two figures."""
    table = getattr(state.estimator, "table", None)
    if table is not None:
        state.columns.believe(job_index, table(state.columns.spec(job_index), state.cluster))


def believe_all(state: State) -> None:
    """The same for all jobs, after the estimator has learned from elsewhere."""
    for job_index in state.columns.rows.tolist():
        believe(state, job_index)


def told(state: State, _: ev.SpeedsLearned) -> None:
    believe_all(state)
    state.changed = True


def believe_restored(state: State) -> None:
    """A job that has run stays as fast as its image says, unless the estimator still knows what it measured."""
    has_measured = getattr(state.estimator, "has_measured", None)
    for job_index in state.columns.rows.tolist():
        spec = state.columns.spec(job_index)
        if has_measured is None or not state.columns.ints["attempts"][job_index] or has_measured(spec):
            believe(state, job_index)


def measured(state: State, job_index: int, event: ev.Progressed) -> None:
    """Tell an estimator that learns what a job measured, and believe what it now says."""
    observe = getattr(state.estimator, "observe", None)
    measurement = None if observe is None else _measurement(state, job_index, event)
    if observe is None or measurement is None:
        return
    settle(state, observe)
    if measurement.beside is not None:
        state.shared_reports[job_index] = state.now_ms, measurement
        return
    columns, estimator = state.columns, state.estimator
    news = observe(measurement)
    if news == News.NONE:
        return
    group = getattr(estimator, "group", None)
    if group is None:
        speeds = estimator.profile(measurement.spec, state.cluster.types)
        columns.throughput[job_index], columns.throughput_spread[job_index] = speeds
        return
    believe(state, job_index)
    if news == News.OF_JOBS_ALIKE:
        state.changed = True
        alike = group(measurement.spec)
        for other in columns.rows.tolist():
            if other != job_index and group(columns.spec(other)) == alike:
                believe(state, other)


def _measurement(state: State, job_index: int, event: ev.Progressed) -> Measurement | None:
    """None while it changes its size, and where it shares devices with more than one other job."""
    columns = state.columns
    allocation, spec = columns.allocations[job_index], columns.spec(job_index)
    running = int(columns.ints["phase"][job_index]) == PhaseCode.RUNNING
    if not running or event.rate is None or allocation is None or allocation.accelerator < 0:
        return None
    shares = allocation.share_milli < spec.worker.share_milli
    others = beside(state, job_index, state.holding(job_index)) if shares else []
    if len(others) > 1:
        return None
    seconds = max(event.at_ms - int(columns.ints["productive_ms"][job_index]), 0) / MS_PER_S
    return Measurement(
        spec, state.cluster.types[allocation.accelerator], allocation.workers, allocation.servers, allocation.spread,
        event.rate, event.generation, columns.spec(others[0]) if others else None, seconds,
    )  # fmt: skip


# -- jobs that share devices ---------------------------------------------------------------------------


def beside(state: State, job_index: int, held: Allocation) -> list[int]:
    """Other jobs on these devices."""
    own = {(part.node, device) for part in held.parts for device in part.devices}
    return [
        other
        for other, theirs in state.held.items()
        if other != job_index and any((part.node, device) in own for part in theirs.parts for device in part.devices)
    ]


def settle(state: State, observe: Observe) -> None:
    """Let the estimator observe what jobs said of their speeds beside others, a moment later: what is said when the
    other one is gone already, and nobody has heard of that yet, would be believed of the pair."""
    for job_index, (at_ms, measurement) in sorted(state.shared_reports.items()):
        if at_ms >= state.now_ms:
            continue
        del state.shared_reports[job_index]
        allocation = state.columns.allocations[job_index]
        if allocation is None or int(state.columns.ints["generation"][job_index]) != measurement.generation:
            continue
        others = [state.columns.spec(other) for other in beside(state, job_index, allocation)]
        if others == [measurement.beside]:
            _observed(state, measurement, observe)


def _observed(state: State, measurement: Measurement, observe: Observe) -> None:
    """When two jobs have thereby shown what they cost each other, that is news."""
    judge: Any = getattr(state.estimator, "pair_belief", None)
    other, spec, gpu_type = measurement.beside, measurement.spec, measurement.accelerator
    if other is None or judge is None:
        observe(measurement)
        return
    before = judge(spec, other, gpu_type).measured
    observe(measurement)
    found = judge(spec, other, gpu_type)
    if found.measured is not None and found.measured != before:
        kept, other_kept = found.kept
        state.pair_verdicts.append(PairVerdict(spec.id, other.id, gpu_type, kept, other_kept, found.measured))


def shared_with(state: State, job_index: int) -> list[SharedWith]:
    """With whom a running job shares its devices, for those who ask."""
    allocation, spec = state.columns.allocations[job_index], state.columns.spec(job_index)
    if allocation is None or allocation.accelerator < 0 or allocation.share_milli >= spec.worker.share_milli:
        return []
    others = [state.columns.spec(k) for k in beside(state, job_index, allocation)]
    return [_shared(state, spec, other, state.cluster.types[allocation.accelerator]) for other in others]


def _shared(state: State, spec: JobSpec, other: JobSpec, gpu_type: str) -> SharedWith:
    judge: Any = getattr(state.estimator, "pair_belief", None)
    found = None if judge is None else judge(spec, other, gpu_type)
    if found is None or not found.kept[0]:
        return SharedWith(other.id)
    return SharedWith(other.id, found.kept[0], found.low[0], found.high[0], found.measured is not None)


def why_alone(state: State, job_index: int, rows: Ints) -> str:
    """Why a job that waits under a policy that shares devices was not tried beside any that runs; empty where nothing
    speaks against it, or nothing can be said."""
    judge: Any = getattr(state.estimator, "pair_belief", None)
    if judge is None or not traits_of(state.policy).shares_devices:
        return ""
    spec, phases, found = state.columns.spec(job_index), state.columns.ints["phase"], []
    for other in rows.tolist():
        allocation = state.columns.allocations[other]
        if phases[other] != PhaseCode.RUNNING or allocation is None or allocation.accelerator < 0:
            continue
        belief = judge(spec, state.columns.spec(other), state.cluster.types[allocation.accelerator])
        if belief.offered:
            return ""
        found.append(belief.text(spec.id, state.columns.spec(other).id))
    return found[0] if found else ""
