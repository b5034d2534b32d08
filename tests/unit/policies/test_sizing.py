"""Target sizes to plans: shrink, place, grow; nothing is pushed to and fro."""

import numpy as np
import pytest

from trainmaster.engine.verify import verify
from trainmaster.model.job import Phase
from trainmaster.model.plan import Plan
from trainmaster.model.reasons import Why
from trainmaster.model.scaling import Scaling, amdahl
from trainmaster.model.snapshot import Snapshot
from trainmaster.policies.shared.sizing import Sizes, apply_sizes, resizable_rows, smallest_servers
from trainmaster.testing.builders import Held, a_job, a_node, a_view, row_of, sizes_after


def _apply(view: Snapshot, targets: dict[str, tuple[int, int]], first: list[str] | None = None) -> Plan:
    workers, servers = np.zeros(len(view.jobs), np.int64), np.zeros(len(view.jobs), np.int64)
    for name, (w, s) in targets.items():
        workers[row_of(view, name)], servers[row_of(view, name)] = w, s
    rows = np.array([row_of(view, name) for name in targets], np.int64)
    head = None if first is None else np.array([row_of(view, name) for name in first], np.int64)
    builder = view.draft()
    apply_sizes(builder, Sizes(workers, servers, np.full(len(view.jobs), -1)), rows, head)
    plan = builder.plan()
    verify(view, plan)
    return plan


def test_a_shrink_makes_room_for_a_start_and_a_growth() -> None:
    jobs = [a_job("a", elastic=(1, 8)), a_job("b", elastic=(1, 4)), a_job("c", gpus=2)]
    view = a_view(jobs, "v100=8", running={"a": 7, "b": 1})
    plan = _apply(view, {"a": (3, 0), "b": (3, 0), "c": (2, 0)})
    assert sizes_after(view, plan) == {"a": (3, 0), "b": (3, 0), "c": (2, 0)}


def test_the_same_size_changes_nothing() -> None:
    view = a_view([a_job("a", elastic=(1, 8)), a_job("b", elastic=(1, 4))], running={"a": 5, "b": 3})
    assert not _apply(view, {"a": (5, 0), "b": (3, 0)}).changes


def test_a_shrink_that_nobody_needs_is_taken_back() -> None:
    view = a_view([a_job("a", elastic=(1, 8)), a_job("b", gpus=9)], running={"a": 8})
    assert not _apply(view, {"a": (2, 0), "b": (9, 0)}).changes


def test_a_shrink_that_makes_the_job_faster_stays() -> None:
    slowed = Scaling(a=1.0, d=1.0)
    view = a_view([a_job("a", elastic=(1, 8), scaling=slowed)], running={"a": 8})
    assert sizes_after(view, _apply(view, {"a": (1, 0)})) == {"a": (1, 0)}


def test_zero_stops_a_job() -> None:
    view = a_view([a_job("a", elastic=(1, 8))], running={"a": 8})
    plan = _apply(view, {"a": (0, 0)})
    assert plan.changes == {0: None}
    assert plan.why[0] == Why.OUTRANKED


def test_growth_stops_where_room_ends() -> None:
    jobs = [a_job("a", elastic=(1, 8)), a_job("rigid", gpus=3)]
    view = a_view(jobs, "v100=8", running={"rigid": 3, "a": 1})
    assert sizes_after(view, _apply(view, {"a": (8, 0)}))["a"] == (5, 0)


def test_a_start_falls_back_to_the_largest_size_that_fits() -> None:
    view = a_view([a_job("a", elastic=(2, 8), gpus_each=2), a_job("r", gpus=3)], "v100=8x4", running={"r": 3})
    assert sizes_after(view, _apply(view, {"a": (4, 0)}))["a"] == (2, 0)


@pytest.mark.parametrize(("cost_s", "grown"), [(0, 8), (5, 8), (500, 4)])
def test_growth_must_repay_a_restart(cost_s: int, grown: int) -> None:
    job = a_job("a", elastic=(1, 8), seconds=4000.0)
    view = a_view([job], running={"a": Held(4, work_done=2000.0)}, restart_cost_ms=cost_s * 1000)
    # 2000 steps left: 500 s on 4 workers, 250 s on 8.
    assert sizes_after(view, _apply(view, {"a": (8, 0)})) == {"a": (grown, 0)}


def test_what_has_not_started_is_resized_freely() -> None:
    view = a_view([a_job("a", elastic=(1, 8))], running={"a": Held(4, phase=Phase.RESERVED)}, restart_cost_ms=10**9)
    assert sizes_after(view, _apply(view, {"a": (8, 0)})) == {"a": (8, 0)}


def test_nothing_passes_a_head_that_does_not_fit() -> None:
    jobs = [
        a_job("e", elastic=(1, 4)),
        a_job("head", gpus=6),
        a_job("small", gpus=1),
        a_job("other", types=("k80",)),
    ]
    view = a_view(jobs, "k80=2,v100=8", running={"e": Held(4, accelerator=1)})
    jobs_after = _apply(view, {"e": (1, 0), "head": (6, 0), "small": (1, 0), "other": (1, 0)}, first=["head"])
    assert sizes_after(view, jobs_after) == {"e": (1, 0), "head": (6, 0), "small": (1, 0), "other": (1, 0)}
    tight = a_view(
        [*jobs, a_job("r", gpus=3)],
        "k80=2,v100=8",
        running={"r": Held(3, accelerator=1), "e": Held(4, accelerator=1)},
    )
    plan = _apply(tight, {"e": (1, 0), "head": (6, 0), "small": (1, 0), "other": (1, 0)}, first=["head"])
    # The head lacks one GPU: what it accepts stays free for it, so the small job waits behind it.
    assert "head" not in sizes_after(tight, plan)
    assert "small" not in sizes_after(tight, plan)
    assert plan.why[row_of(tight, "small")] == Why.BEHIND
    assert sizes_after(tight, plan)["e"] == (1, 0), "room made for the head is not taken back"


def test_only_settled_elastic_jobs_are_resizable() -> None:
    jobs = [a_job(name, elastic=(1, 2)) for name in "abcd"] + [a_job("rigid")]
    running = {
        "a": Held(1), "b": Held(1, phase=Phase.LAUNCHING), "c": Held(1, phase=Phase.RESIZING),
        "rigid": Held(1),
    }  # fmt: skip
    view = a_view(jobs, running=running)
    assert [view.jobs.id(row) for row in np.flatnonzero(resizable_rows(view)).tolist()] == ["a"]


def test_servers_go_with_workers() -> None:
    jobs = [
        a_job("none"),
        a_job("some", elastic=(2, 4), servers=(0, 8)),
        a_job("many", elastic=(1, 4), servers=(3, 8)),
    ]
    assert smallest_servers(a_view(jobs)).tolist() == [0, 2, 3]


def test_servers_and_workers_change_together() -> None:
    nodes = [a_node("n0", 8, cpu=16)]
    job = a_job("a", elastic=(1, 8), servers=(1, 8), cpu=1, server_cpu=1, scaling=amdahl(0.01))
    view = a_view([job, a_job("b", gpus=4, cpu=1)], nodes, running={"a": Held(6, 6)})
    plan = _apply(view, {"a": (4, 4), "b": (4, 0)})
    assert sizes_after(view, plan) == {"a": (4, 4), "b": (4, 0)}
