"""Judging predictions, and widening bands that did not hold what they claimed."""

from __future__ import annotations

import json

import numpy as np

from trainmaster.forecast.accuracy import KEPT_IN_ALL, KEPT_JOBS, KEPT_PER_JOB_MIN, AccuracyLog
from trainmaster.forecast.forecast import Outlook, band


def outlook(middle_s: float, sigma: float, rng: np.random.Generator) -> Outlook:
    return Outlook(None, band((middle_s * np.exp(sigma * rng.normal(size=40))).tolist()), "finished", True)


def coverage(claimed: float, actual: float, jobs: int = 300) -> tuple[float, float]:
    """(fraction of finishes inside the band over the second half, widening at the end) when futures claim one
    spread and the world has another."""
    rng = np.random.Generator(np.random.PCG64(5))
    profiles, inside = AccuracyLog(), []
    for k in range(jobs):
        said, widening = outlook(100.0, claimed, rng), profiles.widening()
        assert said.finish is not None
        wide = Outlook(None, said.finish.widened(widening), "finished", True)
        profiles.predicted(0, {f"j{k}": wide}, widening)
        ended_ms = round(100_000 * float(np.exp(actual * rng.normal())))
        inside.append(profiles.finished(f"j{k}", 0, ended_ms)[0].inside)
    return float(np.mean(inside[jobs // 2 :])), profiles.widening()


def test_bands_that_are_too_narrow_widen_until_they_hold() -> None:
    held, widening = coverage(claimed=0.1, actual=0.2)
    assert held > 0.84
    assert 1.6 < widening < 2.6


def test_bands_that_hold_stay() -> None:
    held, widening = coverage(claimed=0.2, actual=0.2)
    assert held > 0.84
    assert widening < 1.25
    assert coverage(claimed=0.3, actual=0.1)[1] == 1.0, "never narrower than the futures"


def test_a_long_queue_keeps_fewer_words_of_each_job_and_stores_a_part() -> None:
    rng = np.random.Generator(np.random.PCG64(5))
    n = KEPT_IN_ALL // KEPT_PER_JOB_MIN * 2
    one = outlook(100.0, 0.1, rng)
    profiles = AccuracyLog()
    for minute in range(20):
        profiles.predicted(minute * 60_000, {f"j{k}": one for k in range(n)})
    assert max(map(len, profiles.said.values())) <= KEPT_PER_JOB_MIN
    assert len(profiles.to_json()["said"]) == KEPT_JOBS


def test_it_survives_a_restart() -> None:
    rng = np.random.Generator(np.random.PCG64(5))
    profiles = AccuracyLog()
    profiles.predicted(0, {"a": outlook(10.0, 0.1, rng), "b": outlook(20.0, 0.1, rng)}, 1.5)
    profiles.finished("a", 0, 40_000)
    again = AccuracyLog.from_json(json.loads(json.dumps(profiles.to_json())))
    assert again == profiles
    assert AccuracyLog.from_json({"said": {"a": [[0, 1, 2, 3, 4]]}}).said["a"][0].widened == 1.0
