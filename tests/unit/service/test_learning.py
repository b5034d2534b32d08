"""DL2 learning on in the service: what wins comes into force by the usual request, what disappoints is taken back."""

from __future__ import annotations

import json
import multiprocessing
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from service_bench import Bench

from support.dl2_learning import Inline, turned
from trainmaster.engine.records import Ended
from trainmaster.learn.dl2.online import train_candidate
from trainmaster.model.errors import InputError
from trainmaster.policies.dl2.network import ScoringNetwork
from trainmaster.policies.dl2.weights import SHIPPED, load
from trainmaster.service.control.control_plane import Request
from trainmaster.service.control.requests import SetPolicy
from trainmaster.service.online_learning import Learning, brief_training, check_learning, weights_of, with_weights


class Direct:
    """A driver that answers in the caller's thread."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench

    def put(self, request: Request[Any], answered: Callable[[Any], object]) -> None:
        answered(self.bench.plane.batch([request])[0])


def copying(source: Path) -> Callable[[Sequence[Ended], Path, Path], Path]:
    def train(ended: Sequence[Ended], now: Path, out: Path) -> Path:
        del ended, now
        out.write_bytes(source.read_bytes())
        return out

    return train


def run_jobs(bench: Bench, count: int, between_s: float, seed: int = 0) -> None:
    """Elastic jobs of very different lengths, until all have ended."""
    rng = np.random.Generator(np.random.PCG64(seed))
    for _ in range(count):
        steps = int(np.exp(rng.uniform(4.0, 8.0)))
        bench.submit(steps=steps, steps_per_s={"v100": 4.0}, workers={"min": 1, "max": 16})
        bench.pass_s(between_s)
    for _ in range(400):
        if not bench.plane.live.columns.job_index_of:
            return
        bench.pass_s(60.0)
    raise AssertionError("jobs do not end")


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, nodes="v100=16x4", policy=f"dl2:weights={turned(tmp_path)},teacher=drf", round_ms=60_000)


def learning(bench: Bench, tmp_path: Path, source: Path) -> Learning:
    return Learning(
        Direct(bench), tmp_path / "learning", bench.cluster, 60_000, train=copying(source), executor=Inline()
    )


def notes(tmp_path: Path) -> list[str]:
    return [json.loads(line)["note"] for line in (tmp_path / "learning" / "history.jsonl").read_text().splitlines()]


def test_weights_that_win_in_the_shadow_come_into_force_and_are_taken_back(bench: Bench, tmp_path: Path) -> None:
    run_jobs(bench, 30, 10.0)
    task = learning(bench, tmp_path, SHIPPED)
    first = weights_of(bench.plane.policy_name)
    task.turn()  # trains, in this test at once
    assert weights_of(bench.plane.policy_name) == first, "nothing may change before the verdict"
    task.turn()
    promoted = weights_of(bench.plane.policy_name)
    assert promoted.name == "candidate-0001.npz" and "teacher=drf" in bench.plane.policy_name
    assert any("promoted" in note for note in notes(tmp_path))
    log = bench.plane.store.log_page(0, 10_000)
    assert any("candidate-0001" in entry.text for entry in log if entry.kind == "policy")
    # A flood: jobs wait ten times as long as before, and the new weights are blamed for it.
    run_jobs(bench, 60, 0.5, seed=1)
    task.turn()
    assert weights_of(bench.plane.policy_name) == first
    assert any("rolled back" in note for note in notes(tmp_path))


def trained_in_the_background(bench: Bench, tmp_path: Path) -> Learning:
    """A service that has run some jobs, and a real training of a few iterations on them beside it."""
    pytest.importorskip("torch")
    brief = replace(brief_training(), iterations=2, pairs=2, episodes=2, validate_every=1, validation_traces=2)

    def train(ended: Sequence[Ended], now: Path, out: Path) -> Path:
        return train_candidate(ended, bench.cluster, 60.0, now, out, brief)

    run_jobs(bench, 30, 10.0)
    first = bench.plane.policy_name
    with ThreadPoolExecutor(1) as background:
        task = Learning(Direct(bench), tmp_path / "learning", bench.cluster, 60_000, train=train, executor=background)
        task.turn()
        assert task.learner.busy and bench.plane.policy_name == first, "it goes on while one trains"
    task.turn()
    assert not task.learner.busy
    return task


@pytest.mark.slow
def test_a_real_training_beats_bad_weights_and_the_teacher_and_is_promoted(bench: Bench, tmp_path: Path) -> None:
    bad = weights_of(bench.plane.policy_name)
    task = trained_in_the_background(bench, tmp_path)
    promoted = weights_of(bench.plane.policy_name)
    assert promoted == tmp_path / "learning" / "candidate-0001.npz", notes(tmp_path)
    assert "teacher=drf" in bench.plane.policy_name and task.learner.previous == bad
    assert any("beats the present weights and the teacher" in note for note in notes(tmp_path))
    assert load(promoted).made_by["from"] == "history"


@pytest.mark.slow
def test_a_real_training_that_is_hardly_better_changes_nothing(tmp_path: Path) -> None:
    bench = Bench(tmp_path, nodes="v100=16x4", policy="dl2:teacher=drf", round_ms=60_000)
    trained_in_the_background(bench, tmp_path)
    assert isinstance(load(tmp_path / "learning" / "candidate-0001.npz").network, ScoringNetwork)
    assert bench.plane.policy_name == "dl2:teacher=drf"
    assert [note for note in notes(tmp_path) if "kept" in note and "s of the present weights" in note], notes(tmp_path)


def test_weights_that_lose_never_come_into_force(tmp_path: Path) -> None:
    bench = Bench(tmp_path, nodes="v100=16x4", policy="dl2:teacher=drf", round_ms=60_000)
    run_jobs(bench, 30, 10.0)
    task = learning(bench, tmp_path, turned(tmp_path))
    task.turn()
    task.turn()
    assert bench.plane.policy_name == "dl2:teacher=drf"
    assert any("kept" in note for note in notes(tmp_path))
    task.turn()  # nothing new has ended: no training begins
    assert task.learner.rounds == 1


def test_the_watch_goes_on_after_a_restart(bench: Bench, tmp_path: Path) -> None:
    run_jobs(bench, 30, 10.0)
    task = learning(bench, tmp_path, SHIPPED)
    first = weights_of(bench.plane.policy_name)
    task.turn()
    task.turn()
    again = learning(bench, tmp_path, SHIPPED)
    assert again.learner.previous == first and again.learner.rounds == 1
    run_jobs(bench, 60, 0.5, seed=1)
    again.turn()
    assert weights_of(bench.plane.policy_name) == first


def test_a_service_that_stops_does_not_wait_for_a_training(bench: Bench, tmp_path: Path) -> None:
    background = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
    task = Learning(Direct(bench), tmp_path / "learning", bench.cluster, 60_000, executor=background)
    running = background.submit(time.sleep, 3600.0)
    while not running.running():
        time.sleep(0.01)
    begun_s = time.monotonic()
    task.stop()
    background.shutdown(wait=True)  # what the interpreter does at its end
    assert time.monotonic() - begun_s < 60.0
    assert running.exception() is not None


class Killed(Executor):
    """An executor whose process was killed."""

    def submit(self, fn, /, *args, **kwargs) -> Future:
        raise BrokenProcessPool("a child process terminated abruptly")


def test_a_training_process_that_was_killed_is_replaced(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_jobs(bench, 30, 10.0)
    task = Learning(
        Direct(bench), tmp_path / "learning", bench.cluster, 60_000, train=copying(SHIPPED), executor=Killed()
    )
    monkeypatch.setattr("trainmaster.service.online_learning._one_process", Inline)
    task.turn()
    task.turn()
    assert any("promoted" in note for note in notes(tmp_path))


def test_weights_chosen_by_hand_during_a_training_stay(bench: Bench, tmp_path: Path) -> None:
    run_jobs(bench, 30, 10.0)
    task = learning(bench, tmp_path, SHIPPED)
    task.turn()
    mine = tmp_path / "mine.npz"
    mine.write_bytes(SHIPPED.read_bytes())
    Direct(bench).put(SetPolicy(f"dl2:weights={mine}"), lambda _: None)
    task.turn()
    assert weights_of(bench.plane.policy_name) == mine == task.learner.current
    assert any("mine.npz was put in force during the training" in note for note in notes(tmp_path))


@pytest.mark.parametrize("state", ["[]", "{}", '{"trained_ms": "x"}', "nonsense", '{"trained_ms": null}'])
def test_a_state_that_cannot_be_read_is_left_aside(bench: Bench, tmp_path: Path, state: str) -> None:
    (tmp_path / "learning").mkdir()
    (tmp_path / "learning" / "state.json").write_text(state)
    said: list[str] = []
    task = Learning(Direct(bench), tmp_path / "learning", bench.cluster, 60_000, said.append, executor=Inline())
    assert task.learner.rounds == 0 and "state.json cannot be read" in said[0]


def test_only_the_latest_jobs_are_read(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control plane waits while they are, and may remember a hundred thousand."""
    run_jobs(bench, 30, 10.0)
    monkeypatch.setattr("trainmaster.service.online_learning.REMEMBERED", 25)
    monkeypatch.setattr(bench.plane.store, "ended_page", None)
    task = learning(bench, tmp_path, SHIPPED)
    task.turn()
    assert any("training on 25 finished jobs" in note for note in notes(tmp_path))


def test_other_policies_are_left_alone(tmp_path: Path) -> None:
    bench = Bench(tmp_path, policy="fifo")
    learning(bench, tmp_path, SHIPPED).turn()
    assert not (tmp_path / "learning" / "history.jsonl").exists()


def test_learning_without_the_policy_is_refused() -> None:
    with pytest.raises(InputError, match="policy dl2"):
        check_learning("fifo")
    check_learning("dl2:error=0.1")
    check_learning(None)


def test_other_options_are_kept() -> None:
    assert with_weights("dl2:teacher=srtf,weights=/a.npz,error=0.1", Path("/b.npz")) == (
        "dl2:teacher=srtf,error=0.1,weights=/b.npz"
    )
    assert with_weights("dl2:weights=/a.npz", SHIPPED) == "dl2"
