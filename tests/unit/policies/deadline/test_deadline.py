"""The answers of the deadline policy, one at a time, through the engine."""

from __future__ import annotations

from typing import Any

import pytest

from support.oracles.admitted_optimum import admitted, most_deadlines, tiny_deadline_instance
from trainmaster.engine.engine import Engine, Settings
from trainmaster.estimate.declared import DeclaredSpeeds
from trainmaster.model import event as ev
from trainmaster.model.cluster import Node, cluster_of, parse_cluster
from trainmaster.model.errors import InputError
from trainmaster.model.job import DeadlineKind, Demand, JobId, JobSpec
from trainmaster.model.reasons import Why
from trainmaster.model.scaling import LINEAR
from trainmaster.model.units import NEVER_MS
from trainmaster.policies.registry import create
from trainmaster.sim.run import simulate
from trainmaster.sim.truth import TruthOptions


def job(name: str, work_s: float | None, due_s: float | None, **more: Any) -> JobSpec:
    kind = more.pop("kind", DeadlineKind.HARD)
    return JobSpec(
        id=JobId(name),
        work_total=work_s,
        deadline_ms=NEVER_MS if due_s is None else round(due_s * 1000),
        deadline_kind=DeadlineKind.NONE if due_s is None else kind,
        **more,
    )


class World:
    """An engine that is told that every command succeeded at once."""

    def __init__(self, cluster: str, policy: str = "deadline") -> None:
        self.engine = Engine(parse_cluster(cluster), create(policy), DeclaredSpeeds(), Settings())
        self.refusals: dict[str, Any] = {}

    def submit(self, now_s: float, *specs: JobSpec) -> World:
        return self.step(now_s, *[ev.JobSubmitted(spec) for spec in specs])

    def step(self, now_s: float, *events: Any) -> World:
        now = round(now_s * 1000)
        commands = self.engine.step(now, *events)
        while commands:
            commands = self.engine.step(now, *[_answer(command, self.engine, now) for command in commands])
        for ended in self.engine.drain_ended():
            if ended.rejection is not None:
                assert ended.rejection.why == Why.DEADLINE
                self.refusals[ended.spec.id] = ended.rejection.details
        return self

    def workers(self, name: str) -> int:
        return int(self.engine.columns.ints["workers"][self.engine.columns.job_index_of[JobId(name)]])

    def kind(self, name: str) -> str:
        columns = self.engine.columns
        return self.engine.cluster.types[int(columns.ints["held_type"][columns.job_index_of[JobId(name)]])]


def _answer(command: Any, engine: Engine, now: int) -> Any:
    name = type(command).__name__
    slot = engine.columns.job_index_of[command.job_id]
    done = float(engine.columns.floats["work_done"][slot])
    if name == "Launch":
        return ev.Started(command.job_id, command.generation, done, now)
    if name == "Resize":
        return ev.Resized(command.job_id, command.generation, command.seq, done, now)
    return ev.Stopped(command.job_id, command.generation, done)


def test_deadline_in_the_past() -> None:
    details = World("gpu=4").submit(100, job("a", 10, 50)).refusals["a"]
    assert details["fault"] == "deadline in the past"
    assert details["earliest_deadline_s"] == 110.0


def test_deadline_before_the_fastest_finish() -> None:
    elastic = job("a", 100, 20, workers_max=4)
    details = World("gpu=4").submit(0, elastic).refusals["a"]
    assert details["fault"] == "deadline before the fastest possible finish"
    assert details["fastest_finish_s"] == 25.0
    assert details["earliest_deadline_s"] == 25.0


def test_unknown_work() -> None:
    details = World("gpu=4").submit(0, job("a", None, 50)).refusals["a"]
    assert details["fault"] == "unknown work"
    assert "steps" in details["remedy"]


def test_refused_with_the_earliest_deadline_which_can_then_be_promised() -> None:
    busy = [job(f"b{i}", 100, 110) for i in range(2)]
    world = World("gpu=2", "deadline:keep_trying=false").submit(0, *busy, job("late", 50, 90))
    details = world.refusals["late"]
    assert details["fault"] == "no room beside what is promised"
    assert details["more_gpus"] == 1
    assert details["more_type"] == "gpu"
    assert details["slack_of"] in ("b0", "b1")
    assert 150 <= details["earliest_deadline_s"] < 150.1
    again = job("again", 50, details["earliest_deadline_s"])
    assert "again" not in world.submit(0, again).refusals


