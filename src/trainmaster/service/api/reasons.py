"""Reasons in words: one sentence, and the smallest changes that would start the job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainmaster.model.reasons import Reason, Why, render


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
