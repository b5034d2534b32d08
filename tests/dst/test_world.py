"""The fault simulation: ordinary seeds hold, and every safeguard is needed."""

from __future__ import annotations

from typing import Any

import pytest

from support.replays import check_replay
from trainmaster.dst.engine import world
from trainmaster.dst.engine.faulty_world import Outcome
from trainmaster.dst.engine.world import World, run_seed
from trainmaster.engine.engine import Engine
from trainmaster.engine.lifecycle import LIVE
from trainmaster.engine.state import State
from trainmaster.model import event as ev
from trainmaster.model.job import JobId
from trainmaster.model.lease import LeaseRule
from trainmaster.sim.backend import SimulatedBackend


def check(seeds: range) -> list[Outcome]:
    outcomes = [run_seed(seed) for seed in seeds]
    bad = [f"seed {o.seed} ({o.policy}): {o.violation}\n" + "\n".join(o.story[-30:]) for o in outcomes if o.violation]
    assert not bad, "\n\n".join(bad[:3])
    return outcomes


def test_ordinary_seeds() -> None:
    outcomes = check(range(60))
    ends: dict[str, int] = {}
    for outcome in outcomes:
        for name, count in outcome.ends.items():
            ends[name] = ends.get(name, 0) + count
    assert ends["finished"] > 300, "most jobs finish"
    assert ends["cancelled"] > 10
    assert ends["failed"] > 0
    assert sum(outcome.restarts for outcome in outcomes) > 60, "engines die and come back"
    assert len({outcome.policy for outcome in outcomes}) >= 4


@pytest.mark.slow
def test_many_seeds() -> None:
    check(range(1_000, 1_300))


def violations(seeds: range, enough: int = 2) -> list[str]:
    """Violations found, looking no further than needed."""
    found: list[str] = []
    for seed in seeds:
        outcome = run_seed(seed)
        if outcome.violation:
            found.append(outcome.violation)
            if len(found) >= enough:
                break
    return found


def without_physical_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches wait for nobody: whatever processes hold, the physical resources say that there is more."""
    build = State.__init__

    def boundless(self: State, *arguments: Any) -> None:
        build(self, *arguments)
        for free in (self.physical.device_milli, self.physical.cpu_milli, self.physical.mem_mib):
            free += 10**9

    monkeypatch.setattr(State, "__init__", boundless)


def test_without_the_generation_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    def unfenced(state: State, job_id: JobId, generation: int) -> int | None:
        job_index = state.columns.job_index_of.get(job_id)
        return job_index if job_index is not None and int(state.columns.ints["phase"][job_index]) in LIVE else None

    monkeypatch.setattr(State, "current", unfenced)
    assert violations(range(40))


def test_without_waiting_for_the_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LeaseRule, "certainly_over_ms", lambda self, answered_ms: answered_ms)
    assert any("lives" in text for text in violations(range(40)))


def test_without_observing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimulatedBackend, "observe", lambda self: None)
    found = violations(range(40))
    assert any("no end in sight" in text or "stays" in text for text in found)


def test_without_the_physical_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    without_physical_limits(monkeypatch)
    assert any("device" in text for text in violations(range(20)))


def test_without_sending_pending_commands_again(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = world.restore

    def forgetful(*arguments: Any) -> Engine:
        engine = honest(*arguments)
        engine.columns.ints["pending_kind"][:] = 0
        return engine

    monkeypatch.setattr(world, "restore", forgetful)
    assert violations(range(PENDING_SEEDS), enough=1)


def test_believing_stale_inventories(monkeypatch: pytest.MonkeyPatch) -> None:
    build = ev.Inventory.__init__
    monkeypatch.setattr(
        ev.Inventory, "__init__", lambda self, entries, seen_up_to, nodes: build(self, entries, 2**60, nodes)
    )
    assert violations(range(40))


def test_believing_that_silent_nodes_have_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    build = ev.Stopped.__init__
    monkeypatch.setattr(
        ev.Stopped,
        "__init__",
        lambda self, job_id, generation, saved, silent=(): build(self, job_id, generation, saved),
    )
    assert violations(range(40))


def test_replay_is_exact() -> None:
    check_replay("trainmaster.dst.engine.world")


def test_a_violation_tells_its_story(monkeypatch: pytest.MonkeyPatch) -> None:
    without_physical_limits(monkeypatch)
    outcome = next(o for o in map(run_seed, range(40)) if "device" in o.violation)
    assert any("launch" in line for line in outcome.story)
    assert World(outcome.seed).run().story == outcome.story


PENDING_SEEDS = 120
