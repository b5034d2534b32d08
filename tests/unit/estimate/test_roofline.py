"""The built-in catalogue: its physics by hand, its shape by properties, its error against measured speeds."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.estimate.accelerators import ACCELERATORS, find_accelerator
from trainmaster.estimate.catalogue import ThroughputCatalogue, load_catalogue
from trainmaster.estimate.model_facts import MODELS, find_model
from trainmaster.estimate.roofline import BuiltinCatalogue, reduction_time_s, step_time

BUILT = BuiltinCatalogue()
models = st.sampled_from(sorted(MODELS))
devices = st.sampled_from(sorted(ACCELERATORS))


def test_is_a_catalogue_and_says_it_is_estimated() -> None:
    assert isinstance(load_catalogue("builtin"), ThroughputCatalogue)
    assert BUILT.origin("ResNet-50", 1, "v100") == "estimated"
    assert BUILT.steps_per_s("no such model", 1, "v100") is None
    assert BUILT.steps_per_s("ResNet-50", 1, "abacus") is None


def test_large_batch_by_hand() -> None:
    """ResNet-50, batch 128, V100: 3 x 8.2 GFLOP x 128 at 44 % of 15.7 TFLOP/s, launches hidden."""
    expected_s = 3 * 8.2e9 * 128 / (0.44 * 15.7e12)
    speed = BUILT.steps_per_s("ResNet-50 (batch size 128)", 1, "v100")
    assert speed == pytest.approx(1 / expected_s, rel=1e-9)


def test_ring_by_hand() -> None:
    """VGG-16 over four spread V100s: 2 x 3/4 x 553.6 MB at 70 % of 1.25 GB/s and six hops of 40 us."""
    expected_s = 1.5 * 138.4e6 * 4 / (0.7 * 1.25e9) + 6 * 40e-6
    assert reduction_time_s(MODELS["VGG-16"], ACCELERATORS["v100"], 4, spread=True) == pytest.approx(expected_s)


@given(models, devices, st.integers(1, 64))
def test_speed_is_finite_and_spreading_never_helps_within_a_node(model: str, device: str, batch: int) -> None:
    facts, accelerator = MODELS[model], ACCELERATORS[device]
    alone = step_time(facts, accelerator, 1, batch, spread=False)
    assert 0 < alone.total_s < math.inf
    assert alone.exposed_reduction_s == 0
    for gpus in (2, accelerator.node_gpus):
        packed = step_time(facts, accelerator, gpus, batch, spread=False).total_s
        apart = step_time(facts, accelerator, gpus, batch, spread=True).total_s
        assert alone.total_s <= packed
        if accelerator.inter_gb_s <= accelerator.intra_gb_s:
            assert packed <= apart


@given(models, devices, st.integers(1, 63))
def test_larger_batches_take_longer_but_never_less_than_in_proportion_fewer_samples(
    model: str, device: str, batch: int
) -> None:
    facts, accelerator = MODELS[model], ACCELERATORS[device]
    small = step_time(facts, accelerator, 1, batch, spread=False).total_s
    large = step_time(facts, accelerator, 1, batch + 1, spread=False).total_s
    assert small <= large * (1 + 1e-12)
    assert large / (batch + 1) <= small / batch * (1 + 1e-12)


def test_what_does_not_fit_cannot_run() -> None:
    assert BUILT.steps_per_s("Llama-2-70B", 8, "a100-80gb") == 0.0
    assert (BUILT.steps_per_s("Llama-2-70B", 64, "a100-80gb") or 0) > 0
    assert BUILT.steps_per_s("Llama-2-7B", 1, "v100") == 0.0


def test_names_as_clusters_and_traces_write_them() -> None:
    for name in ("Tesla-V100-SXM2-16GB", "V100", "v100", "NVIDIA V100"):
        assert find_accelerator(name) is ACCELERATORS["v100"]
    assert find_accelerator("NVIDIA-A100-SXM4-80GB") is ACCELERATORS["a100-80gb"]
    assert find_accelerator("NVIDIA-H100-80GB-HBM3") is ACCELERATORS["h100"]
    for name in ("resnet50", "vgg16", "inception3", "bert", "gpt2", "deepspeech2", "mobilenet_v2", "alexnet"):
        assert find_model(name) is not None, name


def test_known_models_of_the_real_traces(shared_data) -> None:
    from trainmaster.traces import load

    for file in ("traces/msft_itp.csv.gz", "traces/raw/chronus/trace_job_Philly_MIX1.csv.gz"):
        for name in load(shared_data(file)).jobs["model"].unique().sort():
            assert find_model(name) is not None, name


def test_error_against_measurements_stays_within_what_the_documentation_says(shared_data) -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "bench"))
    try:
        from check_catalogue import adaptdl_ratios, gavel_ratios  # type: ignore[import-not-found]
    finally:
        sys.path.pop(0)
    gavel = gavel_ratios(shared_data("gavel/throughputs/simulation_throughputs.json"))
    adaptdl = adaptdl_ratios(shared_data("traces/raw/adaptdl_profiles"))
    for rows, median_max, within_two in ((gavel, 1.4, 0.83), (adaptdl, 1.4, 0.9)):
        errors = np.abs([math.log(ratio) for *_, ratio in rows])
        assert math.exp(np.median(errors)) < median_max
        assert np.mean(errors < math.log(2)) > within_two
