"""What a fault seed begins with: a small cluster, jobs of every kind, a policy, users' actions."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from trainmaster.dst.engine.chaos_policy import ChaosPolicy
from trainmaster.engine.records import Settings
from trainmaster.model import event as ev
from trainmaster.model.cluster import Cluster, Node, cluster_of, counting_only_gpus
from trainmaster.model.job import NO_DEMAND, DeadlineKind, Demand, JobId, JobSpec
from trainmaster.model.lease import LeaseRule
from trainmaster.model.placement import Strategy
from trainmaster.model.policy import Policy
from trainmaster.model.scaling import Scaling, amdahl
from trainmaster.model.units import NEVER_MS
from trainmaster.policies.registry import create, entries
from trainmaster.sim.truth import TruthOptions

RESTLESS_SHARE = 0.4
"""Part of the seeds that run under the policy which uses every command."""
COUNTED_SHARE = 0.15
"""Part of the seeds in which only GPUs count, wherever they are."""


@dataclass(frozen=True)
class Scenario:
    cluster: Cluster
    specs: tuple[JobSpec, ...]
    policy_name: str
    policy: Policy
    settings: Settings
    truth: TruthOptions
    actions: tuple[tuple[int, ev.UserEvent], ...]
    """What users do, and when; submissions included."""
    later_policies: tuple[tuple[str, Policy], ...] = ()
    """Those to which the operator changes, one for each `PolicyChanged` among the actions."""


def draw_scenario(rng: np.random.Generator, seed: int) -> Scenario:
    cluster = _draw_cluster(rng)
    specs = tuple(_draw_job(rng, cluster, i) for i in range(int(rng.integers(6, 13))))
    name, policy = _draw_policy(rng)
    truth = TruthOptions(
        restart_cost_ms=int(rng.choice([0, 2_000])),
        resize_cost_ms=int(rng.choice([0, 500])),
        launch_ms=int(rng.choice([0, 1_500])),
        stop_ms=int(rng.choice([0, 700])),
        spread_penalty=0.2,
        interference=float(rng.choice([0.0, 0.3])),
        noise=float(rng.choice([0.0, 0.1])),
        checkpoint_period_ms=int(rng.choice([0, 10_000])),
    )
    placements = (Strategy.PACK, Strategy.SPREAD, Strategy.FIRST_FIT, Strategy.BEST_FIT)
    settings = Settings(
        placement=placements[int(rng.integers(len(placements)))],
        round_ms=None if rng.random() < 0.75 else 10_000,
        seed=seed,
        lease=LeaseRule(lease_ms=int(rng.choice([15_000, 30_000]))),
        restart_cost_ms=truth.restart_cost_ms,
    )
    actions = _draw_actions(rng, specs)
    # Drawn apart, so that what a seed has always meant stays the same.
    apart = np.random.Generator(np.random.PCG64([seed, 22]))
    if apart.random() < COUNTED_SHARE:
        cluster, settings = counting_only_gpus(cluster), replace(settings, placement=Strategy.COUNT)
    later = tuple(_draw_policy(apart) for _ in range(int(apart.choice([0, 0, 1, 2]))))
    changes = [(int(apart.integers(1, 300_000)), ev.PolicyChanged()) for _ in later]
    settings = replace(settings, elastic_fill=bool(apart.random() < 0.3))
    ordered = tuple(sorted([*actions, *changes], key=lambda action: action[0]))
    return Scenario(cluster, specs, name, policy, settings, truth, ordered, later)


def _draw_cluster(rng: np.random.Generator) -> Cluster:
    types = ("a100", "v100")[: int(rng.integers(1, 3))]
    nodes = []
    for kind in types:
        for _ in range(int(rng.integers(2, 4))):
            gpus = int(rng.choice([2, 4]))
            nodes.append(
                Node(
                    f"n{len(nodes)}",
                    kind,
                    gpus,
                    cpu_milli=4_000 * gpus + 6_000,
                    mem_mib=65_536,
                    rack=f"r{len(nodes) % 2}",
                )
            )
    return cluster_of(nodes)


def _draw_policy(rng: np.random.Generator) -> tuple[str, Policy]:
    if rng.random() < RESTLESS_SHARE:
        return "chaos", ChaosPolicy()
    names = [entry.name for entry in entries()]
    name = names[int(rng.integers(len(names)))]
    if name == "fifo" and rng.random() < 0.5:
        name = "fifo:backfill=true"
    return name, create(name)


def _draw_job(rng: np.random.Generator, cluster: Cluster, index: int) -> JobSpec:
    """Every job fits into the cluster when that is whole and empty."""
    kind = str(rng.choice(["rigid", "rigid", "elastic", "elastic", "fraction", "servers"]))
    low, high, servers = 1, 1, (0, 0)
    worker, server = Demand(cpu_milli=int(rng.choice([0, 1_000, 2_000]))), NO_DEMAND
    if kind == "rigid":
        low = high = int(rng.integers(1, 5))
    elif kind == "elastic":
        low, high = int(rng.integers(1, 3)), int(rng.integers(2, 5))
    elif kind == "fraction":
        worker = Demand(gpu_milli=int(rng.choice([250, 500, 600])), cpu_milli=500)
        low, high = 1, int(rng.integers(1, 4))
    else:
        low, high, servers = 1, int(rng.integers(1, 4)), (1, int(rng.integers(1, 3)))
        server = Demand(gpu_milli=0, cpu_milli=int(rng.choice([1_000, 2_000])), mem_mib=1_024)
    speeds = {}
    if rng.random() < 0.5:
        speeds = {name: float(rng.choice([0.5, 1.0, 2.0])) for name in cluster.types}
    gpu_types = (str(rng.choice(cluster.types)),) if rng.random() < 0.3 else ()
    soft = rng.random() < 0.2
    submit_ms = int(rng.integers(0, 150_000))
    return JobSpec(
        id=JobId(f"job-{index}"),
        submit_ms=submit_ms,
        workers_min=min(low, high),
        workers_max=high,
        workers_ref=int(rng.integers(min(low, high), high + 1)),
        servers_min=servers[0],
        servers_max=servers[1],
        servers_ref=servers[0],
        worker=worker,
        server=server,
        gpu_types=gpu_types,
        work_total=float(rng.integers(20, 300)),
        steps_per_s=speeds,
        scaling=amdahl(0.1) if rng.random() < 0.5 else Scaling(),
        weight=float(rng.choice([1.0, 2.0])),
        priority=int(rng.integers(0, 3)),
        entity=str(rng.choice(["", "red", "blue"])),
        deadline_ms=submit_ms + 600_000 if soft else NEVER_MS,
        deadline_kind=DeadlineKind.SOFT if soft else DeadlineKind.NONE,
        max_attempts=int(rng.choice([2, 4, 8])),
        preemptible=bool(rng.random() < 0.85),
    )


def _draw_actions(rng: np.random.Generator, specs: tuple[JobSpec, ...]) -> tuple[tuple[int, ev.UserEvent], ...]:
    actions: list[tuple[int, ev.UserEvent]] = []
    for spec in specs:
        at_ms = spec.submit_ms
        actions.append((at_ms, ev.JobSubmitted(spec)))
        if rng.random() < 0.2:  # a client that is not sure whether it was heard
            actions.append((at_ms + int(rng.integers(1, 300_000)), ev.JobSubmitted(spec)))
        if rng.random() < 0.15:
            actions.append((at_ms + int(rng.integers(0, 120_000)), ev.JobCancelled(spec.id)))
        if rng.random() < 0.3:
            pause_ms = at_ms + int(rng.integers(0, 90_000))
            actions.append((pause_ms, ev.JobPaused(spec.id)))
            actions.append((pause_ms + int(rng.integers(0, 40_000)), ev.JobResumed(spec.id)))
        if spec.elastic and rng.random() < 0.3:
            low = int(rng.integers(1, 3))
            change = ev.JobRangeChanged(spec.id, low, int(rng.integers(low, 5)))
            actions.append((at_ms + int(rng.integers(0, 90_000)), change))
    return tuple(sorted(actions, key=lambda action: action[0]))
