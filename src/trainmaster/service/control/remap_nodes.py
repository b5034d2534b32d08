"""Another set of nodes than the store was written for: jobs are kept, and start again where nodes are gone or others.

Nodes count as the same when names, types and numbers of GPUs agree. A job with a node that is not the same goes back
to the queue with what its checkpoint holds, and policies forget (`engine.remap_nodes`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainmaster.engine.ports import Commit, Estimator, StoredState
from trainmaster.engine.remap_nodes import remap_nodes
from trainmaster.model.cluster import Cluster, Node
from trainmaster.model.errors import InputError
from trainmaster.model.units import NEVER_MS


def shape_of(cluster: Cluster) -> list[list[Any]]:
    """What of a cluster placements depend on, as JSON data."""
    return [[node.id, node.accelerator, node.gpus] for node in cluster.nodes]


def check_shape(meta: Mapping[str, Any], cluster: Cluster) -> None:
    """`InputError` when the store speaks of other nodes."""
    before = meta.get("service", {}).get("shape")
    now = shape_of(cluster)
    if before is not None and before != now:
        raise InputError(
            f"the store was written for other nodes: {_told(before)}, not {_told(now)}",
            "the nodes it was written for",
            "Start with the same --nodes, or with --reset-nodes: jobs are kept, and what ran starts again.",
            column="--nodes",
        )


def _told(shape: list[list[Any]]) -> str:
    text = ", ".join(f"{name} ({gpus} {gpu_type})" for name, gpu_type, gpus in shape[:6])
    return text + (f" and {len(shape) - 6} more" if len(shape) > 6 else "")


def cluster_of_shape(shape: list[list[Any]]) -> Cluster:
    """The nodes that a store was written for, as far as placements depend on them."""
    return Cluster(tuple(Node(name, gpu_type, gpus) for name, gpu_type, gpus in shape), {})


def followed(stored_state: StoredState, cluster: Cluster, estimator: Estimator) -> StoredState:
    """The image for the nodes that there are now. Nodes that jobs are on must be among them, or the jobs start anew."""
    shape = (stored_state.meta or {}).get("service", {}).get("shape")
    if shape is None or shape == shape_of(cluster):
        return stored_state
    return remap_nodes(stored_state, cluster_of_shape(shape), cluster, estimator, requeue=True)


def moved_to(stored_state: StoredState, cluster: Cluster, estimator: Estimator) -> Commit:
    """The commit that brings a store to this cluster."""
    assert stored_state.meta is not None
    service = stored_state.meta.get("service", {})
    moved = remap_nodes(stored_state, cluster_of_shape(service.get("shape") or []), cluster, estimator, requeue=True)
    assert moved.meta is not None
    meta = {**moved.meta, "wake_at_ms": NEVER_MS, "service": {**service, "shape": shape_of(cluster)}}
    return Commit(moved.jobs, {}, meta)
