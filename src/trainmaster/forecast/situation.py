"""A moment of a live cluster, complete enough to go on from it in the simulator; also as a file.

It holds what the service believes, never a truth: speeds are the engine's estimates, unknown amounts of
work are guessed from jobs alike that have ended.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from trainmaster.engine.ports import StoredState
from trainmaster.engine.records import Settings
from trainmaster.forecast.arrivals import Arrivals
from trainmaster.model.cluster import Cluster, Node, cluster_of
from trainmaster.model.codec import spec_from_json, spec_to_json
from trainmaster.model.errors import InputError
from trainmaster.model.placement import Strategy

FORMAT = 1
UNKNOWN_WORK = (3600.0, 1.5)
"""Median (at the believed speed, in seconds) and sigma of work of which nothing is known: an hour, more or less."""


@dataclass(frozen=True)
class Belief:
    """About one job. `sigma`: relative spread of its speed, as known now; `work`: the amount in all, when
    the job does not say, as (median, sigma of its logarithm); `speeds`: by type on one node, then by type on several,
    where more is known than when the engine asked; `basis`: the jobs that all this rests on, in words; not `known`:
    no history says anything."""

    sigma: float = 0.25
    work: tuple[float, float] | None = None
    speeds: tuple[float, ...] | None = None
    basis: str = ""
    known: bool = True


@dataclass(frozen=True)
class Costs:
    """What changes cost here, as measured: milliseconds until a launched job is productive, until one that
    had run before is, for a resize in place, for a stop, and from a job's last step until its place is free."""

    launch_ms: int = 0
    restart_ms: int = 0
    resize_ms: int = 0
    stop_ms: int = 0
    exit_ms: int = 0


@dataclass(frozen=True)
class Situation:
    now_ms: int
    policy: str
    cluster: Cluster
    stored_state: StoredState
    settings: Settings = field(default_factory=Settings)
    beliefs: Mapping[str, Belief] = field(default_factory=dict)
    costs: Costs = field(default_factory=Costs)
    arrivals: Arrivals = field(default_factory=Arrivals)
    starting: Mapping[str, tuple[int, float]] = field(default_factory=dict)
    """Jobs whose processes run but have shown no progress yet: when they were launched, and the work they had then."""

    def belief(self, job_id: str) -> Belief:
        return self.beliefs.get(job_id, Belief())


def to_json(situation: Situation) -> dict[str, Any]:
    s = situation
    return {
        "format": FORMAT,
        "now_ms": s.now_ms,
        "policy": s.policy,
        "nodes": [asdict(node) for node in s.cluster.nodes],
        "prices": dict(s.cluster.price_per_hour),
        "settings": {
            "placement": s.settings.placement.value,
            "round_ms": s.settings.round_ms,
            "seed": s.settings.seed,
            "backoff_ms": s.settings.backoff_ms,
            "restart_cost_ms": s.settings.restart_cost_ms,
            "resize_cost_ms": s.settings.resize_cost_ms,
            "elastic_fill": s.settings.elastic_fill,
            "ask_after_start": s.settings.ask_after_start,
            "min_run_ms": s.settings.min_run_ms,
            "entity_weights": dict(s.settings.entity_weights),
            "entity_policies": dict(s.settings.entity_policies),
        },
        "beliefs": {job_id: vars(belief) for job_id, belief in sorted(s.beliefs.items())},
        "costs": vars(s.costs),
        "starting": {job_id: list(begun) for job_id, begun in sorted(s.starting.items())},
        "recent": [spec_to_json(replace(spec, payload={})) for spec in s.arrivals.specs],
        "jobs": _spelled({job_id: _without_payload(record) for job_id, record in s.stored_state.jobs.items()}),
        "meta": _spelled(s.stored_state.meta),
    }


def _without_payload(record: Mapping[str, Any]) -> dict[str, Any]:
    """How a job is started (command, environment) is not part of when it will be."""
    return {**record, "spec": {name: value for name, value in record["spec"].items() if name != "payload"}}


_SPELLED = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def _spelled(value: Any) -> Any:
    """Numbers that JSON does not have, which records may hold (an unknown price, an open end), as objects."""
    if isinstance(value, float):
        return value if math.isfinite(value) else {"number": str(value)}
    if isinstance(value, dict):
        return {key: _spelled(item) for key, item in value.items()}
    return [_spelled(item) for item in value] if isinstance(value, list | tuple) else value


def _read_spelled(value: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() == {"number"} and value["number"] in _SPELLED:
            return _SPELLED[value["number"]]
        return {key: _read_spelled(item) for key, item in value.items()}
    return [_read_spelled(item) for item in value] if isinstance(value, list) else value


def from_json(data: Any, file: str | None = None) -> Situation:
    """Strict about what it is; an `InputError` otherwise."""
    if not isinstance(data, dict) or data.get("format") != FORMAT or "meta" not in data:
        raise InputError(
            "this is not a situation of a cluster",
            expected=f"JSON as `trainmaster whatif --save` writes it, format {FORMAT}",
            file=file,
        )
    try:
        settings = dict(data["settings"])
        settings["placement"] = Strategy(settings["placement"])
        return Situation(
            now_ms=int(data["now_ms"]),
            policy=str(data["policy"]),
            cluster=cluster_of((Node(**node) for node in data["nodes"]), data["prices"]),
            stored_state=StoredState(jobs=_read_spelled(data["jobs"]), meta=_read_spelled(data["meta"])),
            settings=replace(Settings(), **settings),
            beliefs={job_id: _belief(b) for job_id, b in data["beliefs"].items()},
            costs=Costs(**data["costs"]),
            starting={job_id: (int(at_ms), float(work)) for job_id, (at_ms, work) in data.get("starting", {}).items()},
            arrivals=Arrivals(tuple(spec_from_json(item) for item in data["recent"])),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise InputError(f"the situation is damaged ({error})", expected="an unchanged export", file=file) from error


def _belief(data: Mapping[str, Any]) -> Belief:
    work, speeds = data["work"], data.get("speeds")
    return Belief(
        float(data["sigma"]),
        None if work is None else (float(work[0]), float(work[1])),
        None if speeds is None else tuple(map(float, speeds)),
        str(data.get("basis", "")),
        bool(data.get("known", True)),
    )


def load(path: Path) -> Situation:
    try:
        data = json.loads(path.read_text())
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", file=str(path)) from error
    except (ValueError, RecursionError) as error:
        raise InputError("is not JSON", expected="a situation", file=str(path)) from error
    return from_json(data, str(path))
