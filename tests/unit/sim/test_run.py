"""The run loop and the simulated world: physics, costs, failures, accounting, determinism."""

from dataclasses import replace

import numpy as np
import pytest

from trainmaster.engine.engine import Settings
from trainmaster.model.cluster import parse_cluster
from trainmaster.model.job import Demand, JobId, JobSpec, Phase
from trainmaster.model.placement import Strategy
from trainmaster.model.scaling import amdahl
from trainmaster.policies.registry import create
from trainmaster.sim import run
from trainmaster.sim.metrics import job_table, summary
from trainmaster.sim.run import RunResult, Unaccounted, simulate
from trainmaster.sim.truth import TruthOptions
from trainmaster.testing.builders import a_job


def job(name: str, gpus: int = 1, work: float = 100.0, submit_s: float = 0.0) -> JobSpec:
    return JobSpec(
        id=JobId(name),
        submit_ms=round(submit_s * 1000),
        workers_min=gpus,
        workers_max=gpus,
        workers_ref=gpus,
        work_total=work,
    )


def finish_s(result: RunResult) -> dict[str, float]:
    return {end.spec.id: end.ended_ms / 1000 for end in result.ended}


def test_a_place_is_free_only_when_the_end_is_known() -> None:
    jobs = [job("a", 1, 100), job("b", 1, 50)]
    slow = simulate(jobs, parse_cluster("gpu=1"), create("fifo"), truth=TruthOptions(exit_ms=2000))
    assert {end.spec.id: end.ended_ms for end in slow.ended} == {"a": 102_000, "b": 154_000}


def test_jobs_run_for_their_duration_and_queue() -> None:
    jobs = [job("a", 4, 100), job("b", 4, 50), job("c", 2, 10, submit_s=5)]
    result = simulate(jobs, parse_cluster("gpu=6x6"), create("fifo"))
    assert finish_s(result) == {"a": 100.0, "b": 150.0, "c": 110.0}


def test_backfill_lets_a_small_job_pass() -> None:
    jobs = [job("a", 4, 100), job("b", 4, 50), job("c", 2, 10, submit_s=5)]
    result = simulate(jobs, parse_cluster("gpu=6x6"), create("fifo:backfill=true"))
    assert finish_s(result)["c"] == 15.0


def test_restart_cost_is_paid_at_each_restart_only() -> None:
    jobs = [job("long", 1, 100), job("short", 1, 10, submit_s=20)]
    free = simulate(jobs, parse_cluster("gpu=1"), create("srtf"))
    dear = simulate(jobs, parse_cluster("gpu=1"), create("srtf"), truth=TruthOptions(restart_cost_ms=7000))
    assert finish_s(free) == {"short": 30.0, "long": 110.0}
    assert finish_s(dear) == {"short": 30.0, "long": 117.0}
    assert dear.lost_gpu_s == 7.0
    assert summary(dear)["preemptions"] == 1


def test_spread_gangs_are_slower() -> None:
    cluster = parse_cluster("gpu=4x2")
    apart = simulate([job("a", 4, 100)], cluster, create("fifo"), truth=TruthOptions(spread_penalty=0.5))
    together = simulate([job("a", 2, 100)], cluster, create("fifo"), truth=TruthOptions(spread_penalty=0.5))
    assert finish_s(apart) == {"a": 200.0}
    assert finish_s(together) == {"a": 100.0}


def test_interference_slows_neighbours_while_they_are_there() -> None:
    cluster = parse_cluster("gpu=2x2")
    result = simulate(
        [job("a", 1, 100), job("b", 1, 30)], cluster, create("fifo"), truth=TruthOptions(interference=1.0)
    )
    # Each sees half of the node used by the other: speed 1 / 1.5 until b has done 30 at 45 s, then a alone.
    assert finish_s(result) == pytest.approx({"b": 45.0, "a": 115.0}, abs=0.002)


def test_noise_depends_on_the_seed_alone() -> None:
    jobs = [job(str(k), 1, 100) for k in range(5)]
    truth = TruthOptions(noise=0.3)

    def times(seed: int) -> dict[str, float]:
        return finish_s(simulate(jobs, parse_cluster("gpu=8"), create("fifo"), Settings(seed=seed), truth))

    assert times(1) == times(1)
    assert times(1) != times(2)


def test_node_failures_lose_work_since_the_checkpoint() -> None:
    jobs = [job(str(k), 1, 20_000) for k in range(4)]
    truth = TruthOptions(node_mtbf_ms=6_000_000, node_repair_ms=60_000, checkpoint_period_ms=600_000)
    result = simulate(jobs, parse_cluster("gpu=4x1"), create("fifo"), Settings(seed=3), truth)
    assert {end.phase for end in result.ended} == {Phase.FINISHED}
    assert result.lost_gpu_s > 0
    assert max(finish_s(result).values()) > 20_000


def test_elastic_jobs_follow_their_curve() -> None:
    flexible = replace(job("a", 1, 90), workers_min=1, workers_max=4, scaling=amdahl(0.1))
    result = simulate([flexible], parse_cluster("gpu=4x4"), create("drf"))
    # Four workers: t(4) = 0.9/4 + 0.1 = 0.325 of one worker's time.
    assert finish_s(result)["a"] == pytest.approx(90 * 0.325, abs=0.01)


