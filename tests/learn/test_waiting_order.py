"""Who begins when not everybody can: the smallest area, nobody never; the same in the engine and by slots."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.sizing_choices import choose
from trainmaster.engine.engine import Settings
from trainmaster.learn.dl2.evaluate import PARALLEL, completion_s
from trainmaster.learn.dl2.rollout import play
from trainmaster.learn.sizing.batch import SlotBatch
from trainmaster.learn.sizing.trace import SizingSpec, draw_trace
from trainmaster.model.cluster import Node
from trainmaster.policies import registry
from trainmaster.policies.dl2.network import ScoringNetwork
from trainmaster.policies.dl2.weights import load_once
from trainmaster.sim.run import simulate
from trainmaster.testing.builders import a_job, a_view

CROWDED = SizingSpec(servers=2, jobs=16, arrivals_per_slot_max=3, profile_noise=-1.0)
DAY_S = 86_400.0


def started(view) -> set[str]:
    plan = registry.create("dl2").decide(view)
    return {view.jobs.id(row) for row, given in plan.changes.items() if given is not None}


@given(seed=st.integers(0, 10_000), servers_max=st.sampled_from([0, 32]))
@settings(max_examples=6, deadline=None)
def test_engine_and_slots_begin_the_same_jobs(seed: int, servers_max: int) -> None:
    spec = replace(CROWDED, servers_max=servers_max, kinds=CROWDED.kinds if servers_max else PARALLEL.kinds)
    trace = draw_trace(spec, seed)
    result = simulate(trace.job_specs(), spec.cluster(), registry.create("dl2"), Settings(round_ms=1_200_000))
    assert any(end.first_start_ms >= end.spec.submit_ms + 1_200_000 for end in result.ended)  # some had to wait
    batch = SlotBatch([trace])
    network = load_once("").network
    assert isinstance(network, ScoringNetwork)
    while len(batch.alive):
        decisions = batch.decisions()
        scores, void = network.scores(decisions.rows, decisions.starts, decisions.globals_)
        batch.apply(decisions, *choose(decisions, scores, void))
    ended_ms = {str(end.spec.id): end.ended_ms for end in result.ended}
    for k, job_id in enumerate(trace.ids):
        assert abs(ended_ms[job_id] - int(batch.state.finish_ms[0, k])) <= 2, job_id


def test_the_smallest_area_begins() -> None:
    """Two GPUs: of a long job of one, a short one of two and a shorter one of one, the last comes first."""
    jobs = [a_job("long", seconds=1000), a_job("wide", gpus=2, seconds=300), a_job("short", seconds=200)]
    assert started(a_view(jobs, "v100=2")) == {"short", "long"}
    assert started(a_view(jobs[:2], "v100=2")) == {"wide"}


def test_where_all_fit_the_plan_is_that_of_arrival() -> None:
    """On two types the order would decide who gets the fast one."""
    jobs = [a_job("long", seconds=1000, speeds={"v100": 2, "k80": 1}), a_job("short", speeds={"v100": 2, "k80": 1})]
    view = a_view(jobs, "v100=1,k80=1")
    plan = registry.create("dl2").decide(view)
    given = plan.changes[0]
    assert given is not None and view.cluster.types[int(given.accelerator)] == "v100"


def test_a_job_that_has_waited_goes_before_a_smaller_one() -> None:
    jobs = [a_job("old", seconds=1500), a_job("new", seconds=1000, submit_s=0.9 * DAY_S)]
    assert started(a_view(jobs, "v100=1", now_s=0.9 * DAY_S)) == {"old"}
    fresh = [a_job("old", seconds=1500, submit_s=0.9 * DAY_S), jobs[1]]
    assert started(a_view(fresh, "v100=1", now_s=0.9 * DAY_S)) == {"new"}


@pytest.mark.parametrize("elastic", [None, (1, 2)])
def test_a_gang_is_not_passed_by_for_ever(elastic) -> None:
    """Small jobs without end, rigid or elastic; a gang of the whole cluster begins all the same."""
    small = [a_job(f"s{k:03}", seconds=3600, submit_s=1200 * k, elastic=elastic) for k in range(400)]
    gang = a_job("gang", gpus=4, seconds=3600, submit_s=10)
    result = simulate([gang, *small], a_view([gang], "v100=4").cluster, registry.create("dl2"), Settings())
    began_s = next(end.first_start_ms for end in result.ended if end.spec.id == "gang") / 1000
    assert DAY_S < began_s < 1.3 * DAY_S


def test_jobs_without_servers_are_played_as_in_the_engine() -> None:
    spec = replace(PARALLEL, servers=6, jobs=10, arrivals_per_slot_max=1)
    trace = draw_trace(spec, 3)
    network = load_once("").network
    assert isinstance(network, ScoringNetwork)
    here = float(play([trace], network)[0])
    assert completion_s(trace, "dl2:fitted=true,error=0.1") == pytest.approx(here, rel=0.02)


@pytest.mark.parametrize("elastic", [None, (1, 2)])
def test_nothing_is_kept_for_a_gang_that_could_not_run_in_an_empty_cluster(elastic) -> None:
    """Its node is down, or it is larger than the cluster: days later the others begin all the same."""
    jobs = [a_job("gang", gpus=8), a_job("small", submit_s=2 * DAY_S, elastic=elastic)]
    assert started(a_view(jobs, "v100=12x8", down=[0], now_s=2 * DAY_S)) == {"small"}
    assert started(a_view(jobs, "v100=4", now_s=2 * DAY_S)) == {"small"}
    # By number it would fit; no node that is up takes its one worker.
    wide = [a_job("wide", gpus=8, gpus_each=8), jobs[1]]
    nodes = [Node("n0", "v100", 8), Node("n1", "v100", 4), Node("n2", "v100", 4)]
    assert started(a_view(wide, nodes, down=[0], now_s=2 * DAY_S)) == {"small"}
    # Where it could run, places are kept for it as before.
    held = [*jobs, a_job("runs", seconds=1e6)]
    assert started(a_view(held, "v100=8", running=["runs"], now_s=2 * DAY_S)) == set()
