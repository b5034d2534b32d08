"""The table of rivals on the same streams: means by site with intervals, and how far each is below a baseline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainmaster.report.statistics import mean_interval

Scores = Mapping[str, Mapping[str, Mapping[str, list[float]]]]
"""By rival, site and stream: mean completion time (minutes) and mean fee (dollars)."""


def table(scores: Scores, baseline: str = "") -> list[dict[str, Any]]:
    """One row per rival: means by site and over sites, with 95 % intervals, and how far it is below the baseline on
    the same streams. Half an interval is None where one stream alone gives none."""
    rows = []
    for label, by_site in scores.items():
        row: dict[str, Any] = {"rival": label}
        streams = sorted(set.intersection(*(set(found) for found in by_site.values())), key=int)
        for k, unit in enumerate(("jct_min", "fee")):
            means = []
            for site, found in by_site.items():
                interval = mean_interval([found[s][k] for s in streams])
                row[f"{site}_{unit}"] = interval.mean
                row[f"{site}_{unit}_half"] = None if interval.high is None else interval.high - interval.mean
                means.append(interval.mean)
            row[f"average_{unit}"] = sum(means) / len(means)
            if baseline:
                base = scores[baseline]
                both = [s for s in streams if all(s in found for found in base.values())]
                own = [sum(found[s][k] for found in by_site.values()) / len(by_site) for s in both]
                theirs = [sum(found[s][k] for found in base.values()) / len(base) for s in both]
                row[f"below_{unit}"] = 1.0 - sum(own) / sum(theirs)
                spread = mean_interval(
                    [(b - a) / (sum(theirs) / len(theirs)) for a, b in zip(own, theirs, strict=True)]
                )
                row[f"below_{unit}_half"] = None if spread.high is None else spread.high - spread.mean
        row["streams"] = len(streams)
        rows.append(row)
    return rows
