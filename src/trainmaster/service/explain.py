"""Reasons of many jobs at once: what they share (who holds which types) is worked out once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from trainmaster.engine.core import Engine
from trainmaster.model.job import JobId
from trainmaster.model.reasons import MAX_HOLDERS, Reason, Why, render, size_short_of
from trainmaster.model.units import GPU_MILLI


class Explainer:
    """The same reasons as `Engine.reason`, for a page of jobs."""

    def __init__(self, engine: Engine, slow_starts: Mapping[str, str] | None = None) -> None:
        """`slow_starts`: what a backend says of jobs that start."""
        self.engine = engine
        self._slow_starts = slow_starts or {}
        self._free = self._free_gpus()
        self._by_types: dict[bytes, tuple[dict[str, float], tuple[tuple[JobId, float], ...]]] = {}

    def _free_gpus(self) -> list[float]:
        engine = self.engine
        free = engine.planned.device_milli.sum(axis=1) * engine.up / GPU_MILLI
        return np.bincount(engine.cluster.type_of, weights=free, minlength=len(engine.cluster.types)).tolist()

    def reason(self, slot: int) -> Reason | None:
        engine = self.engine
        why = engine.why(slot)
        if why == Why.NONE:
            return None
        ints = engine.columns.ints
        free, holders = self._shared(slot)
        missing_type = max(free, key=lambda name: (free[name], name)) if free else ""
        most_free = free.get(missing_type, 0.0)
        sizes = int(ints["workers_min"][slot]), int(ints["workers_ask"][slot])
        need, fewer = size_short_of(why, sizes, int(ints["worker_gpu_milli"][slot]) / GPU_MILLI, most_free)
        blocker = int(ints["blocker"][slot])
        spec = engine.columns.specs[blocker] if blocker >= 0 else None
        details = {**(engine.reason_details(slot) or {}), **fewer}
        if why == Why.STARTING and (slow := self._slow_starts.get(engine.columns.spec(slot).id)):
            details["slow"] = slow
        return Reason(
            why=why,
            needs_gpus=need,
            free=free,
            holders=holders,
            missing_gpus=max(0.0, need - most_free),
            missing_type=missing_type,
            behind=None if spec is None or why != Why.BEHIND else spec.id,
            details=details,
        )

    def _shared(self, slot: int) -> tuple[dict[str, float], tuple[tuple[JobId, float], ...]]:
        columns, names = self.engine.columns, self.engine.cluster.types
        allowed = columns.allowed[slot]
        key = allowed.tobytes()
        if key not in self._by_types:
            free = {name: self._free[k] for k, name in enumerate(names) if allowed[k]}
            rows = columns.rows
            held, kind = columns.ints["held_gpu_milli"][rows], columns.ints["held_type"][rows]
            holding = rows[(held > 0) & (kind >= 0) & allowed[np.maximum(kind, 0)]].tolist()
            gpus = [(columns.spec(h).id, float(columns.ints["held_gpu_milli"][h]) / GPU_MILLI) for h in holding]
            self._by_types[key] = free, tuple(sorted(gpus, key=lambda item: (-item[1], item[0]))[:MAX_HOLDERS])
        return self._by_types[key]


def advice(reason: Reason) -> list[str]:
    """Smallest changes that would start the job, as sentences."""
    found: list[str] = []
    missing, kind = reason.missing_gpus, reason.missing_type
    match reason.why:
        case Why.CAPACITY if missing > 0:
            if most := reason.details.get("workers_that_fit"):
                found.append(f"resize it: there is room for {most} worker{'' if most == 1 else 's'} now")
            found.append(f"free {missing:g} more of {kind}")
            freed = 0.0
            for n, (_, gpus) in enumerate(reason.holders, 1):
                freed += gpus
                if freed >= missing:
                    names = ", ".join(str(job_id) for job_id, _ in reason.holders[:n])
                    found.append(f"wait for {names}, or pause {'it' if n == 1 else 'them'}")
                    break
        case Why.BEHIND if reason.behind is not None:
            found.append(f"wait until {reason.behind} has started, or use a policy that lets small jobs pass")
        case Why.SHAPE:
            found.append("ask for fewer GPUs a worker, or wait until a node has room for the whole gang")
        case Why.DEPENDENCY:
            found.append(f"wait for {reason.details.get('after', 'the jobs it waits for')}")
        case Why.QUOTA:
            found.append(f"wait for other jobs of {reason.details.get('entity', 'the team')}, or raise its quota")
        case Why.PAUSED:
            found.append("resume it")
        case Why.NO_NODE:
            found.append("bring back a node of an acceptable type, or accept other types")
        case _:
            pass
    return found


def text_of(reason: Reason | None) -> str:
    if reason is None:
        return ""
    match reason.why:
        case Why.DEPENDENCY if "after" in reason.details:
            return f"waits for {reason.details['after']} to finish"
        case Why.STARTING if "slow" in reason.details:
            return f"{render(reason)}: {reason.details['slow']}"
        case Why.QUOTA if "entity" in reason.details:
            quota: Mapping[str, Any] = reason.details
            needs = f"needs {reason.needs_gpus:g} GPUs"
            return f"{needs}; team {quota['entity']} has a quota of {quota['quota_gpus']:g} GPUs at a time"
        case _:
            return render(reason)
