"""An image for another cluster: nodes were added, or nodes on which nothing runs any more are gone.

Allocations name nodes and accelerator types by index; a changed cluster changes what the indices mean. What a
policy remembers may rest on the old machines, so its memory starts empty, as after a change of policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainmaster.engine.lifecycle import LIVE
from trainmaster.engine.ports import Estimator, JsonObject, StoredState
from trainmaster.model.cluster import Cluster, Node
from trainmaster.model.codec import spec_from_json
from trainmaster.model.errors import InputError
from trainmaster.model.job import PhaseCode
from trainmaster.model.reasons import Why


def remap_nodes(
    stored_state: StoredState, old: Cluster, new: Cluster, estimator: Estimator, *, requeue: bool = False
) -> StoredState:
    """`estimator` says what jobs do on types that were not there before. An `InputError` names a job that
    is, or may still be, on a node that is gone; with `requeue` it goes back to the queue instead, with what its
    checkpoint holds: for those who know that nothing runs there any more."""
    meta = stored_state.meta
    if meta is None or old.nodes == new.nodes:
        return stored_state
    index = {node.id: i for i, node in enumerate(new.nodes)}
    nodes = {i: index[node.id] for i, node in enumerate(old.nodes) if node.id in index and _same(node, new, index)}
    types = {i: new.types.index(name) for i, name in enumerate(old.types) if name in new.types} | {-1: -1}
    up = [True] * len(new.nodes)
    for before, after in nodes.items():
        up[after] = meta["up"][before]
    if requeue:
        kept = {key: _on_kept_nodes(record, nodes) for key, record in stored_state.jobs.items()}
        meta = {**meta, "reserved": [key for key in meta["reserved"] if kept[key]]}
        records = {key: r if kept[key] else _unplaced(r, meta["now_ms"]) for key, r in stored_state.jobs.items()}
        stored_state = StoredState(records, stored_state.ended, meta)
    return StoredState(
        jobs={key: _job(record, nodes, types, old, new, estimator) for key, record in stored_state.jobs.items()},
        ended=stored_state.ended,
        meta={
            **meta,
            "node_sets": {
                name: [nodes[node] for node in members if node in nodes]
                for name, members in meta.get("node_sets", {}).items()
            },
            "used": [[nodes[node], *amounts] for node, *amounts in meta.get("used", ()) if node in nodes],
            "nodes": [node.id for node in new.nodes],
            "up": up,
            "memo": {},
            "memo_shapes": {},
            "changed": True,
        },
    )


def _same(node: Node, new: Cluster, index: Mapping[str, int]) -> bool:
    """Whether what was placed on a node still means something: its devices are there and of their type."""
    now = new.nodes[index[node.id]]
    return now.accelerator == node.accelerator and now.gpus >= node.gpus


def _on_kept_nodes(record: Mapping[str, Any], nodes: Mapping[int, int]) -> bool:
    given = [record["allocation"], record["held"], (record["command"] or {}).get("allocation")]
    return all(part[0] in nodes for allocation in given if allocation is not None for part in allocation["parts"])


def _unplaced(record: Mapping[str, Any], now_ms: int) -> JsonObject:
    """Back to the queue with what its checkpoint holds."""
    ints, floats = dict(record["ints"]), dict(record["floats"])
    phase = ints["phase"]
    if phase in LIVE or phase == PhaseCode.RESERVED:
        after = ints["after_stop"] if phase in (PhaseCode.STOPPING, PhaseCode.LOST) else PhaseCode.PENDING
        # A cancelled job cannot be called over before its processes certainly are: it is paused until asked again.
        ints["phase"] = PhaseCode.PENDING if after in (PhaseCode.PENDING, PhaseCode.RESERVED) else PhaseCode.PAUSED
        ints["after_stop"], ints["reason"], ints["waiting_since_ms"] = PhaseCode.PENDING, int(Why.CAPACITY), now_ms
        floats["work_done"] = floats["work_saved"]
        floats["rate"] = 0.0
    return {
        **record,
        "ints": ints,
        "floats": floats,
        "allocation": None,
        "held": None,
        "command": None,
        "sent_ms": None,
        "last_seq": None,
        "doubts": [],
        "ended_on": [],
        "details": None,
        "blocker": None,
    }


def _job(
    record: Mapping[str, Any],
    nodes: Mapping[int, int],
    types: Mapping[int, int],
    old: Cluster,
    new: Cluster,
    estimator: Estimator,
) -> JsonObject:
    spec = spec_from_json(record["spec"])

    def moved(allocation: JsonObject | None) -> JsonObject | None:
        if allocation is None:
            return None
        gone = [old.nodes[part[0]].id for part in allocation["parts"] if part[0] not in nodes]
        if gone:
            raise InputError(
                f"job '{spec.id}' is still on node '{gone[0]}'",
                expected="nodes that are taken away to be empty",
                remedy="Report the node as lost first, so that the job moves.",
            )
        parts = [[nodes[part[0]], *part[1:]] for part in allocation["parts"]]
        return {**allocation, "accelerator": types[allocation["accelerator"]], "parts": parts}

    here, spread = estimator.profile(spec, new.types)
    learned = {"throughput": here.tolist(), "throughput_spread": spread.tolist()}
    for name, figures in learned.items():  # what was known of a type stays known
        for before, after in types.items():
            if before >= 0:
                figures[after] = record[name][before]
    command = record["command"]
    if command is not None and "allocation" in command:
        command = {**command, "allocation": moved(command["allocation"])}
    return {
        **record,
        **learned,
        "allocation": moved(record["allocation"]),
        "held": moved(record["held"]),
        "command": command,
        "doubts": [[nodes[node], end_ms] for node, end_ms in record["doubts"] if node in nodes],
        "ended_on": [nodes[node] for node in record["ended_on"] if node in nodes],
        "memo": {},
    }
