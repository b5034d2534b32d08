"""How good the predictions were: what was said along a job's life against what then happened; and how much wider
the next bands must be because of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from statistics import NormalDist, median
from typing import Any

from trainmaster.forecast.forecast import Outlook
from trainmaster.model.units import MS_PER_S

KEPT_PER_JOB = 64
KEPT_PER_JOB_MIN = 8
KEPT_IN_ALL = 20_000
"""Predictions held of jobs that are not over: with a long queue, fewer of each."""
KEPT_JOBS = 1_000
"""Whose predictions and judgements outlive the process."""
KEPT_MISSES = 400
PRESUMED = tuple(NormalDist().inv_cdf(0.5 + (k + 0.5) / 40) for k in range(20))
"""Misses of bands that are as they should be: what is believed before anything was seen."""
WIDEST = 3.0
POINTS = (0.0, 0.25, 0.5, 0.75)
"""Fractions of a job's life at which predictions are judged."""


@dataclass(frozen=True, slots=True)
class Said:
    """A prediction of a finish, as instants."""

    at_ms: int
    p05_ms: int
    p50_ms: int
    p90_ms: int
    p95_ms: int
    widened: float = 1.0
    """By what the futures' own band was multiplied."""


@dataclass(frozen=True, slots=True)
class Judged:
    """One job's predictions at one point of its life. `error`: of the predicted finish, relative to the time
    the job spent in the system; `error_left`: relative to what was then left of it."""

    point: float
    error: float
    error_left: float
    inside: bool
    """The finish was in the central 90 % band."""
    below_p90: bool


Z95 = NormalDist().inv_cdf(0.95)


def _miss(word: Said, ended_ms: int) -> float:
    """Distance of the actual finish from the middle of the band, in its standard deviations before it was widened."""
    if word.p50_ms <= word.at_ms:
        return 0.0
    left, middle = max(ended_ms - word.at_ms, 1), word.p50_ms - word.at_ms
    edge = max(word.p95_ms - word.at_ms, middle + 1) / middle
    return abs(math.log(left / middle)) / (math.log(edge) / Z95) * word.widened


@dataclass
class AccuracyLog:
    said: dict[str, list[Said]] = field(default_factory=dict)
    judged: list[tuple[str, tuple[Judged, ...]]] = field(default_factory=list)
    misses: list[float] = field(default_factory=list)
    """How far off the last predictions were, in standard deviations of their band as the futures gave it."""

    def predicted(self, now_ms: int, outlooks: Mapping[str, Outlook], widened: float = 1.0) -> None:
        """Keep what was said of each job; thinned, so that a long life stays covered evenly."""
        most = max(KEPT_PER_JOB_MIN, min(KEPT_PER_JOB, KEPT_IN_ALL // max(len(outlooks), 1)))
        for job_id, outlook in sorted(outlooks.items()):
            if outlook.finish is None or not outlook.known:
                continue
            f = outlook.finish
            at = [now_ms + round(seconds * MS_PER_S) for seconds in (f.p05_s, f.p50_s, f.p90_s, f.p95_s)]
            kept = self.said.setdefault(job_id, [])
            while len(kept) >= most:
                del kept[1::2]
            kept.append(Said(now_ms, at[0], at[1], at[2], at[3], widened))

    def finished(self, job_id: str, submit_ms: int, ended_ms: int) -> tuple[Judged, ...]:
        """Judge what was said of a job that has now finished."""
        said = self.said.pop(job_id, [])
        life_ms = max(ended_ms - submit_ms, 1)
        judged = []
        for point in POINTS:
            at_ms = submit_ms + point * life_ms
            # The first word for the beginning, the last one before the point otherwise.
            words = said[:1] if point == 0.0 else [word for word in said if word.at_ms <= at_ms][-1:]
            for word in words:
                off_ms = abs(word.p50_ms - ended_ms)
                left_ms = max(ended_ms - word.at_ms, 1)
                inside = word.p05_ms <= ended_ms <= word.p95_ms
                self.misses.append(_miss(word, ended_ms))
                judged.append(Judged(point, off_ms / life_ms, off_ms / left_ms, inside, ended_ms <= word.p90_ms))
        del self.misses[:-KEPT_MISSES]
        if judged:
            self.judged.append((job_id, tuple(judged)))
            del self.judged[:-KEPT_JOBS]
        return tuple(judged)

    def widening(self) -> float:
        """What bands of the futures are to be multiplied by, in their logarithm, to hold what they claim: futures
        know nothing of a machine that is busy with something else. Never below 1."""
        seen = sorted((*self.misses, *PRESUMED))
        return min(max(1.0, seen[int(0.9 * len(seen))] / Z95), WIDEST)

    def forget(self, job_id: str) -> None:
        """It ended otherwise: nothing was predicted of that."""
        self.said.pop(job_id, None)

    def summary(self) -> list[dict[str, Any]]:
        """A row per point of life."""
        rows = []
        for point in POINTS:
            at = [j for _, all_points in self.judged for j in all_points if j.point == point]
            if at:
                rows.append(
                    {
                        "at_fraction_of_life": point,
                        "jobs": len(at),
                        "median_error": median(j.error for j in at),
                        "median_error_of_remaining": median(j.error_left for j in at),
                        "inside_90_fraction": sum(j.inside for j in at) / len(at),
                        "below_p90_fraction": sum(j.below_p90 for j in at) / len(at),
                    }
                )
        return rows

    def to_json(self) -> dict[str, Any]:
        said = islice(self.said.items(), KEPT_JOBS)
        return {
            "said": {k: [[w.at_ms, w.p05_ms, w.p50_ms, w.p90_ms, w.p95_ms, w.widened] for w in v] for k, v in said},
            "judged": [
                [k, [[j.point, j.error, j.error_left, j.inside, j.below_p90] for j in all_points]]
                for k, all_points in self.judged
            ],
            "misses": list(self.misses),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> AccuracyLog:
        return cls(
            {k: [Said(*word) for word in v] for k, v in data.get("said", {}).items()},
            [(k, tuple(Judged(*row) for row in rows)) for k, rows in data.get("judged", [])],
            [float(miss) for miss in data.get("misses", [])],
        )
