"""Gavel's synthetic population: its distributions, its models, its determinism."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from support.gavel_synthetic import GavelSynthetic, gavel_synthetic
from trainmaster.estimate.catalogue import Entry, TableCatalogue, load_catalogue
from trainmaster.model.cluster import parse_cluster
from trainmaster.model.errors import InputError
from trainmaster.sim.workload import workload


def table() -> TableCatalogue:
    alone = [Entry(f"m{k} (batch size 8)", n, "v100", False, 2.0 * n) for k in range(4) for n in (1, 2, 4, 8)]
    return TableCatalogue("made", [*alone, Entry("single", 1, "v100", False, 5.0)])


def test_sizes_durations_and_arrivals_follow_the_population() -> None:
    jobs = gavel_synthetic(GavelSynthetic(20_000, 2.0), table(), 1).jobs
    gpus = jobs["gpus"].to_numpy()
    assert [float(np.mean(gpus == n)) for n in (1, 2, 4, 8)] == pytest.approx([0.70, 0.10, 0.15, 0.05], abs=0.01)
    speed = np.where(jobs["model"].to_numpy() == "single", 5.0, 2.0 * gpus)
    minutes = jobs["iterations"].to_numpy() / speed / 60.0
    assert float(np.mean(minutes > 1000)) == pytest.approx(0.2, abs=0.01)
    assert minutes.min() >= 10**1.5 * 0.999
    assert minutes.max() <= 1e4 * 1.001
    long = np.log10(minutes[minutes > 1000])
    assert float(long.mean()) == pytest.approx(3.5, abs=0.02)
    assert float(np.diff(jobs["submit_s"].to_numpy()).mean()) == pytest.approx(1800.0, rel=0.03)


def test_gangs_take_models_that_were_measured_as_gangs() -> None:
    jobs = gavel_synthetic(GavelSynthetic(2000), table(), 2).jobs
    single = jobs.filter(jobs["model"] == "single")
    assert len(single) > 0
    assert set(single["gpus"].to_list()) == {1.0}


def test_rate_moves_arrivals_and_nothing_else() -> None:
    slow, fast, static = (gavel_synthetic(GavelSynthetic(50, rate), table(), 3).jobs for rate in (1.0, 4.0, None))
    for column in ("gpus", "model", "iterations"):
        assert slow[column].to_list() == fast[column].to_list() == static[column].to_list()
    assert fast["submit_s"].to_numpy() == pytest.approx(slow["submit_s"].to_numpy() / 4, abs=1.0)
    assert set(static["submit_s"].to_list()) == {0.0}


@pytest.mark.parametrize("wanted", [GavelSynthetic(0), GavelSynthetic(5, 0.0), GavelSynthetic(5, math.nan)])
def test_impossible_wishes(wanted: GavelSynthetic) -> None:
    with pytest.raises(InputError):
        gavel_synthetic(wanted, table(), 0)


def test_every_job_of_gavels_table_runs_somewhere(shared_data: Callable[[str], Path]) -> None:
    catalogue = load_catalogue(shared_data("gavel/throughputs/simulation_throughputs.json"))
    trace = gavel_synthetic(GavelSynthetic(400), catalogue, 0)
    jobs = workload(trace, parse_cluster("v100=12,p100=12,k80=12"), catalogue)
    assert len(jobs.specs) == 400
    assert not jobs.unfit
    assert len({spec.model for spec in jobs.specs}) == 26
