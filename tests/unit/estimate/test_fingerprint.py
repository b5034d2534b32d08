"""Fingerprints: profiled cells are exact, others come from references, measurements take over."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainmaster.estimate.catalogue import Entry, TableCatalogue, load_catalogue
from trainmaster.estimate.fingerprint import MatrixEstimator, ReferenceModels
from trainmaster.estimate.references import Column, reference_matrix
from trainmaster.model.errors import InputError
from trainmaster.model.job import JobId, JobSpec
from trainmaster.testing.builders import a_measurement

TYPES = ("fast", "middle", "slow")


def catalogue(models: int = 12) -> TableCatalogue:
    """Speeds follow one hidden property of each model (how much it gains from a fast device), which also
    decides what it keeps beside others; so a fingerprint can find it out."""
    rng = np.random.default_rng(3)
    gain = rng.uniform(0.2, 1.5, models)
    scale = np.exp(rng.normal(0, 2, models))
    alone = {(m, t): float(scale[m] * math.exp(-gain[m] * k)) for m in range(models) for k, t in enumerate(TYPES)}
    entries = [Entry(f"m{m}", 1, t, False, speed) for (m, t), speed in alone.items()]
    for m in range(models):
        for other in range(models):
            for t in TYPES:
                kept, left = math.exp(-0.3 - 0.2 * gain[other]), math.exp(-0.3 - 0.2 * gain[m])
                fits = gain[m] + gain[other] < 2.6
                entries.append(
                    Entry(
                        f"m{m}",
                        1,
                        t,
                        False,
                        kept * alone[m, t] * fits,
                        "measured",
                        f"m{other}",
                        1,
                        left * alone[other, t] * fits,
                    )
                )
    return TableCatalogue("made", entries)


def job(table: TableCatalogue, model: str, name: str = "job", **more: Any) -> JobSpec:
    speeds = {kind: table.steps_per_s(model, 1, kind) or 0.0 for kind in TYPES}
    return JobSpec(id=JobId(name), model=model, steps_per_s=speeds, **more)  # type: ignore[arg-type]


def test_everything_profiled_is_exact() -> None:
    table = catalogue()
    estimator = MatrixEstimator(table, 1.0)
    spec = job(table, "m4")
    assert estimator.profile(spec, TYPES)[0] == pytest.approx([spec.steps_per_s[t] for t in TYPES], rel=1e-9)


def test_unprofiled_types_are_found_from_references() -> None:
    table = catalogue(20)
    references = ReferenceModels(table)
    errors, naive = [], []
    for seed in range(3):
        estimator = MatrixEstimator(table, 0.4, seed, references=references)
        for m in range(20):
            spec = job(table, f"m{m}", f"j{m}")
            row = estimator.estimate(spec)
            for k, column in enumerate(row.columns):
                if column.kind == "alone" and not row.profiled[k]:
                    errors.append(abs(math.exp(row.values[k]) / spec.steps_per_s[column.accelerator] - 1))
                    known = next(c for n, c in enumerate(row.columns) if c.kind == "alone" and row.profiled[n])
                    naive.append(abs(spec.steps_per_s[known.accelerator] / spec.steps_per_s[column.accelerator] - 1))
    assert np.median(errors) < 0.2
    assert np.mean(errors) < 0.25 * np.mean(naive)


def test_a_hidden_model_is_never_looked_up() -> None:
    """Changing the catalogue's row of the job's own model changes nothing while only one type is profiled alone."""
    table = catalogue()
    entries = [
        replace(e, steps_per_s=e.steps_per_s * 7.0) if e.model == "m4" and e.other_model is None else e
        for e in table.entries
    ]
    alone_only = [e for e in table.entries if e.other_model is None]
    honest = MatrixEstimator(TableCatalogue("a", alone_only), 0.0, 1).profile(job(table, "m4"), TYPES)[0]
    changed = MatrixEstimator(TableCatalogue("b", entries), 0.0, 1).profile(job(table, "m4"), TYPES)[0]
    assert honest == pytest.approx(changed, rel=1e-12)


def test_measurements_take_over_and_help_the_other_types() -> None:
    table = catalogue()
    spec = job(table, "m2")
    estimator = MatrixEstimator(table, 0.0, 0)
    before = estimator.profile(spec, TYPES)[0]
    row = estimator.estimate(spec)
    missing = next(c.accelerator for k, c in enumerate(row.columns) if c.kind == "alone" and not row.profiled[k])
    sd = row.log_sd[row.columns.index(Column("alone", missing))]
    for _ in range(8):
        estimator.observe(a_measurement(spec, missing, spec.steps_per_s[missing]))
    after = estimator.profile(spec, TYPES)[0]
    true = np.array([spec.steps_per_s[t] for t in TYPES])
    at = TYPES.index(missing)
    assert after[at] == pytest.approx(true[at], rel=1e-9)
    assert np.abs(np.log(after / true)).sum() < np.abs(np.log(before / true)).sum()
    assert estimator.estimate(spec).log_sd[row.columns.index(Column("alone", missing))] < sd


def test_moving_average_follows_a_change_and_damps_noise() -> None:
    table = catalogue()
    spec = job(table, "m2")
    estimator = MatrixEstimator(table, 1.0)
    estimator.profile(spec, TYPES)
    rng = np.random.default_rng(0)
    for _ in range(60):
        estimator.observe(a_measurement(spec, "fast", 5.0 * math.exp(rng.normal(0, 0.1))))
    assert estimator.profile(spec, TYPES)[0][0] == pytest.approx(5.0, rel=0.15)
    for _ in range(15):
        estimator.observe(a_measurement(spec, "fast", 2.5))
    assert estimator.profile(spec, TYPES)[0][0] == pytest.approx(2.5, rel=0.01)


@pytest.mark.parametrize("speed", [0.0, -1.0, math.nan, math.inf])
def test_senseless_measurements_are_ignored(speed: float) -> None:
    table = catalogue()
    estimator = MatrixEstimator(table, 0.3)
    spec = job(table, "m1")
    before = estimator.profile(spec, TYPES)[0]
    estimator.observe(a_measurement(spec, "fast", speed))
    estimator.observe(a_measurement(replace(spec, id=JobId("nobody")), "fast", 3.0))
    assert estimator.profile(spec, TYPES)[0] == pytest.approx(before)


def test_types_where_the_job_cannot_run_stay_zero() -> None:
    table = catalogue()
    spec = replace(job(table, "m1"), steps_per_s={"fast": 2.0, "middle": 0.0})
    for fraction in (0.0, 1.0):
        here, spread = MatrixEstimator(table, fraction).profile(spec, TYPES)
        assert here[0] > 0
        assert here[1] == 0
        assert here[2] == 0
        assert spread[1] == 0
        assert spread[2] == 0


def test_pairs_are_near_the_truth_and_symmetric() -> None:
    table = catalogue()
    estimator = MatrixEstimator(table, 1.0)
    errors, wrong = [], 0
    for a in range(0, 12, 2):
        for b in range(1, 12, 3):
            first, second = job(table, f"m{a}", f"a{a}"), job(table, f"m{b}", f"b{b}")
            speeds = estimator.pair_kept(first, second, TYPES)
            assert speeds == pytest.approx(estimator.pair_kept(second, first, TYPES)[:, ::-1])
            for k, kind in enumerate(TYPES):
                true = table.pair_steps_per_s(f"m{a}", 1, f"m{b}", 1, kind)
                assert true is not None
                wrong += (true[0] > 0) != (speeds[k, 0] > 0)
                if true[0] > 0 and speeds[k, 0] > 0:
                    alone = table.steps_per_s(f"m{a}", 1, kind)
                    assert alone is not None
                    errors.append(abs(speeds[k, 0] * alone / true[0] - 1))
    assert np.mean(errors) < 0.1
    assert wrong <= 6  # of 72


def test_unknown_model_and_size_fall_back_to_what_was_profiled() -> None:
    table = catalogue()
    estimator = MatrixEstimator(table, 0.0)
    spec = JobSpec(
        id=JobId("x"),
        model="never seen",
        workers_min=3,
        workers_max=3,
        workers_ref=3,
        steps_per_s={"fast": 4.0},
    )
    assert estimator.profile(spec, TYPES)[0][0] == pytest.approx(4.0)
    assert (estimator.pair_kept(spec, replace(spec, id=JobId("y")), TYPES) == 0).all()


def test_order_of_jobs_does_not_matter() -> None:
    table = catalogue()
    names = [f"m{k}" for k in range(6)]
    forward, backward = MatrixEstimator(table, 0.3, 5), MatrixEstimator(table, 0.3, 5)
    found = {name: forward.profile(job(table, name, name), TYPES)[0].tobytes() for name in names}
    for name in reversed(names):
        assert backward.profile(job(table, name, name), TYPES)[0].tobytes() == found[name]


def test_a_bad_fraction_is_refused() -> None:
    with pytest.raises(InputError, match="profiled fraction"):
        MatrixEstimator(catalogue(), 1.5)


def test_gavels_table(shared_data: Callable[[str], Path]) -> None:
    """26 models in pairs on one GPU; error of unprofiled cells far below that of guessing the type's average."""
    table = load_catalogue(shared_data("gavel/throughputs/simulation_throughputs.json"))
    whole = reference_matrix(table, 1)
    assert len(whole.models) == 26
    assert len(whole.columns) == 3 + 3 * 3 * 26
    references = ReferenceModels(table)
    errors: list[float] = []
    for k, model in enumerate(whole.models[::3]):
        estimator = MatrixEstimator(table, 0.4, 11, references=references)
        spec = JobSpec(
            id=JobId(str(k)),
            model=model,
            steps_per_s={t: table.steps_per_s(model, 1, t) or 0.0 for t in table.types},
        )
        row = estimator.estimate(spec)
        for at, column in enumerate(row.columns):
            true = whole.values[whole.models.index(model), whole.index(column) or 0]
            if column.kind == "own" and not row.profiled[at] and not math.isnan(true):
                errors.append(abs(math.exp(row.values[at] - true) - 1))
    assert np.mean(errors) < 0.25
