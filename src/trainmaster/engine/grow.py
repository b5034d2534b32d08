"""More nodes, or larger ones, while jobs run: nothing that is placed changes its meaning.

Nodes that were there keep their index; types stay the same. Another change of the cluster is one of the image
(`remap_nodes`). What a policy remembers of jobs stays; one that remembers nodes (`remembers_nodes`) begins anew.
"""

from __future__ import annotations

import numpy as np

from trainmaster.engine import learned_speeds
from trainmaster.engine.deciding.admission_gate import apply_cap
from trainmaster.engine.state import State, nodes_of
from trainmaster.model import event as ev
from trainmaster.model.capacity.free_resources import FreeCapacity
from trainmaster.model.cluster import Cluster
from trainmaster.model.policy import traits_of
from trainmaster.model.units import GPU_MILLI


def can_grow(old: Cluster, new: Cluster) -> bool:
    """Whether `new` is `old` with more."""
    if len(new.nodes) < len(old.nodes) or old.types != new.types:
        return False
    return all(
        (a.id, a.accelerator) == (b.id, b.accelerator)
        and a.gpus <= b.gpus
        and a.cpu_milli <= b.cpu_milli
        and a.mem_mib <= b.mem_mib
        for a, b in zip(old.nodes, new.nodes, strict=False)
    )


def grew(state: State, event: ev.ClusterGrew) -> None:
    old, new = state.cluster, event.cluster
    if not can_grow(old, new):
        state.notes.append("refused a change of nodes: nodes may only be added or enlarged")
        return
    if old.nodes == new.nodes:
        return
    up = np.ones(len(new.nodes), np.bool_)
    up[: len(old.nodes)] = state.up
    state.up = up
    state.cluster = state.columns.cluster = new
    state.nodes = nodes_of(new, up)
    state.planned = _grown(state.planned, old, new)
    state.physical = _grown(state.physical, old, new)
    if traits_of(state.policy).remembers_nodes:
        state.memo_values = {}
        state.memo_columns = set()
        state.columns.memo.clear()
    for job_index in state.columns.rows.tolist():  # what did not fit may fit now
        if state.columns.spec(job_index).elastic:
            apply_cap(state, job_index)
    learned_speeds.believe_all(state)  # what does not fit on one node now, may then
    state.changed = True


def _grown(free_capacity: FreeCapacity, old: Cluster, new: Cluster) -> FreeCapacity:
    """What was free, and what was added."""
    grown = FreeCapacity.full(new)
    n, width = len(old.nodes), free_capacity.device_milli.shape[1]
    more = new.gpus[:n] - old.gpus
    grown.device_milli[:n, :width] = free_capacity.device_milli
    for node in np.flatnonzero(more).tolist():
        grown.device_milli[node, old.gpus[node] : new.gpus[node]] = GPU_MILLI
    grown.whole[:n] = free_capacity.whole + more
    grown.cpu_milli[:n] = free_capacity.cpu_milli + (new.cpu_milli[:n] - old.cpu_milli)
    grown.mem_mib[:n] = free_capacity.mem_mib + (new.mem_mib[:n] - old.mem_mib)
    return grown
