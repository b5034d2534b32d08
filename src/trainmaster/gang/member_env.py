"""Process environment of a gang member: what torchrun sets, and what Trainmaster adds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from trainmaster.gang.actions import ALONE, Seat
from trainmaster.gang.protocol import WORKER


@dataclass(frozen=True)
class Rendezvous:
    """Where a gang of `size` workers on `groups` nodes meets."""

    size: int
    master_addr: str
    master_port: int
    groups: int = 1


def rank_env(seat: Seat, rank: int, gang: Rendezvous) -> dict[str, str]:
    """Ranks and addresses of one member. Servers have no rank: what they must know comes with the membership."""
    env = {"MASTER_ADDR": gang.master_addr, "MASTER_PORT": str(gang.master_port)}
    if seat.role != WORKER:
        return env
    size = max(gang.size, rank + 1)
    alone = seat.group_rank == ALONE
    return env | {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(seat.local_rank),
        "LOCAL_WORLD_SIZE": str(seat.local_size),
        "GROUP_RANK": str(rank if alone else seat.group_rank),
        "GROUP_WORLD_SIZE": str(size if alone else gang.groups),
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(size),
        "ROLE_NAME": WORKER,
    }


def member_env(member: str, seat: Seat, token: str) -> dict[str, str]:
    """Who this member is."""
    return {
        "TRAINMASTER_ROLE": seat.role,
        "TRAINMASTER_MEMBER": member,
        "TRAINMASTER_NODE": seat.node,
        "TRAINMASTER_AGENT_TOKEN": token,
    }


def job_env(
    job_id: str,
    name: str,
    generation: int,
    accelerator: str = "",
    steps: float | None = None,
    steps_per_s: Mapping[str, float] | None = None,
    workers_ref: float = 1,
) -> dict[str, str]:
    """What all members of an attempt share. Speeds are declared for `workers_ref` workers and passed on per worker."""
    env = {
        "TRAINMASTER_JOB_ID": job_id,
        "TRAINMASTER_JOB_NAME": name,
        "TRAINMASTER_GENERATION": str(generation),
        "TRAINMASTER_ATTEMPT": str(generation),
        "TRAINMASTER_ACCELERATOR": accelerator,
    }
    if steps_per_s:
        per_worker = {type_: speed / workers_ref for type_, speed in sorted(steps_per_s.items())}
        env["TRAINMASTER_STEPS_PER_S"] = json.dumps(per_worker)
    if steps is not None:
        env["TRAINMASTER_STEPS"] = f"{steps:.17g}"
    return env
