"""Losses that simulated jobs report: the true curve, and what Optimus makes of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from trainmaster.estimate.loss_fit import fit_loss
from trainmaster.model.cluster import parse_cluster
from trainmaster.model.job import JobId, JobSpec
from trainmaster.policies.registry import create
from trainmaster.policies.shared import optimus_estimates
from trainmaster.sim.loss_model import CONVERGED, measured_loss, true_curve
from trainmaster.sim.run import simulate
from trainmaster.sim.truth import TruthOptions


def _job(name: str, work: float = 5000.0, epochs: float = 15.0, submit_ms: int = 0) -> JobSpec:
    return JobSpec(
        JobId(name), submit_ms, workers_min=1, workers_max=4, workers_ref=1, work_total=work, epochs_total=epochs
    )


@pytest.mark.parametrize("epochs", [5.0, 10.0, 15.0])
def test_a_job_has_converged_when_its_work_is_done(epochs: float) -> None:
    spec = _job("a", epochs=epochs)
    curve = true_curve(spec, seed=3)
    assert curve is not None
    assert float(curve.at(0)) == pytest.approx(1.0)
    assert curve.converged_step(5000.0 / epochs, CONVERGED) == pytest.approx(5000.0, rel=1e-6)


def test_measured_losses_depend_on_seed_job_and_work_alone() -> None:
    spec = _job("a")
    points = [(k, measured_loss(spec, k, 3, 0.05)) for k in np.linspace(0, 5000, 30).tolist()]
    assert points == [(k, measured_loss(spec, k, 3, 0.05)) for k, _ in points]
    assert points != [(k, measured_loss(replace(spec, id=JobId("b")), k, 3, 0.05)) for k, _ in points]
    fitted = fit_loss(points)  # type: ignore[arg-type]
    assert fitted is not None
    assert fitted.converged_step(5000.0 / 15.0, CONVERGED * points[0][1]) == pytest.approx(5000.0, rel=0.25)  # type: ignore[operator]


def test_optimus_fits_the_losses_of_a_simulated_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in all as it is predicted from losses. A little too much, for the first loss that it hears of is not the
    first that there was, and what counts as converged is relative to that."""
    seen: dict[str, list[tuple[float, float]]] = {}
    plain = optimus_estimates._remaining_by_loss

    def spy(view, row, tolerance, declared):  # type: ignore[no-untyped-def]
        left = plain(view, row, tolerance, declared)
        if left != declared:
            done = float(view.jobs.work_done[row])
            seen.setdefault(str(view.jobs.id(row)), []).append((done / 5000.0, (done + left) / 5000.0))
        return left

    monkeypatch.setattr(optimus_estimates, "_remaining_by_loss", spy)
    jobs = [_job(f"j{k}", submit_ms=400_000 * k) for k in range(8)]
    policy = create("optimus:fitted=true")
    truth = TruthOptions(loss_period_ms=60_000)
    result = simulate(jobs, parse_cluster("v100=8x4"), policy, truth=truth)
    assert len(result.ended) == 8
    late = [ratio for points in seen.values() for done, ratio in points if 0.2 < done < 0.9]
    assert late, "no prediction was made from losses"
    assert np.median(np.abs(np.array(late) - 1.0)) < 0.08
    seen.clear()
    simulate(jobs, parse_cluster("v100=8x4"), policy, truth=TruthOptions())
    assert not seen, "without reports there is nothing to fit"
