"""FIFO, SJF, SRTF, LAS and Tiresias on cases small enough to decide by hand."""

from dataclasses import replace

import numpy as np

from trainmaster.engine.verify import verify
from trainmaster.model.plan import Plan
from trainmaster.model.reasons import Why
from trainmaster.model.snapshot import Snapshot
from trainmaster.policies.registry import create
from trainmaster.testing.builders import Held, a_job, a_view, row_of, started, stopped


def _decide(name: str, view: Snapshot) -> Plan:
    plan = create(name).decide(view)
    verify(view, plan)
    return plan


def test_fifo_is_strict() -> None:
    view = a_view([a_job("a", gpus=3), a_job("b", gpus=2), a_job("c", gpus=1)], "v100=4")
    plan = _decide("fifo", view)
    assert started(view, plan) == {"a"}
    assert plan.why[1] == Why.CAPACITY
    assert plan.why[2] == Why.BEHIND
    assert plan.blocker is not None
    assert plan.blocker[2] == 1


def test_fifo_keeps_the_order_among_those_that_could_use_the_same_nodes() -> None:
    jobs = [
        a_job("runs", gpus=4, types=["v100"]), a_job("waits", gpus=2, types=["v100"]), a_job("other", types=["k80"]),
        a_job("either"), a_job("last", types=["k80"]),
    ]  # fmt: skip
    view = a_view(jobs, "v100=4,k80=4", running=["runs"])
    plan = _decide("fifo", view)
    assert started(view, plan) == {"other"}
    why = {job.id: Why(plan.why[row_of(view, job.id)]) for job in jobs[1:] if job.id != "other"}
    assert why == {"waits": Why.CAPACITY, "either": Why.BEHIND, "last": Why.BEHIND}


def test_a_job_that_cannot_run_anywhere_holds_up_nobody_under_fifo() -> None:
    jobs = [
        a_job("nowhere", types=["p100"]), a_job("large", gpus=8, gpus_each=8, types=["k80"]), a_job("next"),
        a_job("after", gpus=8), a_job("behind"),
    ]  # fmt: skip
    view = a_view(jobs, "v100=4,k80=4,p100=4", down=[2])
    plan = _decide("fifo", view)
    assert started(view, plan) == {"next"}
    why = [Why(plan.why[row_of(view, job.id)]) for job in jobs if job.id != "next"]
    assert why == [Why.NO_NODE, Why.NO_NODE, Why.CAPACITY, Why.BEHIND]


def test_fifo_with_backfill_lets_later_jobs_pass() -> None:
    view = a_view([a_job("a", gpus=3), a_job("b", gpus=2), a_job("c", gpus=1)], "v100=4")
    assert started(view, _decide("fifo:backfill=true", view)) == {"a", "c"}


def test_fifo_starts_an_elastic_job_with_what_fits_if_told_so() -> None:
    wide = replace(a_job("wide", gpus=8), workers_min=2)
    jobs = [a_job("a", gpus=3), wide, a_job("c", gpus=1)]
    view = a_view(jobs, "v100=8")
    assert started(view, _decide("fifo", view)) == {"a"}
    plan = _decide("fifo:elastic=true", view)
    assert started(view, plan) == {"a", "wide"}
    given = plan.changes[row_of(view, "wide")]
    assert given is not None and given.workers == 5
    assert plan.why[row_of(view, "c")] == Why.CAPACITY
    full = a_view(jobs, "v100=4")
    plan = _decide("fifo:elastic=true", full)
    assert started(full, plan) == {"a"}, "one GPU is less than its smallest size"
    assert (plan.why[row_of(full, "wide")], plan.why[row_of(full, "c")]) == (Why.CAPACITY, Why.BEHIND)
    assert started(full, _decide("fifo:elastic=true,backfill=true", full)) == {"a", "c"}


def test_sjf_starts_the_shortest_and_stops_nothing() -> None:
    jobs = [
        a_job("long", gpus=2, seconds=100),
        a_job("short", gpus=2, seconds=10),
        a_job("mid", gpus=2, seconds=50),
    ]
    view = a_view(jobs, "v100=4", running=["long"])
    plan = _decide("sjf", view)
    assert started(view, plan) == {"short"}
    assert stopped(view, plan) == set()


