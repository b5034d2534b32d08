"""How fast waiting jobs are told that they wait: those that start come first."""

from __future__ import annotations

import pytest

from trainmaster.engine.ports import LogEntry
from trainmaster.model.job import PhaseCode
from trainmaster.service.kubernetes import status_writer
from trainmaster.service.kubernetes.status_writer import StatusWriter


class Clock:
    """Stands in for the module `time`."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(status_writer, "time", made)
    return made


def _keys(phases: dict[str, int]) -> dict[str, tuple[int, ...] | None]:
    return {name: (phase, 0) for name, phase in phases.items()}


def _told_within(clock: Clock, writer: StatusWriter, seconds: float) -> list[str]:
    """What is told if somebody looks as often as the teller asks for."""
    told, end_s = [], clock.now_s + seconds
    while clock.now_s < end_s:
        ready, next_s = writer._ready()
        told += ready
        clock.now_s += 0.0 if ready else next_s
    return told


@pytest.mark.parametrize(
    ("busy", "per_s"), [(False, status_writer.WAITING_PER_S), (True, status_writer.WAITING_PER_S_BUSY)]
)
def test_a_long_queue_is_told_slowly_and_slower_while_pods_are_made(clock: Clock, busy: bool, per_s: float) -> None:
    writer = StatusWriter(None, None, lambda _: None, busy=lambda: busy)  # type: ignore[arg-type]
    jobs = dict.fromkeys((f"w{k}" for k in range(5_000)), PhaseCode.PENDING)
    writer.stepped(_keys(jobs), ())
    clock.now_s += status_writer.SETTLE_S
    told = _told_within(clock, writer, 60.0)
    assert len(told) == len(set(told)), "nobody twice"
    assert len(told) == pytest.approx(60 * per_s, abs=2 * status_writer.WAITING_AT_ONCE)


def test_jobs_that_start_do_not_wait_behind_the_queue(clock: Clock) -> None:
    writer = StatusWriter(None, None, lambda _: None, busy=lambda: True)  # type: ignore[arg-type]
    jobs = {
        **dict.fromkeys((f"w{k}" for k in range(1_000)), PhaseCode.PENDING),
        "first": PhaseCode.RUNNING,
        "last": PhaseCode.RUNNING,
    }
    writer.stepped(_keys(jobs), ())
    clock.now_s += status_writer.SETTLE_S
    ready, _ = writer._ready()
    assert ready[:2] == ["first", "last"]
    writer.stepped(_keys({"w999": PhaseCode.RUNNING}), ())
    assert "w999" in _told_within(clock, writer, 2 * status_writer.SOON_S), "it was let out of the queue"


def test_a_job_that_waits_for_a_moment_is_told_of_its_start_alone(clock: Clock) -> None:
    writer = StatusWriter(None, None, lambda _: None)  # type: ignore[arg-type]
    writer.stepped(_keys({"j": PhaseCode.PENDING}), ())
    clock.now_s += status_writer.SETTLE_S / 2
    writer.stepped(_keys({"j": PhaseCode.RUNNING}), ())
    assert _told_within(clock, writer, 3 * status_writer.SETTLE_S) == ["j"]


@pytest.mark.parametrize("kind", ["stalled", "progress"])
def test_a_job_that_stalls_or_goes_on_is_told_at_once(clock: Clock, kind: str) -> None:
    writer = StatusWriter(None, None, lambda _: None)  # type: ignore[arg-type]
    writer.stepped({}, [LogEntry(0, kind, "j", "j", {})])
    assert _told_within(clock, writer, 2 * status_writer.SOON_S) == ["j"]
