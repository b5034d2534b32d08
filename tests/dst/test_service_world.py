"""The fault simulation of the whole control plane: ordinary seeds hold, and its own safeguards are needed."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from support.replays import check_replay
from trainmaster.dst.control_plane.world import run_seed
from trainmaster.dst.engine.faulty_world import Outcome
from trainmaster.engine.deciding import admission_gate
from trainmaster.service.control import requests
from trainmaster.service.control.control_plane import ControlPlane


def check(seeds: range) -> list[Outcome]:
    outcomes = [run_seed(seed) for seed in seeds]
    bad = [f"seed {o.seed} ({o.policy}): {o.violation}\n" + "\n".join(o.story[-30:]) for o in outcomes if o.violation]
    assert not bad, "\n\n".join(bad[:3])
    return outcomes


@pytest.mark.slow
def test_ordinary_seeds() -> None:
    outcomes = check(range(5_000, 5_030))
    assert sum(outcome.ends.get("finished", 0) for outcome in outcomes) > 150
    assert sum(outcome.ends.get("rejected", 0) for outcome in outcomes) > 0
    assert sum(outcome.restarts for outcome in outcomes) > 20


def test_a_few_seeds() -> None:
    check(range(5_030, 5_034))


def violations(seeds: Iterable[int]) -> list[str]:
    """The first violation found, looking no further."""
    for seed in seeds:
        outcome = run_seed(seed)
        if outcome.violation:
            return [outcome.violation]
    return []


@pytest.mark.slow
def test_without_remembering_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = ControlPlane._commit

    def forgetful(self: ControlPlane, *arguments: object) -> object:
        self.stage.answers.clear()
        return honest(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(ControlPlane, "_commit", forgetful)
    assert any("made" in text or "answered" in text for text in violations(range(60)))


@pytest.mark.slow
def test_without_dependencies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission_gate, "arrived", lambda *_: None)
    assert any("starts although" in text or "uses" in text for text in violations(range(60)))


@pytest.mark.slow
def test_keeping_the_engine_of_a_step_that_was_not_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    def keep(self: ControlPlane, *_: object) -> None:
        self.tally.store_faults += 1

    monkeypatch.setattr(ControlPlane, "_failed", keep)
    assert violations(range(80))


@pytest.mark.slow
def test_answering_before_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A submission that is answered although its commit failed is a job lost."""
    monkeypatch.setattr(requests.Submit, "changes", False)
    assert violations((97, *range(130)))


@pytest.mark.slow
def test_replay_is_exact() -> None:
    check_replay("trainmaster.dst.control_plane.world")
