"""Generated and fitted traces: deterministic, of the asked load, faithful, without the original's jobs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from trainmaster.model.errors import InputError
from trainmaster.traces import JobTrace, load, write
from trainmaster.traces.arrivals import PROCESSES
from trainmaster.traces.assign import Assignment, assign
from trainmaster.traces.fit import fit, from_json, sample, to_json
from trainmaster.traces.generator import GeneratorSpec, generate
from trainmaster.traces.slice import scale_load, slice_trace
from trainmaster.traces.utility import parse_cell


def offered_load(trace: JobTrace, gpus: float) -> float:
    span_s = trace.jobs["submit_s"][-1] - trace.jobs["submit_s"][0]
    return float((trace.jobs["gpus"] * trace.jobs["duration_s"]).sum()) / span_s / gpus


@pytest.mark.parametrize("arrivals", sorted(PROCESSES))
def test_generator_is_seeded_and_meets_its_load(arrivals: str, tmp_path: Path) -> None:
    spec = GeneratorSpec(jobs=5000, arrivals=arrivals, load=0.8, cluster_gpus=64)
    first, again, other = generate(spec, 7), generate(spec, 7), generate(spec, 8)
    assert first.jobs.equals(again.jobs)
    assert not first.jobs.equals(other.jobs)
    assert offered_load(first, 64) == pytest.approx(0.8, rel=0.15)
    write(first, tmp_path / "t.csv")
    assert load(tmp_path / "t.csv").jobs.drop("line").equals(first.jobs.drop("line"))
    assert set(first.generated_fields) == {"submit_s", "duration_s", "gpus"}


def test_arrival_processes_differ_as_they_should() -> None:
    rng = np.random.Generator(np.random.PCG64(3))
    cv = {}
    for name, process in PROCESSES.items():
        times = process(20_000, 0.01, rng)
        assert np.all(np.diff(times) >= 0)
        assert len(times) / times[-1] == pytest.approx(0.01, rel=0.15)
        gaps = np.diff(times)
        cv[name] = gaps.std() / gaps.mean()
    assert cv["poisson"] == pytest.approx(1.0, abs=0.05)
    assert cv["bursty"] > 1.5
    hours = (PROCESSES["diurnal"](20_000, 0.01, rng) // 3600 % 24).astype(int)
    counts = np.bincount(hours, minlength=24)
    assert counts.max() > 2 * counts.min()


def test_impossible_specifications_are_refused() -> None:
    for spec in (
        GeneratorSpec(load=0),
        GeneratorSpec(arrivals="tidal"),
        GeneratorSpec(gpu_mix={}),
        GeneratorSpec(tail_index=1),
    ):
        with pytest.raises(InputError):
            generate(spec, 0)


def test_fit_keeps_work_sizes_and_time_pattern(tmp_path: Path) -> None:
    real = generate(GeneratorSpec(jobs=4000, arrivals="bursty"), 1)
    model = fit(real, window_s=7200)
    (tmp_path / "m.json").write_text(to_json(model))
    assert from_json(tmp_path / "m.json") == model
    drawn = sample(model, 5)
    assert drawn.jobs.equals(sample(model, 5).jobs)
    assert len(drawn) == len(real)
    for name in ("duration_s", "gpus"):
        assert drawn.jobs[name].mean() == pytest.approx(real.jobs[name].mean(), rel=0.01)
    work = [float((t.jobs["gpus"] * t.jobs["duration_s"]).sum()) for t in (real, drawn)]
    assert work[1] == pytest.approx(work[0], rel=0.05)
    assert drawn.jobs["duration_s"].quantile(0.99) == pytest.approx(real.jobs["duration_s"].quantile(0.99), rel=0.15)
    hours = [np.bincount((t.jobs["submit_s"] // 7200).cast(int).to_numpy(), minlength=10_000) for t in (real, drawn)]
    assert np.corrcoef(hours[0], hours[1])[0, 1] > 0.9


def test_model_holds_no_identifier_and_no_extreme_of_the_original() -> None:
    real = generate(GeneratorSpec(jobs=3000), 2)
    text = to_json(fit(real))
    assert real.jobs["job_id"][17] not in text
    means = [mean for cell in json.loads(text)["cells"] for mean in cell["slice_means_s"]]
    assert max(means) < float(real.jobs["duration_s"].max())  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "x"}', '{"format": "trainmaster-fitted-trace-1"}'])
def test_damaged_models_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "m.json").write_text(text)
    with pytest.raises(InputError):
        from_json(tmp_path / "m.json")


def test_assignment_fills_only_what_is_empty_and_marks_it(tmp_path: Path) -> None:
    base = generate(GeneratorSpec(jobs=400), 1)
    base = JobTrace(base.name, base.jobs.with_columns(model=pl.when(pl.int_range(pl.len()) < 100).then(pl.lit("mine"))))
    what = Assignment(("a", "b"), 0.5, 2, 0.5, 0.5, utility_fraction=0.5)
    made = assign(base, what, 3)
    assert made.jobs.equals(assign(base, what, 3).jobs)
    assert made.jobs["model"][:100].unique().to_list() == ["mine"]
    assert set(made.jobs["model"][100:].unique()) == {"a", "b"}
    for row in made.jobs.rows(named=True):
        marks = row["generated_fields"].split("|")
        assert ("model" in marks) == (row["model"] != "mine")
        for name in ("deadline_s", "utility", "min_gpus", "max_gpus"):
            assert (name in marks) == (row[name] is not None)
        if row["deadline_s"] is not None:
            assert row["deadline_s"] > row["submit_s"] + row["duration_s"]
        if row["utility"] is not None:
            parse_cell(row["utility"])
    write(made, tmp_path / "t.csv")
    assert load(tmp_path / "t.csv").jobs.drop("line").equals(made.jobs.drop("line"))


def test_slice_moves_the_clock_of_everything() -> None:
    trace = assign(generate(GeneratorSpec(jobs=300), 4), Assignment((), 0, 2, 1.0, 1.0), 5)
    start = float(trace.jobs["submit_s"][100])
    part = slice_trace(trace, first=100, jobs=50)
    assert len(part) == 50
    assert part.jobs["submit_s"][0] == 0
    assert part.jobs["deadline_s"].to_list() == (trace.jobs["deadline_s"][100:150] - start).to_list()
    before, after = (parse_cell(t.jobs["utility"][at]) for t, at in ((trace, 100), (part, 0)))
    assert after.times == tuple(t - start for t in before.times)  # type: ignore[union-attr]
    with pytest.raises(InputError):
        slice_trace(trace, vc=("nowhere",))


def test_scale_load_hits_the_target_and_keeps_slack() -> None:
    trace = assign(generate(GeneratorSpec(jobs=300), 4), Assignment((), 0, 2, 1.0), 5)
    scaled = scale_load(trace, 0.5, 16)
    assert offered_load(scaled, 16) == pytest.approx(0.5)
    slack = [(t.jobs["deadline_s"] - t.jobs["submit_s"]).to_numpy() for t in (trace, scaled)]
    assert np.allclose(slack[0], slack[1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "skip", "jobs", "load_to"),
    [("traces/philly.csv.gz", 20_000, 20_000, 1.3), ("traces/msft_itp.csv.gz", 0, 8_000, 1.0)],
)
def test_fitted_traces_schedule_like_the_real_one(shared_data, file: str, skip: int, jobs: int, load_to: float) -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "bench"))
    try:
        from check_fit import mean_jcts_s  # type: ignore[import-not-found]
    finally:
        sys.path.pop(0)
    real = slice_trace(load(shared_data(file)), first=skip, jobs=jobs)
    gpus = int(np.ceil(offered_load(real, load_to)))
    truth = np.array(mean_jcts_s(real, gpus, 4 * 3600.0))
    drawn = np.mean([mean_jcts_s(sample(fit(real), seed), gpus, 4 * 3600.0) for seed in range(2)], axis=0)
    assert np.all(np.abs(drawn / truth - 1) < 0.15)
