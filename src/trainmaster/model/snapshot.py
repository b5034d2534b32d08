"""What a policy sees: a frozen view of cluster and jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from trainmaster.core.arrays import Ints
from trainmaster.core.engine.placement import Placer
from trainmaster.core.state.cluster_arrays import ClusterArrays
from trainmaster.model.cluster import Cluster
from trainmaster.model.free_resources import FreeCapacity
from trainmaster.model.job import PhaseCode
from trainmaster.model.job_table import JobTable
from trainmaster.model.placement import Strategy
from trainmaster.model.plan_builder import PlanBuilder
from trainmaster.model.policy_state import EMPTY_POLICY_STATE, PolicyState
from trainmaster.model.units import GPU_MILLI

PairKept = Callable[..., "npt.NDArray[np.float64] | None"]
"""(spec_a, spec_b, types[, probability]): the parts of their speeds alone that two jobs keep, J x 2."""


@dataclass(frozen=True)
class Snapshot:
    """The world as the engine believes it at `now_ms`. `free_capacity` is what is free for planning: devices of
    jobs that are being stopped count as free, because the engine launches on them only once they are."""

    version: int
    now_ms: int
    cluster: Cluster
    up: npt.NDArray[np.bool_]
    free_capacity: FreeCapacity
    jobs: JobTable
    memo: PolicyState = EMPTY_POLICY_STATE
    placement: Strategy = Strategy.PACK
    round_ms: int | None = None
    seed: int = 0
    entity_weights: Mapping[str, float] = field(default_factory=dict)
    entity_policies: Mapping[str, str] = field(default_factory=dict)
    """How the jobs of a team divide what it gets, where the operator has said so."""
    restart_cost_ms: int = 0
    resize_cost_ms: int = 0
    pair_source: PairKept | None = None
    """What the estimator knows of jobs that share their devices; None: nothing."""
    pairs_version: int = 0
    """Grows when the estimator would offer other pairs than before."""
    node_sets: Mapping[str, npt.NDArray[np.bool_]] = field(default_factory=dict)
    """Sets of nodes, by name, that leave some node out."""

    @cached_property
    def free_gpus_by_type(self) -> npt.NDArray[np.float64]:
        free = self.free_capacity.device_milli.sum(axis=1) * self.up / GPU_MILLI
        return np.bincount(self.cluster.type_of, weights=free, minlength=len(self.cluster.types)).astype(np.float64)

    def acceptable(self, row: int) -> npt.NDArray[np.bool_] | None:
        """The nodes that a job may be given; None: all."""
        return self.node_sets.get(self.jobs.spec(row).node_set) if self.node_sets else None

    def open_to(self, row: int) -> npt.NDArray[np.bool_]:
        """Those of them that are up."""
        acceptable = self.acceptable(row)
        return self.up if acceptable is None else self.up & acceptable

    def waiting_rows(self) -> Ints:
        """Jobs that could be started now, in order of arrival."""
        return self._ready(with_running=False)

    def movable_rows(self) -> Ints:
        """Jobs that could be started or preempted now, in order of arrival."""
        return self._ready(with_running=True)

    def in_arrival_order(self, rows: Ints) -> Ints:
        """The same rows, first come first (decisions must not depend on how rows happen to lie)."""
        return rows[np.argsort(self.jobs.arrival[rows], kind="stable")]

    def _ready(self, with_running: bool) -> Ints:
        jobs = self.jobs
        phase = jobs.phase
        ready = (phase == PhaseCode.PENDING) & (jobs.not_before_ms <= self.now_ms)
        if with_running:
            ready |= (phase == PhaseCode.RESERVED) | ((phase == PhaseCode.RUNNING) & (jobs.preemptible > 0))
        return self.in_arrival_order(np.flatnonzero(ready))

    @cached_property
    def nodes(self) -> ClusterArrays:
        cluster = self.cluster
        return ClusterArrays(cluster.type_of, cluster.gpus, cluster.rack_of, len(cluster.types), self.up)

    @cached_property
    def placer(self) -> Placer:
        """Places gangs by the strategy of this snapshot, each on the nodes that its job may use."""
        placer = Placer(int(self.placement), self.nodes)
        if self.node_sets:
            names = self.jobs.columns.node_set_names
            everywhere = np.ones(len(self.cluster.nodes), np.bool_)
            placer.set_masks(np.stack([self.node_sets.get(name, everywhere) for name in names]))
        return placer

    def rng(self, salt: int = 0) -> np.random.Generator:
        """Random numbers that depend only on seed, version and salt, so that a replay draws the same."""
        return np.random.Generator(np.random.PCG64([self.seed, self.version, salt]))

    def pair_speeds(self, row_a: int, row_b: int, probability: float = 0.5) -> npt.NDArray[np.float64] | None:
        """Steps per second of both jobs (columns) when they share the same devices, by type (rows), that each exceeds
        with this probability; 0 where they cannot or nothing is known. None: nothing is known of them at all."""
        if self.pair_source is None:
            return None
        asked = self.jobs.spec(row_a), self.jobs.spec(row_b), self.cluster.types
        kept = self.pair_source(*asked) if probability == 0.5 else self.pair_source(*asked, probability)
        if kept is None:
            return None
        return self.jobs.throughput[[row_a, row_b]].T * kept * self._shareable_types[:, None]

    @cached_property
    def _shareable_types(self) -> npt.NDArray[np.bool_]:
        """Types of which every node lets two jobs on one device: which node a gang gets is decided later."""
        cluster = self.cluster
        return np.bincount(cluster.type_of, ~cluster.shareable, len(cluster.types)) == 0

    def draft(self) -> PlanBuilder:
        return PlanBuilder(self)
