"""Who wins by how much: each policy over the seeds, against the first policy named and the next best."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from trainmaster.report.statistics import Interval, geometric_interval, mean_interval, paired_difference, paired_ratio


@dataclass(frozen=True)
class Metric:
    """A column of the results, how it is called, and what is good."""

    column: str
    title: str
    short: str
    unit: str
    lower_is_better: bool
    by_ratio: bool = True
    """Compared by ratio; else (fractions) by difference."""


METRICS = (
    Metric("average_jct_s", "mean completion time", "mean JCT", "time", True),
    Metric("median_jct_s", "median completion time", "median JCT", "time", True),
    Metric("p99_jct_s", "p99 completion time", "p99 JCT", "time", True),
    Metric("average_wait_s", "mean wait", "mean wait", "time", True),
    Metric("makespan_s", "makespan", "make-span", "time", True),
    Metric("utilization", "utilisation", "used", "share", False, by_ratio=False),
    Metric("deadline_met_fraction", "deadlines met", "met", "share", False, by_ratio=False),
    Metric("total_utility", "total utility", "utility", "number", False),
    Metric("total_cost", "cost", "cost", "money", True),
    Metric("fairness_mean", "finish-time ratio, mean", "ratio", "number", True),
    Metric("fairness_p99", "finish-time ratio, p99", "p99 ratio", "number", True),
)
SCENARIO = ("trace", "cluster", "load")


@dataclass(frozen=True)
class Standing:
    """One policy in one metric: its average over seeds, and how it compares with the first policy named."""

    policy: str
    mean: Interval
    against_first: Interval | None


@dataclass(frozen=True)
class Verdict:
    """One metric: the standings in the order of the policies, the best, and its lead over the next."""

    metric: Metric
    standings: tuple[Standing, ...]
    best: str
    next_best: str | None
    lead: Interval | None
    """Best against next best, paired by seed: a ratio, or a difference."""

    @property
    def clear(self) -> bool:
        """Whether the interval of the lead leaves out "no difference"."""
        return self.lead is not None and self.lead.excludes(1.0 if self.metric.by_ratio else 0.0)

    @property
    def tied(self) -> bool:
        means = [s.mean.mean for s in self.standings]
        return math.isclose(min(means), max(means), rel_tol=1e-12, abs_tol=1e-12)


@dataclass(frozen=True)
class Scenario:
    """One trace on one cluster at one load."""

    trace: str
    cluster: str
    load: float

    def rows(self, table: pl.DataFrame) -> pl.DataFrame:
        return table.filter(
            (pl.col("trace") == self.trace) & (pl.col("cluster") == self.cluster) & (pl.col("load") == self.load)
        )

    @property
    def title(self) -> str:
        density = "" if self.load == 1 else f", arrivals x {self.load:g}"
        return f"{self.trace} on {self.cluster}{density}"


def scenarios(results: pl.DataFrame) -> Iterator[Scenario]:
    for row in results.select(SCENARIO).unique(maintain_order=True).iter_rows():
        yield Scenario(*row)


def verdicts(results: pl.DataFrame) -> list[Verdict]:
    """For the rows of one scenario: every metric that all its policies have."""
    policies = results["policy"].unique(maintain_order=True).to_list()
    made = []
    for metric in METRICS:
        if metric.column not in results.columns or results[metric.column].null_count():
            continue
        values = {
            policy: results.filter(pl.col("policy") == policy).sort("seed")[metric.column].to_list()
            for policy in policies
        }
        first = values[policies[0]]
        standings = tuple(
            Standing(
                policy, _average(metric, values, own), _against(metric, own, first) if policy != policies[0] else None
            )
            for policy, own in values.items()
        )
        sign = 1 if metric.lower_is_better else -1
        order = sorted(range(len(policies)), key=lambda k: (sign * standings[k].mean.mean, k))
        best = policies[order[0]]
        runner_up = policies[order[1]] if len(order) > 1 else None
        lead = None if runner_up is None else _against(metric, values[best], values[runner_up])
        made.append(Verdict(metric, standings, best, runner_up, lead))
    return made


def _average(metric: Metric, values: dict[str, list[float]], own: list[float]) -> Interval:
    """Over seeds. Geometric where policies are compared by ratio, so that the ratio of two averages is the
    average ratio and the best policy is the one that leads; arithmetic for shares or if a value is zero."""
    positive = min(min(sample) for sample in values.values()) > 0
    return geometric_interval(own) if metric.by_ratio and positive else mean_interval(own)


def _against(metric: Metric, own: list[float], other: list[float]) -> Interval | None:
    return paired_ratio(own, other) if metric.by_ratio else paired_difference(own, other)
