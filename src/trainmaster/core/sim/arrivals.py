"""Jobs to come, as columns: what a job that arrives has in common with all others, and what is its own."""

from __future__ import annotations

import numpy as np

from trainmaster.core.engine.engine_core import EngineCore
from trainmaster.core.int_list import Bools, Floats, Ints
from trainmaster.core.schema import FLOAT_COLUMNS, INT_COLUMNS, NEW_JOB
from trainmaster.core.state.job_arrays import take_index

_NOW = np.array([INT_COLUMNS.index(name) for name in ("as_of_ms", "productive_ms", "waiting_since_ms")], np.int64)


class Arrivals:
    """`ints[v, k]` is the value of job k in column `int_columns[v]`, the other columns are as in `int_row`; the same
    for floats. Jobs are numbered in order of submission; `next` is the first that has not come yet."""

    def __init__(
        self,
        submit_ms: Ints,
        ints: dict[str, Ints],
        floats: dict[str, Floats],
        speed: Floats,
        speed_spread: Floats,
        allowed: Bools,
    ) -> None:
        self.n, self.next = len(submit_ms), 0
        self.submit_ms = submit_ms
        ints = ints | {"submit_ms": submit_ms}
        self.int_row = np.array([NEW_JOB.get(name, 0) for name in INT_COLUMNS], np.int64)
        self.float_row = np.zeros(len(FLOAT_COLUMNS))
        varied = self._constants(ints, INT_COLUMNS, self.int_row)
        self.int_columns = np.array([INT_COLUMNS.index(name) for name in varied], np.int64)
        self.ints = _stacked([ints[name] for name in varied], np.int64, self.n)
        varied = self._constants(floats, FLOAT_COLUMNS, self.float_row)
        self.float_columns = np.array([FLOAT_COLUMNS.index(name) for name in varied], np.int64)
        self.floats = _stacked([floats[name] for name in varied], np.float64, self.n)
        self.speed, self.speed_spread, self.allowed = speed, speed_spread, allowed.view(np.uint8)
        self.now_columns = _NOW

    def _constants(self, columns: dict, order: tuple[str, ...], row: np.ndarray) -> list[str]:
        """Write what is the same for all jobs into `row`; returns the names of the other columns."""
        varied = []
        for name, values in columns.items():
            first = values[0] if len(values) else 0
            if (values == first).all():
                row[order.index(name)] = first
            else:
                varied.append(name)
        return varied


def _stacked(columns: list[np.ndarray], dtype: type, n: int) -> np.ndarray:
    return np.ascontiguousarray(np.stack(columns), dtype) if columns else np.zeros((0, n), dtype)


def submit(e: EngineCore, arrivals: Arrivals) -> int:
    """Enter the next job to come; returns its index."""
    jobs, k = e.columns, arrivals.next
    if jobs.unused.n == 0:
        jobs.grow()
    arrival = jobs.n_arrivals
    i = take_index(jobs)
    place = jobs.place[i]
    for c in range(len(arrivals.int_row)):
        jobs.int_rows[c, i] = arrivals.int_row[c]
    for c in range(len(arrivals.int_columns)):
        jobs.int_rows[arrivals.int_columns[c], i] = arrivals.ints[c, k]
    for c in range(len(arrivals.now_columns)):
        jobs.int_rows[arrivals.now_columns[c], i] = e.now_ms
    jobs.arrival[i], jobs.number[i], jobs.place[i] = arrival, k, place
    for c in range(len(arrivals.float_row)):
        jobs.float_rows[c, i] = arrivals.float_row[c]
    for c in range(len(arrivals.float_columns)):
        jobs.float_rows[arrivals.float_columns[c], i] = arrivals.floats[c, k]
    for gpu_type in range(jobs.n_types):
        jobs.speed[i, gpu_type] = arrivals.speed[k, gpu_type]
        jobs.speed_spread[i, gpu_type] = arrivals.speed_spread[k, gpu_type]
        jobs.may_use[i, gpu_type] = arrivals.allowed[k, gpu_type]
    if jobs.memo:
        for column in jobs.memo.values():
            column[i] = 0.0
    arrivals.next = k + 1
    e.n_waiting += 1
    e.changed = True
    return i