def test_srtf_preempts_for_shorter_remaining_time() -> None:
    jobs = [a_job("long", gpus=4, seconds=100), a_job("short", gpus=2, seconds=10)]
    view = a_view(jobs, "v100=4", running={"long": Held(4, work_done=50.0)})
    plan = _decide("srtf", view)
    assert (started(view, plan), stopped(view, plan)) == ({"short"}, {"long"})
    nearly = a_view(jobs, "v100=4", running={"long": Held(4, work_done=95.0)})
    plan = _decide("srtf", nearly)
    assert not plan.changes
    assert plan.why[row_of(nearly, "short")] == Why.OUTRANKED


def test_srtf_judges_by_the_fastest_acceptable_type() -> None:
    jobs = [
        a_job("slow", seconds=100, speeds={"k80": 1.0, "v100": 1.0}),
        a_job("fast", seconds=300, speeds={"k80": 1.0, "v100": 9.0}),
    ]
    view = a_view(jobs, "v100=1,k80=1")
    plan = _decide("srtf", view)
    kinds = {view.jobs.id(row): view.cluster.types[given.accelerator] for row, given in plan.changes.items() if given}
    assert kinds == {"fast": "v100", "slow": "k80"}


def test_las_gives_way_to_the_least_served_and_looks_again() -> None:
    jobs = [a_job("old", gpus=4), a_job("new", gpus=4)]
    view = a_view(jobs, "v100=4", running={"old": Held(4, service_gpu_s=1000.0)}, now_s=500)
    plan = _decide("las:quantum_s=60", view)
    assert (started(view, plan), stopped(view, plan)) == ({"new"}, {"old"})
    assert plan.wake_at_ms == 560_000


def test_tiresias_keeps_order_within_a_queue_and_sinks_across() -> None:
    jobs = [a_job("first", gpus=4), a_job("second", gpus=4)]
    same = a_view(jobs, "v100=4", running={"first": Held(4, service_gpu_s=50.0)})
    assert not _decide("tiresias:thresholds_gpu_s=100", same).changes
    sunk = a_view(jobs, "v100=4", running={"first": Held(4, service_gpu_s=150.0)})
    plan = _decide("tiresias:thresholds_gpu_s=100", sunk)
    assert (started(sunk, plan), stopped(sunk, plan)) == ({"second"}, {"first"})


def test_tiresias_wakes_when_the_next_job_sinks() -> None:
    jobs = [a_job("first", gpus=4), a_job("second", gpus=4)]
    view = a_view(jobs, "v100=4", running={"first": Held(4, service_gpu_s=60.0)}, now_s=100)
    assert _decide("tiresias:thresholds_gpu_s=100", view).wake_at_ms == 110_000  # 40 GPU-s left at 4 GPUs


def test_preemption_is_taken_back_when_the_gang_does_not_fit_after_all() -> None:
    jobs = [
        a_job("a", gpus=1, seconds=90),
        a_job("b", gpus=1, seconds=90),
        a_job("wide", gpus=2, gpus_each=2, seconds=9),
    ]
    view = a_view(jobs, "v100=3x1", placement="spread", running=["a", "b"])
    plan = _decide("srtf", view)
    assert not plan.changes
    assert plan.why[row_of(view, "wide")] in (Why.SHAPE, Why.OUTRANKED, Why.CAPACITY)


def test_nobody_is_stopped_for_a_gang_that_does_not_fit_and_replaced_by_those_behind() -> None:
    jobs = [
        a_job("x", seconds=1),
        a_job("y", seconds=1),
        a_job("wide", gpus=4, gpus_each=4, seconds=2),  # fits by count, and on neither node beside x and y
        a_job("runs", gpus=3, seconds=3),
        a_job("c", seconds=4),
        a_job("d", seconds=4),
    ]
    view = a_view(jobs, "v100=8x4", placement="spread", running=["x", "y", "runs"])
    plan = _decide("srtf", view)
    assert stopped(view, plan) == set()
    assert started(view, plan) == {"c", "d"}


def test_priority_of_arrival_does_not_depend_on_rows() -> None:
    jobs = [a_job(f"j{k}", gpus=2, seconds=10) for k in range(6)]
    order = np.random.Generator(np.random.PCG64(1)).permutation(6).tolist()
    for name in ("fifo", "sjf", "srtf", "las", "tiresias"):
        view = a_view(jobs, "v100=4", row_order=order)
        assert started(view, _decide(name, view)) == {"j0", "j1"}, name
