"""A second engine in the same state as another one: futures begin with it, and the first one stays as it is."""

from __future__ import annotations

import numpy as np

from trainmaster.core.int_list import IntList
from trainmaster.engine.engine import Engine
from trainmaster.model.job_table import JobColumns

_VALUES = (
    "now_ms", "seq", "changed", "gate_changed", "has_quotas", "wake_at_ms", "next_resend_ms", "next_backoff_ms",
    "decisions", "round_begun_ms", "n_waiting", "memo_values", "node_sets", "plans_refused", "queue_reasons",
)  # fmt: skip
"""Numbers, and objects that are replaced, never changed."""
_BOOKS = (
    "details", "rejections", "known", "ended_as", "gated", "no_room", "caps", "entity_weights", "entity_policies",
    "quotas", "used", "foreign_usage", "short", "memo_columns", "halted", "notices", "saves_at_stop",
)  # fmt: skip
_BOOKS_OF_BOOKS = ("doubts", "ended_on", "waits_for")


def fork(engine: Engine, n_jobs: int) -> Engine:
    """The copy, for a run of so many jobs: the active ones are the last of them, in arrival order."""
    copy = Engine(engine.cluster, engine.policy, engine.estimator, engine.settings)
    copy.up[:] = engine.up
    copy.planned, copy.physical = engine.planned.copy(), engine.physical.copy()
    for name in _VALUES:
        setattr(copy, name, getattr(engine, name))
    for name in _BOOKS:
        setattr(copy, name, getattr(engine, name).copy())
    for name in _BOOKS_OF_BOOKS:
        setattr(copy, name, {key: book.copy() for key, book in getattr(engine, name).items()})
    copy.reserved = _copied(engine.reserved)
    _copy_columns(engine.columns, copy.columns)
    columns = copy.columns
    columns.ints["number"][columns.rows] = np.arange(n_jobs - columns.n_jobs, n_jobs)
    return copy


def _copied(values: IntList) -> IntList:
    copy = IntList(0)
    copy.values, copy.n = np.asarray(values.values).copy(), values.n
    return copy


def _copy_columns(columns: JobColumns, copy: JobColumns) -> None:
    copy.resize(columns.capacity)
    copy.int_block[:], copy.float_block[:] = columns.int_block, columns.float_block
    copy.throughput[:], copy.throughput_spread[:] = columns.throughput, columns.throughput_spread
    copy.allowed[:] = columns.allowed
    copy.width, copy.version = columns.width, columns.version
    copy.n_jobs, copy.n_arrivals = columns.n_jobs, columns.n_arrivals
    for name in ("allocation", "physical", "order", "unused"):
        setattr(copy, name, _copied(getattr(columns, name)))
    copy.memo = {name: values.copy() for name, values in columns.memo.items()}
    copy.losses = {job_index: list(points) for job_index, points in columns.losses.items()}
    for name in (
        "specs",
        "job_index_of",
        "curves",
        "entities",
        "node_set_names",
        "_curve_index",
        "_entity_index",
        "beliefs",
        "_own_curve",
    ):
        setattr(copy, name, getattr(columns, name).copy())
