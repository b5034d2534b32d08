"""Random scenes for contract checks: clusters, jobs of every kind, some of them running, nodes down, pauses.

A scene is drawn from a seed alone and can be shown with its rows in any order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from trainmaster.model.cluster import Cluster, Node, cluster_of
from trainmaster.model.job import DeadlineKind, JobId, JobSpec, Phase
from trainmaster.model.placement import STRATEGY_NAMES
from trainmaster.model.policy_state import EMPTY_POLICY_STATE, PolicyState
from trainmaster.model.scaling import LINEAR, Scaling, amdahl
from trainmaster.model.snapshot import Snapshot
from trainmaster.testing.builders import Held, a_job, a_view

KINDS = ("rigid", "wide", "elastic", "servers", "fraction", "cpu-only")


@dataclass(frozen=True)
class Scene:
    """A snapshot's ingredients."""

    seed: int
    cluster: Cluster
    jobs: tuple[JobSpec, ...]
    running: dict[str, Held]
    down: tuple[int, ...] = ()
    backoff_until_s: dict[str, float] = field(default_factory=dict)
    paused: tuple[str, ...] = ()
    placement: str = "pack"
    now_s: float = 10_000.0
    restart_cost_ms: int = 0
    entity_weights: dict[str, float] = field(default_factory=dict)
    round_ms: int | None = None

    def view(self, row_order: Sequence[int] | None = None, memo: PolicyState = EMPTY_POLICY_STATE) -> Snapshot:
        return a_view(
            self.jobs,
            self.cluster,
            running=self.running,
            down=self.down,
            placement=self.placement,
            now_s=self.now_s,
            backoff_until_s=self.backoff_until_s,
            paused=self.paused,
            row_order=row_order,
            memo=memo,
            restart_cost_ms=self.restart_cost_ms,
            entity_weights=self.entity_weights,
            seed=self.seed,
            round_ms=self.round_ms,
        )

    def describe(self) -> str:
        kinds = f"{len(self.jobs)} jobs ({len(self.running)} holding, {len(self.backoff_until_s)} pausing)"
        where = f"{self.cluster.describe()}, {len(self.down)} nodes down, {self.placement}"
        return f"scene {self.seed}: {kinds} on {where}"


def random_scene(seed: int, n_jobs: int | None = None) -> Scene:
    """The scene of a seed: always the same."""
    rng = np.random.Generator(np.random.PCG64([seed, 0x5CE4E]))
    placement = STRATEGY_NAMES[int(rng.integers(len(STRATEGY_NAMES)))]
    cluster = _cluster(rng, limited=placement != "count" and rng.random() < 0.6)
    n_jobs = int(rng.integers(0, 24)) if n_jobs is None else n_jobs
    jobs = tuple(_job(rng, k, cluster) for k in range(n_jobs))
    down = tuple(node for node in range(len(cluster.nodes)) if rng.random() < 0.1)
    scene = Scene(
        seed,
        cluster,
        jobs,
        {},
        down if len(down) < len(cluster.nodes) else (),
        placement=placement,
        restart_cost_ms=int(rng.choice([0, 0, 30_000])),
        entity_weights={"blue": 2.0} if rng.random() < 0.5 else {},
        round_ms=int(rng.choice([60_000, 360_000])) if rng.random() < 0.3 else None,
    )
    return _with_holders(rng, scene)


def _cluster(rng: np.random.Generator, limited: bool) -> Cluster:
    types = ["a100", "k80", "v100"][: int(rng.integers(1, 4))]
    per_node = int(rng.choice([1, 2, 4, 8]))
    nodes = []
    for name in types:
        for k in range(int(rng.integers(1, 5))):
            node = Node(f"{name}-{k}", name, per_node, rack=f"r{k % 2}")
            if limited:
                node = replace(node, cpu_milli=per_node * 4000, mem_mib=per_node * 16_384)
            nodes.append(node)
    return cluster_of(nodes, {name: 1.0 + k for k, name in enumerate(types)})


