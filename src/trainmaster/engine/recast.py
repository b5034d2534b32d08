"""An image for another cluster: nodes were added, or nodes on which nothing runs any more are gone.

Allocations name nodes and accelerator types by index; a changed cluster changes what the indices mean. What a
policy remembers may rest on the old machines, so its memory starts empty, as after a change of policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainmaster.engine.ports import Estimator, Image, JsonObject
from trainmaster.model.cluster import Cluster
from trainmaster.model.codec import spec_from_json
from trainmaster.model.errors import InputError


def recast(image: Image, old: Cluster, new: Cluster, estimator: Estimator) -> Image:
    """`estimator` says what jobs do on types that were not there before. An `InputError` names a job that
    is, or may still be, on a node that is gone."""
    meta = image.meta
    if meta is None or old.nodes == new.nodes:
        return image
    index = {node.id: i for i, node in enumerate(new.nodes)}
    nodes = {i: index[node.id] for i, node in enumerate(old.nodes) if node.id in index}
    types = {i: new.types.index(name) for i, name in enumerate(old.types) if name in new.types} | {-1: -1}
    up = [True] * len(new.nodes)
    for before, after in nodes.items():
        up[after] = meta["up"][before]
    return Image(
        jobs={key: _job(record, nodes, types, old, new, estimator) for key, record in image.jobs.items()},
        ended=image.ended,
        meta={
            **meta,
            "nodes": [node.id for node in new.nodes],
            "up": up,
            "memo": {},
            "memo_shapes": {},
            "changed": True,
        },
    )


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