def test_what_cannot_be_promised_waits_with_the_same_answer_and_runs_when_there_is_room() -> None:
    busy = [job(f"b{i}", 100, 110) for i in range(2)]
    world = World("gpu=2").submit(0, *busy, job("late", 50, 140))
    slot = world.engine.columns.job_index_of[JobId("late")]
    assert world.engine.columns.ints["admitted"][slot] == 0
    assert world.engine.columns.ints["reason"][slot] == Why.DEADLINE
    assert world.engine.details[slot]["fault"] == "no room beside what is promised"
    # One of the promised jobs is withdrawn: now there is room, and it becomes a promise.
    world.step(10, ev.JobCancelled(JobId("b0")))
    assert world.workers("late") == 1
    assert world.engine.columns.ints["admitted"][slot] == 1


def test_what_was_not_promised_ends_when_it_is_hopeless() -> None:
    busy = [job(f"b{i}", 100, 110) for i in range(2)]
    world = World("gpu=2").submit(0, *busy, job("late", 50, 90))
    assert not world.refusals
    world.engine.changed = True
    world.step(45)
    assert world.refusals["late"]["fault"] == "deadline before the fastest possible finish"


def test_the_further_gpus_it_names_are_enough() -> None:
    busy = [job(f"b{i}", 100, 110) for i in range(2)]
    assert not World("gpu=3", "deadline:keep_trying=false").submit(0, *busy, job("late", 50, 90)).refusals


def test_smallest_sufficient_size_when_others_wait() -> None:
    """Of 8 GPUs it needs 2 to be in time; the rest is for the best-effort job that waits."""
    world = World("gpu=8")
    world.submit(
        0,
        job("d", 100, 60, workers_max=8, scaling=LINEAR),
        job("b", 1000, None, workers_min=6, workers_max=6, workers_ref=6),
    )
    assert world.workers("d") == 2
    assert world.workers("b") == 6


def test_idle_gpus_let_it_grow() -> None:
    assert World("gpu=8").submit(0, job("d", 100, 60, workers_max=8, scaling=LINEAR)).workers("d") == 8


def test_best_effort_yields() -> None:
    world = World("gpu=4").submit(0, job("b", 1000, None, workers_min=4, workers_max=4, workers_ref=4))
    assert world.workers("b") == 4
    world.submit(1, job("d", 50, 52))
    assert world.workers("d") == 1
    assert world.workers("b") == 0


def test_elastic_best_effort_shrinks_instead_of_stopping() -> None:
    world = World("gpu=4").submit(0, job("b", 1000, None, workers_max=4))
    world.submit(1, job("d", 50, 52))
    assert world.workers("d") == 1
    assert world.workers("b") == 3


def test_chooses_the_type_that_is_fast_enough() -> None:
    slow_fast = {"k80": 1.0, "v100": 4.0}
    world = World("k80=4,v100=4")
    world.submit(0, job("tight", 100, 30, steps_per_s=slow_fast))
    assert world.kind("tight") == "v100"


def test_an_urgent_newcomer_is_fitted_in_and_the_old_promise_kept() -> None:
    early = job("early", 100, 400)
    urgent = JobSpec(
        id=JobId("urgent"),
        submit_ms=10_000,
        work_total=50.0,
        deadline_ms=61_000,
        deadline_kind=DeadlineKind.HARD,
    )
    result = simulate([early, urgent], parse_cluster("gpu=1"), create("deadline"))
    ends = {str(ended.spec.id): ended.ended_ms for ended in result.ended}
    assert ends["urgent"] == 60_000
    assert ends["early"] == 150_000


def test_without_admission_nothing_is_refused() -> None:
    world = World("gpu=1", "deadline:admission=false")
    world.submit(0, job("a", 100, 110), job("b", 100, 110), job("c", 100, 50))
    assert not world.refusals


def test_soft_deadlines_give_way_to_hard_ones() -> None:
    world = World("gpu=1").submit(0, job("soft", 100, 150, kind=DeadlineKind.SOFT))
    assert world.workers("soft") == 1
    world.submit(1, job("hard", 100, 102))
    assert world.workers("hard") == 1
    assert world.workers("soft") == 0


def test_a_second_look_changes_nothing() -> None:
    world = World("gpu=8")
    world.submit(
        0,
        *[job(f"d{i}", 100 + i, 300 + 20 * i, workers_max=4) for i in range(6)],
        job("b", 500, None, workers_max=4),
    )
    engine = world.engine
    before = [engine.columns.allocations[slot] for slot in engine.columns.rows]
    for _ in range(3):
        engine.changed = True
        assert engine.step(0) == []
    assert [engine.columns.allocations[slot] for slot in engine.columns.rows] == before


