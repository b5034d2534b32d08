"""What backends report about incarnations. Every report passes the fence first."""

from __future__ import annotations

from trainmaster.engine import nodes, transitions
from trainmaster.engine.lifecycle import T
from trainmaster.engine.state import State
from trainmaster.model import event as ev
from trainmaster.model.job import P


def started(state: State, event: ev.Started) -> None:
    slot = transitions.current(state, event.job_id, event.generation)
    if slot is None or int(state.columns.ints["phase"][slot]) != P.LAUNCHING:
        return
    state.outstanding.pop(slot, None)
    ints, floats = state.columns.ints, state.columns.floats
    floats["work_done"][slot] = floats["work_saved"][slot] = _or_books(state, slot, event.work_done)
    ints["productive_ms"][slot] = event.productive_ms
    ints["as_of_ms"][slot] = state.now_ms
    if ints["first_start_ms"][slot] < 0:
        ints["first_start_ms"][slot] = state.now_ms
    transitions.move(state, slot, T.STARTED)
    _set_rate(state, slot)


def _or_books(state: State, slot: int, work: float) -> float:
    """What was measured; where nothing was (NaN), what is known to be saved."""
    return work if work == work else float(state.columns.floats["work_saved"][slot])


def _set_rate(state: State, slot: int) -> None:
    allocation = state.columns.allocations[slot]
    if allocation is not None:
        state.columns.floats["rate"][slot] = state.columns.rate_of(
            slot, allocation.accelerator, allocation.workers, allocation.servers, allocation.spread
        )


def start_failed(state: State, event: ev.StartFailed) -> None:
    slot = transitions.current(state, event.job_id, event.generation)
    if slot is None:
        return
    saved = float(state.columns.floats["work_saved"][slot])
    if event.node is None:
        transitions.failed(state, slot, saved)
    else:  # not its fault: it does not count as a failure, but the same place is not tried at once
        transitions.retry_later(state, slot, saved, state.settings.backoff_ms)


def resized(state: State, event: ev.Resized) -> None:
    slot = transitions.current(state, event.job_id, event.generation)
    if slot is None or int(state.columns.ints["phase"][slot]) != P.RESIZING:
        return
    command = state.outstanding.get(slot)
    if command is None or command[0].seq != event.seq:
        return
    del state.outstanding[slot]
    columns = state.columns
    spec = columns.spec(slot)
    allocation = columns.allocations[slot]
    assert allocation is not None
    state.physical.give(state.held[slot], spec.worker, spec.server)
    state.physical.take(allocation, spec.worker, spec.server)
    state.held[slot] = allocation
    transitions.move(state, slot, T.RESIZED)
    if event.work_done == event.work_done:
        columns.floats["work_done"][slot] = event.work_done
    columns.ints["productive_ms"][slot] = event.productive_ms
    _set_rate(state, slot)
    state.changed = True


def progressed(state: State, event: ev.Progressed) -> None:
    slot = transitions.current(state, event.job_id, event.generation)
    if slot is None:
        return
    columns = state.columns
    columns.settle(slot, state.now_ms)
    columns.floats["work_done"][slot] = event.work_done
    if event.rate is not None and event.rate >= 0:
        columns.floats["rate"][slot] = event.rate
        _learn_speed(state, slot, event.rate)
    if event.loss is not None:
        columns.record_loss(slot, event.work_done, event.loss)


def _learn_speed(state: State, slot: int, steps_per_s: float) -> None:
    """Tell an estimator that learns what a job measured, and believe what it now says of the job's types."""
    observe = getattr(state.estimator, "observe", None)
    columns = state.columns
    allocation, spec = columns.allocations[slot], columns.spec(slot)
    if observe is None or allocation is None or allocation.accelerator < 0:
        return
    if allocation.share_milli < spec.worker.share_milli:
        return  # and for a job that has its devices to itself
    if allocation.workers != spec.workers_ref or allocation.servers != spec.servers_ref:
        # Estimates are for the reference size; the job's own curve restates what another size measured.
        here = float(spec.scaling.speed(allocation.workers, allocation.servers))
        steps_per_s *= float(spec.scaling.speed(spec.workers_ref, spec.servers_ref)) / here if here > 0 else 1.0
    types = state.cluster.types
    observe(spec.id, types[allocation.accelerator], steps_per_s, spread=allocation.spread)
    columns.throughput[slot], columns.throughput_spread[slot] = state.estimator.profile(spec, types)


def exited(state: State, event: ev.Exited) -> None:
    slot = transitions.current(state, event.job_id, event.generation)
    if slot is None:
        return
    saved = _or_books(state, slot, event.work_saved)
    if event.code != 0:
        transitions.failed(state, slot, saved)
        return
    columns = state.columns
    columns.settle(slot, state.now_ms)
    total = columns.floats["work_total"][slot]
    columns.floats["work_done"][slot] = total if total == total else saved
    transitions.release_held(state, slot)
    transitions.move(state, slot, T.FINISH)


def stopped(state: State, event: ev.Stopped) -> None:
    """It ended wherever it could be asked; where not, the node's loss and its lease decide."""
    slot = transitions.current(state, event.job_id, event.generation)
    if slot is None:
        return
    saved = state.columns.floats["work_saved"][slot] = _or_books(state, slot, event.work_saved)
    if not event.silent:
        transitions.gone(state, slot, saved)
        return
    nodes.ended_there(state, slot, [p.node for p in state.held[slot].parts if p.node not in event.silent])
