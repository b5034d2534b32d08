"""Elastic jobs under Gavel's rounds: smaller starts, growth into idle devices, shrinking instead of stopping."""

from __future__ import annotations

from trainmaster.engine.engine import Engine
from trainmaster.engine.records import Settings
from trainmaster.estimate.declared import DeclaredSpeeds
from trainmaster.model import event as ev
from trainmaster.model.cluster import parse_cluster
from trainmaster.model.command import Command, Launch, Resize, Stop
from trainmaster.model.job import JobId, JobSpec
from trainmaster.policies.registry import create


class Rounds:
    """An engine under gavel-max-min whose commands are answered at once."""

    def __init__(self, nodes: str) -> None:
        settings = Settings(round_ms=20_000)
        self.engine = Engine(parse_cluster(nodes), create("gavel-max-min"), DeclaredSpeeds(), settings)
        self.told: list[Command] = []

    def step(self, now_ms: int, *events: ev.Event) -> list[Command]:
        """Returns what was commanded in answer to these events, all answers included."""
        news: list[ev.Event] = list(events)
        seen: list[Command] = []
        while news:
            commands = self.engine.step(now_ms, *news)
            seen += commands
            news = [_answer(command, now_ms) for command in commands]
        return seen

    def size(self, job: str) -> int:
        return int(self.engine.columns.ints["workers"][self.engine.columns.job_index_of[JobId(job)]])


def _answer(command: Command, now_ms: int) -> ev.Event:
    match command:
        case Launch():
            return ev.Started(command.job_id, command.generation, 0.0, now_ms)
        case Resize():
            return ev.Resized(command.job_id, command.generation, command.seq, 0.0, now_ms)
        case _:
            return ev.Stopped(command.job_id, command.generation, 0.0)


def job(name: str, low: int, high: int, work: float = 10_000.0, **more: float) -> ev.JobSubmitted:
    spec = JobSpec(JobId(name), workers_min=low, workers_max=high, workers_ref=high, work_total=work, **more)  # type: ignore[arg-type]
    return ev.JobSubmitted(spec)


def test_it_starts_with_what_is_left_and_grows_in_place() -> None:
    rounds = Rounds("v100=2x2")
    rounds.step(0, job("rigid", 1, 1, weight=5.0))
    commands = rounds.step(100, job("elastic", 1, 2))
    assert [type(command) for command in commands] == [Launch], "a gang of 2 does not fit; one worker does"
    assert rounds.size("elastic") == 1
    generation = int(rounds.engine.columns.ints["generation"][rounds.engine.columns.job_index_of[JobId("rigid")]])
    commands = rounds.step(5_000, ev.Exited(JobId("rigid"), generation, 0, 10_000.0))
    assert [type(command) for command in commands] == [Resize]
    assert rounds.size("elastic") == 2


def test_it_shrinks_where_another_needs_only_a_part() -> None:
    rounds = Rounds("v100=2x2")
    rounds.step(0, job("elastic", 1, 2))
    assert rounds.size("elastic") == 2
    rounds.step(1_000, job("rigid", 1, 1))
    seen: list[Command] = []
    for k in range(1, 8):
        seen += rounds.step(k * 20_000 + 1, ev.Woken())
    assert rounds.size("rigid") == 1
    assert any(isinstance(command, Resize) for command in seen)
    assert not any(isinstance(command, Stop) and command.job_id == "elastic" for command in seen), "never stopped"
