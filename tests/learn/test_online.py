"""Online learning: nothing is promoted that does not win, what disappoints is rolled back, faults change nothing."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from support.dl2_learning import Inline, turned
from trainmaster.engine.engine import Ended, Settings
from trainmaster.learn.dl2.online import (
    OnlineLearner,
    finished_specs,
    history_spec,
    judge,
    should_roll_back,
    train_candidate,
)
from trainmaster.learn.sizing.trace import SizingSpec, draw_trace
from trainmaster.model.errors import InputError
from trainmaster.model.scaling import Scaling
from trainmaster.policies import registry
from trainmaster.policies.dl2.network import ScoringNetwork
from trainmaster.policies.dl2.weights import SHIPPED, load
from trainmaster.sim.run import simulate

SPEC = SizingSpec(servers=12, jobs=24, arrivals_per_slot_max=2, profile_noise=-1.0)
ROUND_MS = 1_200_000


@pytest.fixture(scope="module")
def history() -> list[Ended]:
    specs = draw_trace(SPEC, 3).job_specs()
    return simulate(specs, SPEC.cluster(), registry.create("drf"), Settings(round_ms=ROUND_MS)).ended


@pytest.fixture
def poor(tmp_path: Path) -> Path:
    return turned(tmp_path)


def learner(tmp_path: Path, current: Path, candidate: Path) -> OnlineLearner:
    def train(ended: Sequence[Ended], now: Path, out: Path) -> Path:
        out.write_bytes(candidate.read_bytes())
        return out

    return OnlineLearner(SPEC.cluster(), ROUND_MS, tmp_path, current, train, Inline())


def test_what_wins_is_promoted(tmp_path: Path, history: list[Ended], poor: Path) -> None:
    online = learner(tmp_path, current=poor, candidate=SHIPPED)
    assert online.offer(history)
    verdict = online.poll()
    assert verdict is not None and verdict.promoted
    assert verdict.candidate_s < min(verdict.current_s, verdict.teacher_s)
    assert online.current.name == "candidate-0001.npz" and online.previous == poor


def test_what_loses_is_dropped(tmp_path: Path, history: list[Ended], poor: Path) -> None:
    online = learner(tmp_path, current=SHIPPED, candidate=poor)
    online.offer(history)
    verdict = online.poll()
    assert verdict is not None and not verdict.promoted and online.current == SHIPPED
    assert "kept" in online.notes[-1]


def test_the_same_weights_again_are_no_progress(history: list[Ended]) -> None:
    verdict = judge(finished_specs(history), SPEC.cluster(), SHIPPED, SHIPPED, "drf", ROUND_MS)
    assert not verdict.promoted and "present weights" in verdict.why


def test_beating_the_present_weights_but_not_the_teacher_is_not_enough(history: list[Ended], poor: Path) -> None:
    verdict = judge(finished_specs(history), SPEC.cluster(), SHIPPED, poor, "dl2", ROUND_MS)
    assert not verdict.promoted and verdict.candidate_s < verdict.current_s


def test_a_worse_live_figure_rolls_back(tmp_path: Path, history: list[Ended], poor: Path) -> None:
    online = learner(tmp_path, current=poor, candidate=SHIPPED)
    online.offer(history)
    online.poll()
    slower = [replace(end, ended_ms=end.spec.submit_ms + 3 * (end.ended_ms - end.spec.submit_ms)) for end in history]
    assert not online.watch(history)
    assert online.watch(slower) and online.current == poor
    assert "rolled back" in online.notes[-1]
    assert not online.watch(slower)


def test_few_jobs_decide_nothing(tmp_path: Path, history: list[Ended]) -> None:
    assert not learner(tmp_path, SHIPPED, SHIPPED).offer(history[:5])
    assert should_roll_back(history, history[:5]) == ""
    with pytest.raises(InputError, match="have finished"):
        finished_specs(history[:5])


def test_a_training_that_fails_changes_nothing(tmp_path: Path, history: list[Ended]) -> None:
    def fails(ended: Sequence[Ended], now: Path, out: Path) -> Path:
        raise MemoryError("no room")

    online = OnlineLearner(SPEC.cluster(), ROUND_MS, tmp_path, SHIPPED, fails, Inline())
    online.offer(history)
    assert online.poll() is None and online.current == SHIPPED and "no room" in online.notes[-1]


def test_history_becomes_traces_like_it(history: list[Ended]) -> None:
    specs = finished_specs(history)
    spec = history_spec(specs, SPEC.cluster(), 1200.0)
    assert spec.gpus == SPEC.gpus and spec.workers_max == SPEC.workers_max
    by_name = {kind.name: kind for kind in spec.kinds}
    for job in specs:
        speed = float(by_name[job.model].scaling().speed(SPEC.reference_size, SPEC.reference_size))
        assert speed == pytest.approx(job.steps_per_s["gpu"], rel=1e-6)
    assert len(draw_trace(spec, 1)) == spec.jobs
    rigid = [replace(job, workers_min=4, workers_max=4, servers_min=4, servers_max=4) for job in specs]
    with pytest.raises(InputError, match="elastic"):
        history_spec(rigid, SPEC.cluster(), 1200.0)


@pytest.mark.slow
def test_training_goes_on_from_the_current_weights(tmp_path: Path, history: list[Ended]) -> None:
    pytest.importorskip("torch")
    from trainmaster.learn.dl2.options import TrainOptions

    options = TrainOptions(iterations=1, episodes=4, validate_every=1, validation_traces=1)
    out = train_candidate(history, SPEC.cluster(), 1200.0, SHIPPED, tmp_path / "next.npz", options)
    assert isinstance(load(out).network, ScoringNetwork)


def test_speeds_given_as_measured_points_are_learned_from(history: list[Ended]) -> None:
    """A curve that is flat beyond two workers is not taken for one that never ends to rise."""
    flat = Scaling(points=((1, 1.0), (2, 1.6), (4, 1.7), (8, 1.7), (32, 1.7)))
    specs = [replace(spec, scaling=flat, model="flat", servers_min=0, servers_max=0, servers_ref=0)
             for spec in finished_specs(history)]  # fmt: skip
    (kind,) = history_spec(specs, SPEC.cluster(), 1200.0).kinds
    curve = kind.scaling()
    assert float(curve.speed(8)) / float(curve.speed(1)) == pytest.approx(1.7, rel=0.1)
