"""Where this process stands: the `TRAINMASTER_*` and torchrun variables of its environment, read once."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trainmaster.gang.protocol import SERVER, WORKER
from trainmaster.model.errors import InputError


@dataclass(frozen=True)
class ProcessEnv:
    """Defaults describe a process that nobody manages: one worker on its own."""

    job_id: str = ""
    job_name: str = ""
    generation: int = 0
    attempt: int = 0
    role: str = WORKER
    member: str = "worker-0"
    agent: str = ""
    """`unix:/path` or `tcp:host:port`; empty: unmanaged."""
    agent_token: str = field(default="", repr=False)
    checkpoint_dir: Path | None = None
    node: str = ""
    accelerator: str = ""
    array_index: int | None = None
    steps: float | None = None
    steps_per_s: Mapping[str, float] = field(default_factory=dict)
    emulated_slowdown: float = 1.0
    emulated_crowding: float = 1.0
    """So much slower still are all slots that share this machine's cores, so that together they fit."""
    emulated_sharing: Path | None = None
    """File that says what part of its speed the job keeps beside another on its emulated devices."""
    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    master_addr: str = ""
    master_port: int = 0

    @property
    def step_stretch(self) -> float:
        """How much longer than it computes a step takes on an emulated slot."""
        return self.emulated_slowdown * self.emulated_crowding / self.kept_beside_others()

    def kept_beside_others(self) -> float:
        """Part of its speed that the job keeps now; 1 where it shares nothing."""
        if self.emulated_sharing is None:
            return 1.0
        try:
            return min(max(float(json.loads(self.emulated_sharing.read_text())["keeps"]), 1e-3), 1.0)
        except (OSError, ValueError, KeyError, TypeError):
            return 1.0

    @property
    def managed(self) -> bool:
        return bool(self.agent)

    @property
    def checkpoint_folder(self) -> Path:
        """Unmanaged, each script has a folder of its own, so that two of them in one place do not meet."""
        return self.checkpoint_dir or Path("checkpoints") / (Path(sys.argv[0]).stem or "session")


def read_process_env(environment: Mapping[str, str] | None = None) -> ProcessEnv:
    """`InputError` names the variable that cannot be understood."""
    env = os.environ if environment is None else environment
    slowdown = _at_least_1(env, "TRAINMASTER_EMULATED_SLOWDOWN")
    crowding = _at_least_1(env, "TRAINMASTER_EMULATED_CROWDING")
    role = env.get("TRAINMASTER_ROLE", WORKER)
    if role not in (WORKER, SERVER):
        raise _bad(env, "TRAINMASTER_ROLE", f"{WORKER!r} or {SERVER!r}")
    directory = env.get("TRAINMASTER_CHECKPOINT_DIR")
    place = ProcessEnv(
        job_id=env.get("TRAINMASTER_JOB_ID", ""),
        job_name=env.get("TRAINMASTER_JOB_NAME", ""),
        generation=_integer(env, "TRAINMASTER_GENERATION", 0),
        attempt=_integer(env, "TRAINMASTER_ATTEMPT", 0),
        role=role,
        member=env.get("TRAINMASTER_MEMBER", f"{role}-{env.get('RANK', '0')}"),
        agent=env.get("TRAINMASTER_AGENT", ""),
        agent_token=env.get("TRAINMASTER_AGENT_TOKEN", ""),
        checkpoint_dir=Path(directory) if directory else None,
        node=env.get("TRAINMASTER_NODE", ""),
        accelerator=env.get("TRAINMASTER_ACCELERATOR", ""),
        array_index=_integer(env, "TRAINMASTER_ARRAY_INDEX", 0) if env.get("TRAINMASTER_ARRAY_INDEX") else None,
        steps=_number(env, "TRAINMASTER_STEPS", 0.0) if env.get("TRAINMASTER_STEPS") else None,
        steps_per_s=_rates(env),
        emulated_slowdown=slowdown,
        emulated_crowding=crowding,
        emulated_sharing=Path(sharing) if (sharing := env.get("TRAINMASTER_EMULATED_SHARING")) else None,
        rank=_integer(env, "RANK", 0),
        world_size=_integer(env, "WORLD_SIZE", 1),
        local_rank=_integer(env, "LOCAL_RANK", 0),
        master_addr=env.get("MASTER_ADDR", ""),
        master_port=_integer(env, "MASTER_PORT", 0),
    )
    if not 0 <= place.rank < place.world_size:
        raise InputError(
            f"RANK={place.rank} with WORLD_SIZE={place.world_size}",
            "0 <= RANK < WORLD_SIZE",
            "Start the script by torchrun, by `trainmaster submit`, or without these variables.",
        )
    return place


def _bad(env: Mapping[str, str], name: str, expected: str) -> InputError:
    return InputError(f"environment variable {name} is {env.get(name)!r}", expected, "Correct it or unset it.")


def _integer(env: Mapping[str, str], name: str, default: int) -> int:
    try:
        return int(env.get(name) or default)
    except ValueError:
        raise _bad(env, name, "a whole number") from None


def _number(env: Mapping[str, str], name: str, default: float) -> float:
    try:
        return float(env.get(name) or default)
    except ValueError:
        raise _bad(env, name, "a number") from None


def _rates(env: Mapping[str, str]) -> dict[str, float]:
    name = "TRAINMASTER_STEPS_PER_S"
    try:
        rates = json.loads(env.get(name) or "{}")
        return {str(key): float(value) for key, value in rates.items()}
    except (ValueError, AttributeError, TypeError):
        raise _bad(env, name, 'a JSON object such as {"v100": 12.5}') from None


def _at_least_1(env: Mapping[str, str], name: str) -> float:
    number = _number(env, name, 1.0)
    if number < 1.0:
        raise _bad(env, name, "a number of at least 1")
    return number


def stretch(slowdown: float, began_s: float, began_cpu_s: float) -> None:
    """Make a step that has just been computed take so many times longer, as on a slower accelerator.

    Only what it computed counts. Time spent waiting for peers must not: they wait for this member's sleep in turn,
    and each would make the other sleep longer at every step.
    """
    if slowdown > 1.0:
        computed_s = min(time.perf_counter() - began_s, time.process_time() - began_cpu_s)
        time.sleep((slowdown - 1.0) * computed_s)
