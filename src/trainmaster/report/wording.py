"""Numbers in words: durations, shares, money, intervals, leads."""

from __future__ import annotations

import math
from collections.abc import Sequence

from trainmaster.report.statistics import Interval
from trainmaster.report.verdicts import Metric, Verdict

MINUTE_S, HOUR_S, DAY_S = 60.0, 3600.0, 86_400.0


def duration(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    for size_s, unit in ((2 * DAY_S, "d"), (2 * HOUR_S, "h"), (2 * MINUTE_S, "min")):
        if abs(seconds) >= size_s:
            return f"{seconds / (size_s / 2):.1f} {unit}"
    return f"{seconds:.1f} s"


def amounts(metric: Metric, values: Sequence[float]) -> list[str]:
    """A column of one metric: durations in one unit, that of the largest, to three digits."""
    if metric.unit != "time":
        return [amount(metric, value) for value in values]
    largest = max(abs(value) for value in values)
    size_s, unit = next(
        ((s, u) for s, u in ((DAY_S, "d"), (HOUR_S, "h"), (MINUTE_S, "min")) if largest >= 2 * s), (1.0, "s")
    )
    return [f"{_three_digits(value / size_s)} {unit}" for value in values]


def _three_digits(value: float) -> str:
    return f"{value:.2f}" if abs(value) < 9.995 else f"{value:.1f}" if abs(value) < 99.95 else f"{value:,.0f}"


def amount(metric: Metric, value: float | None) -> str:
    if value is None:
        return "-"
    if metric.unit == "time":
        return duration(value)
    if metric.unit == "share":
        return f"{value:.1%}"
    if metric.unit == "money":
        return f"$ {value:,.0f}" if abs(value) >= 100 else f"$ {value:,.2f}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.2f}"


def comparison(metric: Metric, interval: Interval | None) -> str:
    """`0.31 [0.25, 0.38]` for ratios, `+12.0 [+8.1, +15.9] points` for differences of shares."""
    if interval is None:
        return "-"
    if metric.by_ratio:
        ends = "" if interval.low is None else f" [{interval.low:.2f}, {interval.high:.2f}]"
        return f"{interval.mean:.2f}{ends}"
    ends = "" if interval.low is None else f" [{interval.low * 100:+.1f}, {(interval.high or 0.0) * 100:+.1f}]"
    return f"{interval.mean * 100:+.1f}{ends}"


def lead(verdict: Verdict) -> str:
    """One sentence: who is best, by how much, and whether that is more than chance."""
    metric, interval = verdict.metric, verdict.lead
    if verdict.next_best is None:
        return f"{verdict.best} is alone"
    if verdict.tied:
        return "all policies are equal"
    if interval is None:
        return f"{verdict.best}, then {verdict.next_best}"
    nothing = 1.0 if metric.by_ratio else 0.0
    if math.isclose(interval.mean, nothing, abs_tol=5e-4):
        return f"{verdict.best} and {verdict.next_best} are level"
    if metric.by_ratio:
        better = (1 - interval.mean) if metric.lower_is_better else (interval.mean - 1)
        ends = [
            None if e is None else ((1 - e) if metric.lower_is_better else (e - 1))
            for e in (interval.low, interval.high)
        ]
        unit, scale = " %", 100.0
    else:
        sign = -1 if metric.lower_is_better else 1
        better = sign * interval.mean
        ends = [None if e is None else sign * e for e in (interval.low, interval.high)]
        unit, scale = " points", 100.0
    known = sorted(e for e in ends if e is not None)
    span = f" [{known[0] * scale:.1f}, {known[1] * scale:.1f}]" if known else ""
    doubt = "" if verdict.clear else " (one seed: no interval)" if not known else " (could be chance)"
    return f"{verdict.best} by {better * scale:.1f}{unit}{span} over {verdict.next_best}{doubt}"
