"""Nodes that come, and nodes that become others while jobs are on them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from service_bench import Bench

from trainmaster.backends.kubernetes.nodes.cluster_model import NodeFacts
from trainmaster.backends.kubernetes.nodes.cluster_watch import ClusterWatch
from trainmaster.model.cluster import Node
from trainmaster.service.kubernetes.session import ChangeNodes


def _watch(*nodes: Node) -> ClusterWatch:
    watch = ClusterWatch(None)  # type: ignore[arg-type]
    watch.facts = {node.id: NodeFacts(node, "nvidia.com/gpu", True, False) for node in nodes}
    return watch


def test_a_node_with_another_label_keeps_its_type_while_jobs_are_on_it_and_others_come(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    (first,) = bench.cluster.nodes
    job = bench.submit(steps=10, workers={"min": 1, "max": 1})
    bench.pass_s(1)
    remaps: list[Any] = []
    relabelled, new = Node(first.id, "v100-shared", first.gpus), Node("new", "v100", 8)
    change = ChangeNodes(_watch(relabelled, new), SimpleNamespace(set_nodes=remaps.append))  # type: ignore[arg-type]
    assert bench.plane.batch([change]) == [None]
    assert [(node.id, node.accelerator) for node in bench.plane.cluster.nodes] == [(first.id, "v100"), ("new", "v100")]
    assert bench.state(job) == "running"
    bench.plane.batch([change])
    assert len(remaps) == 1, "nothing changed"
    bench.plane.batch([], bench.world.advance(60_000))
    assert bench.state(job) == "finished"
    assert bench.plane.batch([change]) == [None]
    assert [node.accelerator for node in bench.plane.cluster.nodes] == ["v100-shared", "v100"]


def test_a_new_leader_keeps_the_type_of_nodes_that_jobs_are_on() -> None:
    """Another type would take what is placed there for gone, and start it again while it lives."""
    listed = [Node("n0", "v100", 8)]
    watch = _watch(Node("n0", "v100-shared", 8), Node("n1", "v100", 8))
    assert watch.present(listed, held={"n0"}) == (listed[0], Node("n1", "v100", 8))
    assert watch.present(listed)[0].accelerator == "v100-shared"
