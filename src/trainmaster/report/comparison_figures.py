"""Figures of one scenario of a comparison: distributions, sizes, fairness, leads, bars, loads."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import (
    FixedLocator,
    FuncFormatter,
    LogLocator,
    NullFormatter,
    NullLocator,
    PercentFormatter,
)

from trainmaster.report.style import figure, legend_outside, look
from trainmaster.report.verdicts import Verdict

_TIMES = (
    (1, "1 s"), (10, "10 s"), (60, "1 min"), (600, "10 min"), (3600, "1 h"), (36_000, "10 h"),
    (86_400, "1 d"), (864_000, "10 d"), (8_640_000, "100 d"),
)  # fmt: skip
SIZES = (
    (0.0, 1.0, "1 or less"),
    (1.0, 3.99, "2-3"),
    (3.99, 7.99, "4-7"),
    (7.99, 15.99, "8-15"),
    (15.99, np.inf, "16+"),
)
_RATIOS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 2, 3, 5, 10, 20, 50, 100)
_POINTS = 300


@dataclass(frozen=True)
class Picture:
    """A finished figure, self-contained, with what to say about it."""

    name: str
    title: str
    caption: str
    data: bytes
    kind: str = "svg"


def rendered(made: Figure, kind: str = "svg") -> bytes:
    """The same bytes for the same figure: no time stamps, salted ids."""
    buffer = io.BytesIO()
    made.savefig(buffer, format=kind, metadata={"Date": None} if kind == "svg" else {"Software": None})
    return buffer.getvalue()


def policies_of(rows: pl.DataFrame) -> list[str]:
    return rows["policy"].unique(maintain_order=True).to_list()


def completion_times(jobs: pl.DataFrame, policies: Sequence[str]) -> Picture:
    with figure("Completion time", "from submission to the end", "share of finished jobs", size=(8.4, 3.9)) as (
        made,
        axes,
    ):
        _distributions(axes, jobs.filter(pl.col("status") == "finished"), "jct_s", policies)
        _time_ticks(axes)
        legend_outside(axes)
        caption = "Share of jobs that finish within a time, all seeds together. A curve further left is better."
        return Picture("jct", "Completion time", caption, rendered(made))


def fairness(jobs: pl.DataFrame, policies: Sequence[str]) -> Picture:
    done = jobs.filter(pl.col("finish_time_ratio").is_not_null())
    title, label = "Fairness", "finish-time ratio (below 1: better than a fair share)"
    with figure(title, label, "share of jobs", size=(8.4, 3.9)) as (made, axes):
        _distributions(axes, done, "finish_time_ratio", policies)
        axes.axvline(1.0, color="#555555", linewidth=0.9, zorder=1)
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        legend_outside(axes)
        caption = (
            "Completion time over the time the job would take alone on an equal share of the"
            " cluster (the number of jobs"
            " present during its life sets the share; Themis, NSDI'20). The line at 1 is a fair share."
        )
        return Picture("fairness", title, caption, rendered(made))


def _distributions(axes: Axes, done: pl.DataFrame, column: str, policies: Sequence[str]) -> None:
    for index, policy in enumerate(policies):
        values = np.sort(done.filter(pl.col("policy") == policy)[column].to_numpy())
        values = np.maximum(values, 1e-3)
        if len(values):
            shown = np.unique(np.linspace(0, len(values) - 1, _POINTS).astype(int))
            axes.plot(values[shown], (shown + 1) / len(values), label=policy, **look(index).line())
    axes.set_xscale("log")
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))


def _time_ticks(axes: Axes) -> None:
    low, high = axes.get_xlim()
    shown = [(t, name) for t, name in _TIMES if low <= t <= high]
    axes.xaxis.set_major_locator(FixedLocator([t for t, _ in shown]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: dict(shown).get(round(x), "")))
    axes.xaxis.set_minor_locator(NullLocator())


def slowdown_by_size(jobs: pl.DataFrame, policies: Sequence[str]) -> Picture | None:
    done = jobs.filter((pl.col("status") == "finished") & (pl.col("ideal_s") > 0)).with_columns(
        slowdown=pl.col("jct_s") / pl.col("ideal_s")
    )
    classes = [(label, done.filter((pl.col("gpus") > low) & (pl.col("gpus") <= high))) for low, high, label in SIZES]
    classes = [(label, rows) for label, rows in classes if rows.height]
    if not classes:
        return None
    with figure("Slowdown by job size", "GPUs of the job", "completion time / alone", size=(8.4, 4.2)) as (made, axes):
        step = 0.8 / len(policies)
        for index, policy in enumerate(policies):
            style = look(index)
            for place, (_, rows) in enumerate(classes):
                own = rows.filter(pl.col("policy") == policy)["slowdown"].to_numpy()
                if not len(own):
                    continue
                low, middle, high = np.maximum(np.percentile(own, [10, 50, 90]), 1e-3)
                x = place - 0.4 + (index + 0.5) * step
                axes.plot([x, x], [low, high], color=style.colour, linewidth=1.4, linestyle="-")
                axes.plot(
                    [x],
                    [middle],
                    style.marker,
                    color=style.colour,
                    markersize=6,
                    markeredgecolor="white",
                    markeredgewidth=0.6,
                    label=policy if place == 0 else None,
                )
        axes.set_yscale("log")
        axes.set_xlim(-0.5, len(classes) - 0.5)
        for edge in range(1, len(classes)):
            axes.axvline(edge - 0.5, color="#bbbbbb", linewidth=0.8)
        per_policy = [rows.height // max(len(policies), 1) for _, rows in classes]
        axes.set_xticks(
            range(len(classes)),
            [f"{label}\n{n:,} jobs" for (label, _), n in zip(classes, per_policy, strict=True)],
        )
        axes.grid(axis="x", visible=False)
        _plain_log(axes)
        legend_outside(axes)
        caption = (
            "Median (marker) and the range from the 10th to the 90th percentile (line), all"
            " seeds together. 1: no waiting."
        )
        return Picture("slowdown", "Slowdown by job size", caption, rendered(made))


def _plain_log(axes: Axes) -> None:
    low, high = axes.get_ylim()
    if high / low < 50:  # about a decade: label 1, 2, 5
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_minor_locator(NullLocator())


def leads(rows: pl.DataFrame, verdict: Verdict) -> Picture | None:
    """Ratio of the mean completion time to that of the first policy: the interval, and each seed."""
    first, *others = verdict.standings
    if not others:
        return None
    column = verdict.metric.column
    own = {
        s.policy: rows.filter(pl.col("policy") == s.policy).sort("seed")[column].to_numpy() for s in verdict.standings
    }
    title = f"{verdict.metric.title.capitalize()}, as a ratio to {first.policy}"
    label = f"times that of {first.policy} (left of 1: shorter)"
    with figure(title, label, "", size=(8.4, 1.3 + 0.38 * len(others))) as (made, axes):
        for place, standing in enumerate(others):
            interval = standing.against_first
            if interval is None:
                continue
            if interval.low is not None and interval.high is not None:
                axes.plot([interval.low, interval.high], [place, place], color=look(0).colour, linewidth=2.2)
            axes.plot(
                own[standing.policy] / own[first.policy],
                np.full(len(own[first.policy]), place),
                "o",
                markerfacecolor="none",
                markeredgecolor="#777777",
                markersize=5,
            )
            axes.plot([interval.mean], [place], "D", color="black", markersize=6)
        axes.axvline(1.0, color="#555555", linewidth=0.9)
        axes.set_xscale("log")
        axes.set_yticks(range(len(others)), [s.policy for s in others])
        axes.set_ylim(len(others) - 0.5, -0.5)
        low, high = axes.get_xlim()
        low, high = max(low, 0.01), min(high, 100.0)
        axes.set_xlim(low, high)
        ticks = [t for t in _RATIOS if low <= t <= high]
        axes.xaxis.set_major_locator(FixedLocator(_apart(ticks, low, high)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        axes.xaxis.set_minor_locator(NullLocator())
        caption = (
            "Diamond: geometric mean over seeds; bar: 95 % interval, paired by seed; rings: each"
            " seed. A bar that crosses 1 could be chance."
        )
        return Picture("lead", title, caption, rendered(made))


def _apart(ticks: Sequence[float], low: float, high: float) -> list[float]:
    """Drop ticks whose labels would touch; 1 always stays."""
    kept = [1.0] if low <= 1 <= high else []
    least = np.log(high / low) / 14
    for tick in ticks:
        if all(abs(np.log(tick / other)) >= least for other in kept):
            kept.append(tick)
    return sorted(kept)


def bars(verdict: Verdict, name: str, axis: str, caption: str) -> Picture:
    """A bar per policy with the interval over seeds."""
    title = verdict.metric.title.capitalize()
    policies = [s.policy for s in verdict.standings]
    with figure(title, axis, "", size=(8.4, 1.3 + 0.38 * len(policies))) as (made, axes):
        for place, standing in enumerate(verdict.standings):
            axes.barh(place, standing.mean.mean, 0.62, facecolor="#9fc5e0", edgecolor="#2b4a60", linewidth=0.6)
            interval = standing.mean
            if interval.low is not None and interval.high is not None:
                axes.plot([interval.low, interval.high], [place, place], color="black", linewidth=1.4)
        axes.set_yticks(range(len(policies)), policies)
        axes.set_ylim(len(policies) - 0.5, -0.5)
        if verdict.metric.unit == "share":
            axes.set_xlim(0, 1)
            axes.xaxis.set_major_formatter(PercentFormatter(1.0))
        else:
            axes.set_xlim(left=0)
            axes.xaxis.set_major_formatter(
                FuncFormatter(lambda x, _: f"{x:,.0f}" if abs(x) >= 10 or x == 0 else f"{x:g}")
            )
        axes.grid(axis="y", visible=False)
        return Picture(name, title, caption, rendered(made))


def by_load(results: pl.DataFrame, policies: Sequence[str], title: str) -> Picture:
    """Mean completion time against the density of arrivals."""
    loads = sorted(results["load"].unique().to_list())
    with figure(title, "density of arrivals (1: as in the trace)", "mean JCT (h)", size=(8.4, 4.0)) as (made, axes):
        for index, policy in enumerate(policies):
            style = look(index)
            own = results.filter(pl.col("policy") == policy).group_by("load").agg(pl.col("average_jct_s").log().mean())
            means = (own.sort("load")["average_jct_s"].exp() / 3600).to_list()
            axes.plot(loads, means, label=policy, marker=style.marker, markersize=5, **style.line())
        axes.set_yscale("log")
        axes.set_xticks(loads, [f"{load:g}" for load in loads])
        _plain_log(axes)
        legend_outside(axes)
        return Picture("loads", title, "Geometric means over seeds.", rendered(made))
