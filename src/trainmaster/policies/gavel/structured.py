"""Solve a program without pairs by the structured interior point: merge equal jobs, scale, solve, certify."""

from __future__ import annotations

import numpy as np

from trainmaster.policies.gavel.interior import interior_point, start_point
from trainmaster.policies.gavel.problem import FloatArray, IntArray
from trainmaster.policies.gavel.program import Program, Solution, certify

ITERATIONS_MAX = 80
TOLERANCE = 1e-10


def merge_equal_jobs(program: Program) -> tuple[IntArray, IntArray]:
    """(first row of each class, class of each row). Equal jobs may share alike without loss: the program
    is convex."""
    n = len(program.gpus)
    parts = [np.where(program.usable, program.throughput, 0.0), program.gpus[:, None], program.rate[:, None]]
    parts.append(program.need[:, None])
    if program.gain is not None:
        parts.append(program.gain)
    rows = np.hstack(parts)
    # One pass over a random projection finds candidates; rows that agree there are compared in full.
    key = rows @ np.random.Generator(np.random.PCG64(20201104)).random(rows.shape[1])
    order = np.argsort(key, kind="stable")
    ordered = rows[order]
    fresh = np.ones(n, dtype=bool)
    fresh[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    class_of = np.empty(n, dtype=np.int64)
    class_of[order] = np.cumsum(fresh) - 1
    return order[fresh], class_of


def solve_structured(program: Program) -> Solution:
    """Solve `program` (no pairs). The result is certified; the caller looks at `gap` and `shortfall`."""
    assert program.pairs is None
    first, class_of = merge_equal_jobs(program)
    size = np.bincount(class_of, minlength=len(first)).astype(np.float64)
    mask = program.usable[first]
    T = np.where(mask, program.throughput[first], 0.0)
    row_scale = 1.0 / np.maximum(T.max(axis=1, initial=0.0), 1e-300)
    T = T * row_scale[:, None]
    a = program.rate[first] * row_scale
    b = program.need[first] * row_scale
    b = np.where((a > 0.0) | (b > 0.0), b, -1.0)  # a row that asks for nothing stays slack
    g = program.gpus[first] * size
    x = start_point(mask, g, program.counts)
    thr = (T * x).sum(axis=1)
    level = program.has_level
    rated = a > 0.0
    t_scale = 1.0
    gain_scale = 1.0
    gain = np.zeros_like(T)
    t = 0.0
    if level:
        spread = (thr[rated] - b[rated]) / a[rated]
        reach = (1.0 - b[rated]) / a[rated]  # no job gets further than this, alone
        t_scale = max(float(np.min(np.abs(spread))), 1e-3 * float(np.min(np.abs(reach))), 1e-300)
        t = float(np.min(spread)) / t_scale - 0.1
        a = a * t_scale
    else:
        assert program.gain is not None
        gain = np.where(mask, program.gain[first], 0.0) * size[:, None]
        gain_scale = max(float(np.abs(gain).max(initial=0.0)), 1e-300)
        gain = np.ascontiguousarray(gain / gain_scale)
    shares, _, y, _, price, _, _, iterations, _, _ = interior_point(
        np.ascontiguousarray(T),
        np.ascontiguousarray(mask),
        g,
        a,
        b,
        np.ones(len(first)),
        program.counts,
        gain,
        1.0 if level else 0.0,
        level,
        x,
        t,
        ITERATIONS_MAX,
        TOLERANCE,
    )
    # y of a class is the sum over its members; undo the scales
    multiplier = (y * row_scale / size)[class_of]
    scale = t_scale if level else gain_scale
    return certify(
        program,
        shares[class_of],
        None,
        multiplier * scale,
        _as_array(price) * scale,
        int(iterations),
        "structured",
    )


def _as_array(values: FloatArray) -> FloatArray:
    return np.asarray(values, dtype=np.float64)