def _job(rng: np.random.Generator, number: int, cluster: Cluster) -> JobSpec:
    kind = KINDS[int(rng.choice(len(KINDS), p=[0.35, 0.1, 0.25, 0.15, 0.1, 0.05]))]
    name = f"{rng.integers(0, 10_000):04d}-{number}-{kind}"
    job = _shape(rng, name, kind)
    submit_s = float(rng.integers(0, 9_000))
    job = replace(
        job,
        submit_ms=int(submit_s * 1000),
        work_total=None if rng.random() < 0.05 else float(np.exp(rng.uniform(0.0, 10.0))),
        weight=float(rng.choice([1.0, 1.0, 2.0])),
        priority=int(rng.integers(0, 3)),
        entity=str(rng.choice(["", "blue", "red"])),
        preemptible=bool(rng.random() < 0.9),
        epochs_total=10.0,
    )
    if rng.random() < 0.25:
        wanted = str(rng.choice(list(cluster.types)))
        job = replace(job, gpu_types=(wanted,))
    if rng.random() < 0.5:
        job = replace(job, steps_per_s={t: float(rng.uniform(0.5, 8.0)) for t in cluster.types})
    if rng.random() < 0.3:
        deadline = job.submit_ms + int(rng.integers(1_000, 30_000_000))
        job = replace(job, deadline_ms=deadline, deadline_kind=DeadlineKind(int(rng.integers(1, 3))))
    return job


def _shape(rng: np.random.Generator, name: str, kind: str) -> JobSpec:
    cpu, mem = float(rng.choice([0, 1, 4])), int(rng.choice([0, 4096]))
    curves: tuple[Scaling, ...] = (
        LINEAR,
        amdahl(0.2),
        Scaling(points=((1, 1.0), (2, 1.8), (4, 2.9))),
        Scaling(a=4.0, b=0.1, d=0.2),
    )
    curve = curves[int(rng.integers(len(curves)))]
    if kind == "rigid":
        return a_job(name, gpus=int(rng.choice([1, 1, 2, 4, 8, 16])), cpu=cpu, mem_mib=mem)
    if kind == "wide":
        return a_job(name, gpus=4 * int(rng.integers(1, 3)), gpus_each=int(rng.choice([2, 4])), cpu=cpu)
    if kind == "fraction":
        least = int(rng.integers(1, 3))
        return a_job(name, gpus_each=float(rng.choice([0.25, 0.5])), elastic=(least, least + int(rng.integers(0, 3))))
    if kind == "cpu-only":
        return a_job(name, gpus=1, gpus_each=0, cpu=1)
    least = int(rng.integers(1, 3))
    most = least + int(rng.integers(1, 8))
    if kind == "elastic":
        return a_job(
            name,
            elastic=(least, most),
            cpu=cpu,
            mem_mib=mem,
            scaling=curve,
            gpus_each=int(rng.choice([1, 1, 2])),
        )
    servers = (int(rng.integers(0, 2)), int(rng.integers(1, 5)))
    curve = Scaling(a=10.0, b=0.1, c=0.5, d=0.05, e=0.02)
    return a_job(
        name,
        elastic=(least, most),
        servers=servers,
        cpu=cpu,
        server_cpu=1,
        server_mem_mib=1024,
        scaling=curve,
    )


def _with_holders(rng: np.random.Generator, scene: Scene) -> Scene:
    """Let jobs hold what they can, one after the other, as long as the scene can be built."""
    running: dict[str, Held] = {}
    pausing: dict[str, float] = {}
    paused: list[str] = []
    for job in scene.jobs:
        draw = rng.random()
        workers = int(rng.integers(job.workers_min, job.workers_max + 1))
        servers = int(rng.integers(job.servers_min, job.servers_max + 1))
        phase = Phase(int(rng.choice([Phase.RUNNING] * 5 + [Phase.RESERVED, Phase.LAUNCHING, Phase.RESIZING])))
        done = float(rng.random()) * (job.work_total or 100.0)
        if phase == Phase.RESIZING and not job.elastic:
            phase = Phase.RUNNING
        if draw < 0.45:
            held = Held(
                workers,
                servers,
                phase,
                since_s=scene.now_s - 100.0,
                work_done=done,
                service_gpu_s=10.0 * workers,
            )
            trial = replace(scene, running={**running, job.id: held})
            try:
                trial.view()
            except ValueError:
                continue
            running = dict(trial.running)
        elif draw < 0.52:
            pausing[job.id] = scene.now_s + 50.0
        elif draw < 0.56:
            paused.append(JobId(job.id))
    return replace(scene, running=running, backoff_until_s=pausing, paused=tuple(paused))
