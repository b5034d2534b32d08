"""Pairs in the simulated world: policies that share learn which pay, part the others, and finish earlier than alone."""

from dataclasses import replace

import pytest

from trainmaster.engine.engine import Settings
from trainmaster.estimate.catalogue import Entry, TableCatalogue
from trainmaster.estimate.declared import DeclaredSpeeds
from trainmaster.estimate.pairs import PairSlowdowns
from trainmaster.estimate.speeds.learned import LearningEstimator
from trainmaster.estimate.speeds.sharing import Standing
from trainmaster.model.cluster import parse_cluster
from trainmaster.policies.registry import create
from trainmaster.sim.run import RunResult, simulate
from trainmaster.sim.truth import TruthOptions
from trainmaster.testing.builders import a_job

SPEEDS = {"v100": 10.0}
TOGETHER = {("calm", "calm"): (9.0, 9.0), ("calm", "busy"): (5.5, 3.5), ("busy", "busy"): (4.5, 4.5)}
TABLE = TableCatalogue(
    "pairs",
    [Entry(model, 1, "v100", False, 10.0) for model in ("calm", "busy")]
    + [Entry(a, 1, "v100", False, x, "measured", b, 1, y) for (a, b), (x, y) in TOGETHER.items()],
)
JOBS = [
    a_job(f"job-{k}", model=model, speeds=SPEEDS, seconds=60_000.0, gpu_memory_mib=4096)
    for k, model in enumerate(("calm", "busy", "calm", "busy"))
]


def run(policy: str, estimator: LearningEstimator | DeclaredSpeeds, jobs: list | None = None) -> RunResult:
    truth = TruthOptions(report_ms=60_000, report_period_ms=120_000, restart_cost_ms=5_000)
    result = simulate(
        jobs or JOBS, parse_cluster("v100=1"), create(policy), Settings(round_ms=360_000), truth,
        estimator=estimator, pairs=PairSlowdowns(TABLE), record_history=True,
    )  # fmt: skip
    assert result.plans_refused == 0
    assert len(result.ended) == len(jobs or JOBS)
    return result


def mean_s(result: RunResult) -> float:
    return sum(end.ended_ms for end in result.ended) / len(result.ended) / 1000


@pytest.mark.parametrize("policy", ["gavel-max-min:space_sharing=true", "gandiva"])
def test_good_pairs_are_kept_bad_ones_are_parted_and_jobs_finish_earlier(policy: str) -> None:
    estimator = LearningEstimator(DeclaredSpeeds())
    learned = run(policy, estimator)
    standing = {(a, b): estimator.pair_belief(JOBS[a], JOBS[b], "v100").standing for a, b in ((0, 2), (0, 1), (1, 3))}
    assert standing[0, 2] == Standing.KEPT
    assert Standing.KEPT not in (standing[0, 1], standing[1, 3])
    alone = run("gavel-max-min", DeclaredSpeeds())
    oracle = run(policy, DeclaredSpeeds(0.0, PairSlowdowns(TABLE)))
    assert mean_s(learned) < 1.06 * mean_s(oracle)
    assert mean_s(learned) < 0.95 * mean_s(alone)


def test_what_was_learned_spares_the_next_trials() -> None:
    estimator = LearningEstimator(DeclaredSpeeds())
    run("gavel-max-min:space_sharing=true", estimator)
    run("gavel-max-min:space_sharing=true", estimator, [replace(job, id=f"{job.id}0") for job in JOBS])
    pairs = [seen for seen in estimator.knowledge if seen.place.partner]
    tried = {seen.run.rpartition(".")[0] for seen in pairs if "busy" in seen.profile.key + seen.place.partner}
    assert {job.id for job in JOBS} & tried, "bad pairs were tried once"
    assert not {f"{job.id}0" for job in JOBS} & tried, "and never again"


def test_nothing_is_tried_where_memory_is_not_known_or_too_small() -> None:
    for memory in (None, 9000):
        jobs = [replace(job, gpu_memory_mib=memory) for job in JOBS]
        estimator = LearningEstimator(DeclaredSpeeds())
        run("gavel-max-min:space_sharing=true", estimator, jobs)
        assert not any(seen.place.partner for seen in estimator.knowledge)
