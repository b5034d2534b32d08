"""Another set of nodes than the store was written for: jobs are kept, what ran is to be started again.

Nodes count as the same when names, types and numbers of GPUs agree, in order. Otherwise nothing that was placed
means anything any more: every job goes back to the queue with what its checkpoint holds, and policies forget.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainmaster.engine.lifecycle import LIVE
from trainmaster.engine.ports import Commit, Estimator, Image, JsonObject
from trainmaster.model.cluster import Cluster
from trainmaster.model.codec import spec_from_json
from trainmaster.model.errors import InputError
from trainmaster.model.job import P
from trainmaster.model.reasons import Why
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
    text = ", ".join(f"{name} ({gpus} {kind})" for name, kind, gpus in shape[:6])
    return text + (f" and {len(shape) - 6} more" if len(shape) > 6 else "")


def renode(image: Image, cluster: Cluster, estimator: Estimator) -> Commit:
    """The commit that brings a store to this cluster."""
    assert image.meta is not None
    jobs: dict[str, JsonObject | None] = {
        job_id: _unplaced(record, cluster, estimator, image.meta["now_ms"]) for job_id, record in image.jobs.items()
    }
    meta = {
        **image.meta,
        "nodes": [node.id for node in cluster.nodes],
        "up": [True] * len(cluster.nodes),
        "reserved": [],
        "changed": True,
        "memo": {},
        "memo_shapes": {},
        "wake_at_ms": NEVER_MS,
        "next_resend_ms": NEVER_MS,
        "service": {**image.meta.get("service", {}), "shape": shape_of(cluster)},
    }
    return Commit(jobs, {}, meta)


def _unplaced(record: JsonObject, cluster: Cluster, estimator: Estimator, now_ms: int) -> JsonObject:
    here, spread = estimator.profile(spec_from_json(record["spec"]), cluster.types)
    ints, floats = dict(record["ints"]), dict(record["floats"])
    phase = ints["phase"]
    if phase in LIVE or phase == P.RESERVED:
        after = ints["after_stop"] if phase in (P.STOPPING, P.LOST) else P.PENDING
        # A cancelled job cannot be called over before its processes certainly are: it is paused until asked again.
        ints["phase"] = P.PENDING if after in (P.PENDING, P.RESERVED) else P.PAUSED
        ints["after_stop"], ints["reason"], ints["waiting_since_ms"] = P.PENDING, int(Why.CAPACITY), now_ms
        floats["work_done"] = floats["work_saved"]
        floats["rate"] = 0.0
    return {
        **record,
        "ints": ints,
        "floats": floats,
        "throughput": here.tolist(),
        "throughput_spread": spread.tolist(),
        "memo": {},
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
