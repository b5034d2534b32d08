"""DRF and Optimus of the slot simulator are those of the engine."""

import numpy as np
import pytest

from support.completion_bound import least_mean_completion_s
from support.dl2_baselines import mean_completion_s
from trainmaster.learn.dl2.evaluate import completion_s
from trainmaster.learn.sizing.trace import SizingSpec, draw_traces
from trainmaster.model.errors import InputError

SPEC = SizingSpec(servers=12, jobs=14, arrivals_per_slot_max=1)


@pytest.mark.parametrize("name", ["drf", "optimus", "optimus:error=0.2", "optimus:fitted=true,error=0.1"])
def test_they_agree_with_the_engine(name: str) -> None:
    traces = draw_traces(SPEC, range(3))
    here = mean_completion_s(traces, name)
    there = [completion_s(trace, name) for trace in traces]
    np.testing.assert_allclose(here, there, rtol=1e-6 if name == "drf" else 0.03)


@pytest.mark.parametrize("name", ["optimus", "optimus:fitted=true,error=0.1", "drf"])
def test_nobody_is_below_the_bound(name: str) -> None:
    traces = draw_traces(SPEC, range(5))
    least = np.array([least_mean_completion_s(trace) for trace in traces])
    assert (mean_completion_s(traces, name) >= least * (1 - 1e-9)).all()
    assert (least > 0.5 * mean_completion_s(traces, "optimus")).all(), "a bound that says something"


def test_others_are_told_apart() -> None:
    with pytest.raises(InputError, match="not simulated by slots"):
        mean_completion_s(draw_traces(SPEC, range(1)), "srtf")
