"""Ordered sets of nodes and of waiting jobs give what a look at all of them gives."""

from __future__ import annotations

import numpy as np
import pytest

from trainmaster.core.codes import PACK
from trainmaster.core.engine.placement import Placer
from trainmaster.core.node_index import NodeIndex
from trainmaster.engine.records import Settings
from trainmaster.engine.state import nodes_of
from trainmaster.estimate.declared import DeclaredSpeeds
from trainmaster.model.capacity.free_resources import FreeCapacity
from trainmaster.model.cluster import parse_cluster
from trainmaster.policies.registry import create
from trainmaster.sim.metrics import job_table
from trainmaster.sim.run import simulate
from trainmaster.sim.truth import TruthOptions
from trainmaster.sim.workload import workload
from trainmaster.traces.generator import GeneratorSpec, generate


class Observing(DeclaredSpeeds):
    """Speeds might change while a job waits, so no pass keeps an order."""

    def observe(self, *_: object) -> None:
        pass


def _tightest(free: np.ndarray, fits: np.ndarray) -> int:
    """By a walk over all nodes: fewest whole devices free, the first of those."""
    nodes = np.flatnonzero(fits)
    return int(nodes[np.argmin(free[nodes])]) if len(nodes) else -1


@pytest.mark.parametrize("seed", range(20))
def test_the_tightest_node_is_that_of_a_walk(seed: int) -> None:
    rng = np.random.Generator(np.random.PCG64(seed))
    cluster = parse_cluster("a=80x8,b=128x64,c=12x4")
    up = np.ones(len(cluster.nodes), np.bool_)
    nodes, free_capacity = nodes_of(cluster, up), FreeCapacity.full(cluster)
    placer = Placer(PACK, nodes)
    for _ in range(60):
        node = int(rng.integers(len(up)))
        up[node] = rng.random() < 0.8
        nodes.changes += 1
        placer.open_set(0)
        kind, need = int(rng.integers(3)), int(rng.integers(1, 9))
        demand = placer.demand
        demand.workers, demand.devices_each, demand.share = 1, need, 1000
        placer.begin()
        expected = _tightest(free_capacity.whole, up & (cluster.type_of == kind) & (free_capacity.whole >= need))
        assert placer.place_gang(kind, free_capacity) == (expected >= 0)
        if expected >= 0:
            assert placer.flat.values[3] == expected
        index = NodeIndex(cluster.type_of, 3, free_capacity.device_milli, free_capacity.whole)
        assert free_capacity.index is not None
        assert np.array_equal(np.asarray(free_capacity.index.tree), np.asarray(index.tree))
        assert list(free_capacity.index.whole_of_type) == list(index.whole_of_type)
        assert list(free_capacity.index.milli_of_type) == list(index.milli_of_type)


WORLDS = {
    "calm": TruthOptions(),
    "failures": TruthOptions(
        restart_cost_ms=30_000, stop_ms=5_000, exit_ms=500, node_mtbf_ms=40_000_000, checkpoint_period_ms=600_000
    ),
}


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("policy", ["fifo", "fifo:backfill=true", "sjf", "srtf", "las", "tiresias", "edf"])
def test_a_pass_that_follows_changes_decides_as_one_that_lists_all(policy: str, world: str) -> None:
    """Jobs have names in the second run alone, so reports of lost nodes mean the same without."""
    cluster = parse_cluster("v100=40x8")
    mix = {1: 0.5, 2: 0.2, 4: 0.1, 8: 0.1, 12: 0.1}
    jobs = workload(generate(GeneratorSpec(jobs=400, cluster_gpus=40, load=1.5, gpu_mix=mix), 5), cluster).specs
    followed, listed = (
        simulate(jobs, cluster, create(policy), Settings(), WORLDS[world], estimator=estimator)
        for estimator in (DeclaredSpeeds(), Observing())
    )
    assert job_table(followed).equals(job_table(listed))
    assert followed.decisions == listed.decisions