def test_a_hard_newcomer_costs_no_more_soft_deadlines_than_it_must() -> None:
    """Two GPUs, two softs: the newcomer fits if the small one moves behind the large one; none is lost."""
    world = World("gpu=2")
    world.submit(0, *[job(f"s{i}", 50, 200, kind=DeadlineKind.SOFT) for i in range(4)])
    world.submit(0, job("hard", 90, 95))
    certs = world.engine.columns.memo["plan"]
    slots = [world.engine.columns.job_index_of[JobId(f"s{i}")] for i in range(4)]
    assert all(certs[slot, 0] == 1 and certs[slot, 4] <= 200_000 for slot in slots)


def test_of_the_soft_deadlines_the_largest_gives_way() -> None:
    world = World("gpu=1")
    small = [job(f"s{i}", 20, 100, kind=DeadlineKind.SOFT) for i in range(3)]
    world.submit(0, job("large", 40, 100, kind=DeadlineKind.SOFT), *small)
    world.submit(0, job("hard", 35, 100))
    certs = world.engine.columns.memo["plan"]
    kept = {
        name: certs[world.engine.columns.job_index_of[JobId(name)], 0] for name in ("large", "s0", "s1", "s2", "hard")
    }
    assert kept == {"large": 0, "s0": 1, "s1": 1, "s2": 1, "hard": 2}


def test_jobs_that_come_up_late_do_not_take_turns() -> None:
    """Launching takes time that no plan knew of: what runs carries on, what waits moves."""
    jobs = [
        job(f"j{i}", float(steps), 600.0, workers_min=n, workers_max=n, workers_ref=n, submit_ms=60 * i)
        for i, (steps, n) in enumerate(((15, 1), (10, 2), (8, 1), (12, 1)))
    ]
    result = simulate(jobs, parse_cluster("gpu=2"), create("deadline"), Settings(), TruthOptions(launch_ms=1500))
    assert sum(end.preemptions for end in result.ended) == 0
    assert max(end.ended_ms for end in result.ended) < 40_000


@pytest.mark.parametrize(
    ("launch_ms", "exit_ms", "restart_ms", "submitted_s"),
    [(1008, 3124, 700, (0, 1, 2, 4, 5)), (3406, 3345, 1034, (0, 2, 3, 4, 6)), (1375, 2993, 300, (0, 2, 3, 4, 6))],
)
def test_a_job_that_is_being_taken_down_is_not_moved(
    launch_ms: int, exit_ms: int, restart_ms: int, submitted_s: tuple[int, ...]
) -> None:
    """A pod goes some seconds after its last step. Meanwhile the job was taken for one that is late, and the next
    reservation stopped it: it began again on the slower type, with nothing left to do."""
    speeds = {"v100": 10.0, "k80": 5.0}
    sizes = ((480.0, 1), (320.0, 2), (260.0, 1), (380.0, 1), (240.0, 1))
    jobs = [
        job(f"j{i}", steps, at_s + 600.0, workers_min=n, workers_max=n, workers_ref=n, submit_ms=at_s * 1000,
            steps_per_s=speeds)
        for i, ((steps, n), at_s) in enumerate(zip(sizes, submitted_s, strict=True))
    ]  # fmt: skip
    truth = TruthOptions(launch_ms=launch_ms, exit_ms=exit_ms, restart_cost_ms=restart_ms, stop_ms=2000)
    result = simulate(jobs, parse_cluster("v100=2,k80=2"), create("deadline"), Settings(), truth)
    assert [end.spec.id for end in result.ended if end.preemptions] == []


def test_reservations_count_cpu_and_memory() -> None:
    """4 GPUs with 8 CPUs: a worker that wants 4 CPUs blocks two GPUs, so only two of three can be promised."""
    node = Node("n0", "gpu", 4, cpu_milli=8000, mem_mib=1 << 20)
    engine = Engine(cluster_of([node]), create("deadline"), DeclaredSpeeds(), Settings())
    greedy = Demand(gpu_milli=1000, cpu_milli=4000, mem_mib=1024)
    engine.step(0, *[ev.JobSubmitted(job(f"j{i}", 100, 110, worker=greedy)) for i in range(3)])
    assert int(engine.columns.ints["admitted"][engine.columns.rows].sum()) == 2


@pytest.mark.parametrize("seed", range(12))
def test_never_more_than_the_optimum(seed: int) -> None:
    """Against an exact MILP; a promise beyond it would be a lie (the bound holds on the grid of slots)."""
    instance = tiny_deadline_instance(seed, jobs=5)
    got, best = admitted(instance), most_deadlines(instance)
    assert got <= best
    assert got >= best - 2


@pytest.mark.parametrize("text", ["deadline:confidence=1", "deadline:gain=-1", "deadline:look_s=0", "deadline:x=1"])
def test_bad_options(text: str) -> None:
    with pytest.raises(InputError):
        create(text)
