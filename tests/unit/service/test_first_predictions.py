"""First predictions of 40 mixed jobs of which half declare nothing: a world of the study, held."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

STUDY = Path(__file__).resolve().parents[3] / "bench" / "study_eta.py"


@pytest.fixture(scope="module")
def study() -> ModuleType:
    spec = importlib.util.spec_from_file_location("study_eta", STUDY)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["study_eta"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_half_of_forty_jobs_declare_nothing_and_first_predictions_hold(study: ModuleType) -> None:
    found = study.summary(study.study(worlds=2, count=40, seed=1, policy="fifo"))
    assert found["told"] >= 60, "most jobs have a prediction at some time"
    assert found["median_error"] <= 0.40
    assert found["strict_median_error"] <= 0.45, "jobs without a prediction are counted as wrong"
    assert 0.80 <= found["inside_90"] <= 1.0, "80 jobs: two standard errors are 7 points"
