"""What an estimator that learns says of the jobs' speeds, brought into the columns that policies read.

A measurement is told at the size that the job had; what it changes for jobs alike reaches them at once."""

from __future__ import annotations

from trainmaster.engine.state import State
from trainmaster.model import event as ev
from trainmaster.model.job import PhaseCode
from trainmaster.model.scaling import Measurement, News
from trainmaster.model.units import MS_PER_S


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
    """The estimator has learned from elsewhere: what it says of all jobs is asked anew."""
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
    beside = _beside(state, job_index) if allocation.share_milli < spec.worker.share_milli else []
    if len(beside) > 1:
        return None
    seconds = max(event.at_ms - int(columns.ints["productive_ms"][job_index]), 0) / MS_PER_S
    return Measurement(
        spec,
        state.cluster.types[allocation.accelerator],
        allocation.workers,
        allocation.servers,
        allocation.spread,
        event.rate,
        event.generation,
        columns.spec(beside[0]) if beside else None,
        seconds,
    )


def _beside(state: State, job_index: int) -> list[int]:
    """Jobs on its devices."""
    own = {(part.node, device) for part in state.holding(job_index).parts for device in part.devices}
    return [
        other
        for other, held in state.held.items()
        if other != job_index and any((part.node, device) in own for part in held.parts for device in part.devices)
    ]
