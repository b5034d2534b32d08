"""Contract checks that need time to pass: small simulated streams of jobs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trainmaster.engine.engine import Engine, Settings
from trainmaster.estimate.declared import DeclaredSpeeds
from trainmaster.model import event as ev
from trainmaster.model.cluster import parse_cluster
from trainmaster.model.job import JobId, JobSpec, Phase
from trainmaster.model.policy import Policy
from trainmaster.model.scaling import amdahl
from trainmaster.model.units import MS_PER_S, NEVER_MS
from trainmaster.sim.run import RunResult, simulate
from trainmaster.sim.truth import TruthOptions
from trainmaster.testing.builders import a_job

STREAM_S = 24 * 3600
MAX_STEPS = 200_000


def small_workload(seed: int, n_jobs: int = 40) -> list[JobSpec]:
    """Rigid, elastic and worker/server jobs with some teams; all of them fit on 8 GPUs."""
    rng = np.random.Generator(np.random.PCG64([seed, 11]))
    jobs, at_s = [], 0.0
    for k in range(n_jobs):
        at_s += float(rng.exponential(40.0))
        length_s = float(np.exp(rng.uniform(2.0, 7.0)))
        kind = int(rng.integers(4))
        team = str(rng.choice(["", "blue", "red"]))
        name = f"job-{k:03d}"
        if kind == 0:
            job = a_job(name, elastic=(1, 4), seconds=length_s, scaling=amdahl(0.1), submit_s=at_s, entity=team)
        elif kind == 1:
            job = a_job(name, elastic=(1, 3), servers=(1, 3), seconds=length_s, submit_s=at_s, entity=team)
        else:
            job = a_job(name, gpus=int(rng.choice([1, 1, 2, 4, 8])), seconds=length_s, submit_s=at_s, entity=team)
        jobs.append(job)
    return jobs


def check_accounts_for_all(policy: Policy) -> None:
    """Every job finishes or is refused for good, no plan is refused; with and without costs and failures."""
    cluster = parse_cluster("v100=8x4")
    worlds = (
        ("free world", TruthOptions(), Settings(seed=1)),
        (
            "with costs",
            TruthOptions(restart_cost_ms=5_000, resize_cost_ms=2_000, launch_ms=500, stop_ms=700),
            Settings(seed=2),
        ),
        ("failing nodes", TruthOptions(node_mtbf_ms=1_800_000, node_repair_ms=60_000), Settings(seed=3)),
        ("in rounds", TruthOptions(), Settings(seed=4, round_ms=60_000)),
    )
    for name, truth, settings in worlds:
        jobs = small_workload(settings.seed)
        try:
            result = simulate(jobs, cluster, policy, settings, truth)
        except Exception as error:
            raise AssertionError(f"{name}: {type(error).__name__}: {error}") from error
        assert result.plans_refused == 0, f"{name}: {result.plans_refused} plans refused; {_first_refusal(result)}"
        odd = [end.spec.id for end in result.ended if end.phase not in (Phase.FINISHED, Phase.REJECTED, Phase.FAILED)]
        assert not odd, f"{name}: {odd[0]} ended otherwise than finished, failed or rejected"
        if truth.node_mtbf_ms == 0:
            failed = [end.spec.id for end in result.ended if end.phase == Phase.FAILED]
            assert not failed, f"{name}: {failed[0]} failed though nothing went wrong"


def _first_refusal(result: RunResult) -> str:
    return next((note for note in result.notes if note.startswith("plan refused")), "")


def saturating_stream(length_s: int = STREAM_S) -> list[JobSpec]:
    """Small jobs that overload 4 GPUs by a tenth for `length_s`, ending at staggered times, and a few
    large gangs among them which need the whole cluster or half of it."""
    jobs = [a_job(f"small-{k:05d}", seconds=400.0 + 37 * (k % 5), submit_s=100.0 * k) for k in range(length_s // 100)]
    for k, gpus in enumerate((4, 2, 4)):
        jobs.append(a_job(f"large-{k}", gpus=gpus, seconds=600.0, submit_s=950.0 + 1300.0 * k))
    return sorted(jobs, key=lambda job: (job.submit_ms, job.id))


def check_no_starvation(policy: Policy) -> None:
    """Under a stream that never lets up, large gangs and all early jobs start long before it ends."""
    cluster = parse_cluster("v100=4")
    jobs = saturating_stream()
    result = simulate(jobs, cluster, policy, Settings())
    bound_ms = STREAM_S * MS_PER_S // 2
    for end in result.ended:
        early = end.spec.submit_ms < bound_ms // 4
        if early and end.phase == Phase.FINISHED and end.first_start_ms - end.spec.submit_ms > bound_ms:
            waited_s = (end.first_start_ms - end.spec.submit_ms) // MS_PER_S
            raise AssertionError(
                f"{end.spec.id} ({end.spec.gpus:g} GPUs of 4) waited {waited_s} s of {STREAM_S} s; "
                "the policy is registered as fair"
            )


def check_never_fits_does_not_block(policy: Policy) -> None:
    """A job larger than the cluster, first in the queue, leaves the others unharmed: they all finish."""
    giant = a_job("giant", gpus=64, seconds=10.0)
    others = [replace(job, submit_ms=job.submit_ms + 1000) for job in small_workload(5, 20)]
    left = unfinished_after([giant, *others], policy, until_s=40_000.0)
    harmed = sorted(left - {giant.id})
    assert not harmed, f"{harmed[0]} and {len(harmed) - 1} others never finish while a job that can never fit waits"


def check_jobs_without_gpus_finish(policy: Policy) -> None:
    """Jobs that need no GPU finish too, alone in the cluster and beside others"""
    jobs = [
        a_job("alone", gpus=1, gpus_each=0, cpu=1),
        a_job("trains", gpus=4, submit_s=200.0),
        a_job("beside", gpus=1, gpus_each=0, cpu=1, submit_s=210.0),
        a_job("last", gpus=1, gpus_each=0, submit_s=900.0),
    ]
    left = unfinished_after(jobs, policy, until_s=40_000.0)
    assert not left, f"{sorted(left)[0]} and {len(left) - 1} others of {len(jobs)} never finish"


def unfinished_after(jobs: list[JobSpec], policy: Policy, until_s: float) -> set[JobId]:
    """Jobs not over at a time, in a free world: an own small loop, since `simulate` insists that all end."""
    from trainmaster.model.lease import LeaseRule
    from trainmaster.sim.backend import SimulatedBackend
    from trainmaster.sim.truth import Truth

    cluster = parse_cluster("v100=8x4")
    engine = Engine(cluster, policy, DeclaredSpeeds(), Settings(resend_ms=NEVER_MS // 2))
    backend = SimulatedBackend(cluster, Truth(cluster, TruthOptions(), 0), LeaseRule())
    left = {job.id for job in jobs}
    queue = sorted(jobs, key=lambda job: (job.submit_ms, job.id))
    for _ in range(MAX_STEPS):
        next_arrival = queue[0].submit_ms if queue else NEVER_MS
        now_ms = max(min(next_arrival, backend.next_ms, engine.next_wake_ms), engine.now_ms)
        if now_ms > until_s * MS_PER_S:
            break
        events = backend.advance(now_ms)
        while queue and queue[0].submit_ms <= now_ms:
            events.append(ev.JobSubmitted(queue.pop(0)))
        for command in engine.step(now_ms, *events):
            backend.perform(command)
        left -= {end.spec.id for end in engine.drain_ended()}
    return left