def test_heterogeneous_speeds() -> None:
    fast = replace(job("a", 1, 100), steps_per_s={"k80": 1.0, "v100": 4.0})
    result = simulate([fast], parse_cluster("k80=1,v100=1"), create("fifo"))
    assert finish_s(result) == {"a": 25.0}


def test_fractions_share_a_device() -> None:
    half = replace(job("a", 1, 100), worker=Demand(gpu_milli=500))
    jobs = [half, replace(half, id=JobId("b")), replace(half, id=JobId("c"))]
    result = simulate(jobs, parse_cluster("gpu=1"), create("fifo"))
    assert finish_s(result) == {"a": 100.0, "b": 100.0, "c": 200.0}


def test_rounds_hold_decisions_back() -> None:
    result = simulate([job("a", 1, 100, submit_s=1)], parse_cluster("gpu=1"), create("fifo"), Settings(round_ms=60_000))
    assert finish_s(result) == {"a": 160.0}


def test_a_job_that_cannot_run_is_named() -> None:
    with pytest.raises(Unaccounted, match="too-large"):
        simulate([job("too-large", 9)], parse_cluster("gpu=8"), create("fifo"))


@pytest.mark.parametrize("policy", ["gavel-max-min", "gavel-max-min:mechanism=original"])
def test_rounds_in_which_nothing_ever_happens_come_to_an_end(policy: str) -> None:
    with pytest.raises(Unaccounted, match=r"too-large \(too-large is pending\)"):
        simulate([job("small", 1), job("too-large", 9)], parse_cluster("gpu=8"), create(policy))


@pytest.mark.parametrize("policy", ["gavel-max-min", "gavel-max-min:mechanism=original", "gandiva", "isolated"])
def test_jobs_without_gpus_run_beside_the_rounds(policy: str) -> None:
    alone = replace(job("alone", 1, 10), worker=Demand(gpu_milli=0))
    beside = replace(job("beside", 1, 10, submit_s=150), worker=Demand(gpu_milli=0))
    result = simulate([alone, job("trains", 8, 100, submit_s=100), beside], parse_cluster("gpu=8"), create(policy))
    assert finish_s(result) == {"alone": 10.0, "beside": 160.0, "trains": 200.0}


def fractions_and_gangs(seed: int) -> list[JobSpec]:
    """Jobs that leave devices half used and nodes in pieces, on two types of which one is slow."""
    rng = np.random.Generator(np.random.PCG64([seed, 5]))
    jobs, at_s = [], 0.0
    for k in range(60):
        at_s += float(rng.exponential(6))
        gpus = float(rng.choice([0.5, 0.5, 1, 1, 2, 4, 8]))
        each = gpus if gpus == 4 and rng.random() < 0.5 else min(gpus, 1)
        seconds = float(np.exp(rng.uniform(3, 6.5)))
        speeds = {"a": 1.0, "b": 0.3}
        jobs.append(a_job(f"j{k:02d}", gpus=gpus, gpus_each=each, seconds=seconds, submit_s=at_s, speeds=speeds))
    return jobs


@pytest.mark.parametrize(("policy", "seed"), [("las", 0), ("las", 3), ("srtf", 20), ("tiresias", 0), ("edf", 0)])
def test_jobs_do_not_take_turns_at_one_moment(policy: str, seed: int) -> None:
    truth = TruthOptions(interference=0.1)
    result = simulate(fractions_and_gangs(seed), parse_cluster("a=12x4,b=8x4"), create(policy), truth=truth)
    assert len(result.ended) == 60


def test_a_run_that_stays_at_one_moment_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "MAX_STEPS_AT_ONCE", 0)
    with pytest.raises(Unaccounted, match=r"1 of 1 jobs.*does not come to rest at 0 s"):
        simulate([job("a")], parse_cluster("gpu=1"), create("fifo"))


@pytest.mark.parametrize("strategy", list(Strategy))
def test_every_placement_runs_everything(strategy: Strategy) -> None:
    jobs = [job(str(k), 1 + k % 5, 50 + 7 * k, submit_s=3 * k) for k in range(60)]
    result = simulate(jobs, parse_cluster("a=12x4,b=8x8"), create("srtf"), Settings(placement=strategy))
    assert len(result.ended) == 60
    assert result.plans_refused == 0


def test_figures_add_up() -> None:
    jobs = [replace(job("a", 2, 100), deadline_ms=100_000), replace(job("b", 2, 100), deadline_ms=150_000)]
    result = simulate(jobs, parse_cluster("v100=2", {"v100": 3.6}), create("fifo"))
    figures = summary(result)
    assert figures["average_jct_s"] == 150.0
    assert figures["average_wait_s"] == 50.0
    assert figures["makespan_s"] == 200.0
    assert figures["utilization"] == pytest.approx(1.0)
    assert figures["deadline_met_fraction"] == 0.5
    assert figures["total_cost"] == pytest.approx(400 / 3600 * 3.6)
    assert job_table(result)["deadline_met"].to_list() == [True, False]


@pytest.mark.parametrize("name", ["restart_cost_ms", "noise", "interference"])
def test_negative_costs_are_refused(name: str) -> None:
    with pytest.raises(Exception, match=name):
        TruthOptions(**{name: -1})
