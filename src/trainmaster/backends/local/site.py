"""Where jobs run on one machine, and what an attempt is launched with there: seats, environment, record. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trainmaster.backends.local.accounts import Account
from trainmaster.backends.local.devices import Devices
from trainmaster.backends.local.launch_record import LaunchRecord
from trainmaster.backends.local.shared_slots import KeptBeside
from trainmaster.gang.actions import Seat
from trainmaster.gang.member_env import job_env
from trainmaster.gang.protocol import SERVER, WORKER
from trainmaster.model.allocation import Allocation, Part
from trainmaster.model.cluster import Cluster
from trainmaster.model.command import Launch
from trainmaster.model.job import JobSpec
from trainmaster.model.lease import LeaseRule
from trainmaster.model.units import MS_PER_S


@dataclass(frozen=True)
class Options:
    """Choices of the operator. A job's payload may say `grace_s` for itself."""

    grace_s: float = 20.0
    hello_wait_s: float = 10.0
    """The start of an elastic job is reported when its gang has come together, or after this time."""
    join_patience_s: float = 300.0
    progress_every_s: float = 0.5
    log_max_bytes: int = 64 << 20
    """Per member and attempt; 0: unlimited."""
    accounts: Mapping[str, Account] | None = None
    """Under which the jobs of a user run; None: all under the service's own."""
    kept_beside: KeptBeside | None = None
    """How jobs on one emulated device fare; None: real devices, or as if each had it to itself."""


@dataclass(frozen=True)
class Site:
    """Where the jobs run: the cluster, what its devices are, and how slow its emulated types are."""

    cluster: Cluster
    devices: Devices
    slowdown: Mapping[str, float]
    lease: LeaseRule
    options: Options
    crowding: float = 1.0
    """See `devices.crowding`."""


def seats_of(site: Site, spec: JobSpec, allocation: Allocation) -> tuple[Seat, ...]:
    """A seat per member. A node's devices go to its workers in order, then to its servers."""
    seats: list[Seat] = []
    for group, part in enumerate(allocation.parts):
        devices = list(part.devices)
        for role, count, each in (
            (WORKER, part.workers, spec.worker.devices),
            (SERVER, part.servers, spec.server.devices),
        ):
            for index in range(count):
                own = _take(devices, part, each, index)
                seats.append(
                    Seat(
                        role=role,
                        node=site.cluster.nodes[part.node].id,
                        group_rank=group,
                        local_rank=index,
                        local_size=count,
                        devices=own,
                        cpus=_cores(site, part.node, own),
                        env=_visible(site, part, role),
                    )
                )
    return tuple(seats)


def _take(devices: list[int], part: Part, each: int, index: int) -> tuple[int, ...]:
    """The next devices of the node; members that share devices take turns."""
    if len(devices) >= each:
        own, devices[:each] = tuple(devices[:each]), []
        return own
    return (part.devices[index % len(part.devices)],) if part.devices and each else ()


def _cores(site: Site, node: int, devices: tuple[int, ...]) -> tuple[int, ...]:
    if not site.devices.core:
        return ()
    cores = site.devices.core[node]
    return tuple(cores[device] for device in devices)


def _visible(site: Site, part: Part, role: str) -> dict[str, str]:
    """All of the job's GPUs on the node, in the order of local ranks: programs choose by LOCAL_RANK."""
    if not site.devices.gpu_index:
        return {}
    indices = site.devices.gpu_index[part.node]
    shown = ",".join(str(indices[device]) for device in part.devices) if role == WORKER or part.devices else ""
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": shown}


def slowdown_of(site: Site, spec: JobSpec, accelerator: str) -> float | None:
    """How much an emulated device slows this job down: by its own declared speeds if it has them.

    None on real devices.
    """
    if not site.slowdown:
        return None
    own = {name: spec.steps_per_s[name] for name in site.cluster.types if spec.steps_per_s.get(name, 0.0) > 0.0}
    if accelerator in own:
        return max(own.values()) / own[accelerator]
    return site.slowdown.get(accelerator, 1.0)


def job_environment(site: Site, launch: Launch, checkpoint: Path) -> dict[str, str]:
    """The user's variables, and those of Trainmaster that all members share."""
    spec, payload = launch.spec, launch.spec.payload
    accelerator = site.cluster.types[launch.allocation.accelerator] if launch.allocation.accelerator >= 0 else ""
    env = {str(name): str(value) for name, value in (payload.get("env") or {}).items()}
    env |= job_env(
        spec.id, spec.name, launch.generation, accelerator, spec.work_total, spec.steps_per_s, spec.workers_ref
    )
    env["TRAINMASTER_CHECKPOINT_DIR"] = str(checkpoint)
    if payload.get("array_index") is not None:
        env["TRAINMASTER_ARRAY_INDEX"] = str(payload["array_index"])
    slowdown = slowdown_of(site, spec, accelerator)
    if slowdown is not None:
        env["TRAINMASTER_EMULATED_SLOWDOWN"] = f"{slowdown:.6g}"
        env["TRAINMASTER_EMULATED_CROWDING"] = f"{site.crowding:.6g}"
    return env


def _account(site: Site, spec: JobSpec) -> Account | None:
    accounts = site.options.accounts
    if accounts is None:
        return None
    user = str(spec.payload.get("user") or "")
    if user not in accounts:
        raise ValueError(f"user '{user}' has no account on this machine: see the file `accounts` of the service")
    return accounts[user]


def launch_record(site: Site, launch: Launch, checkpoint: Path, token: str) -> LaunchRecord:
    """`ValueError` says what is wrong with the job's payload."""
    spec, options, payload = launch.spec, site.options, launch.spec.payload
    command, server_command = payload.get("command"), payload.get("server_command") or ()
    for words in (command, server_command):
        if not isinstance(words, list | tuple) or not all(isinstance(word, str) and "\0" not in word for word in words):
            raise ValueError(f"invalid command {words!r}: expected a list of words")
    if not command:
        raise ValueError("the job has no command")
    env = job_environment(site, launch, checkpoint)
    if any("\0" in name + value or "=" in name or not name for name, value in env.items()):
        raise ValueError("an environment variable of the job has an impossible name or value")
    grace_s = payload.get("grace_s")
    return LaunchRecord(
        job_id=spec.id,
        generation=launch.generation,
        seq=launch.seq,
        slots=seats_of(site, spec, launch.allocation),
        command=tuple(command),
        token=token,
        server_command=tuple(server_command),
        env=env,
        workdir=str(payload.get("workdir") or ""),
        snapshot=str(payload.get("snapshot") or ""),
        steps=spec.work_total,
        max_attempts=spec.max_attempts,
        lease_s=site.lease.lease_ms / MS_PER_S,
        grace_s=options.grace_s if grace_s is None else float(grace_s),
        hello_wait_s=options.hello_wait_s if spec.elastic else 0.0,
        join_patience_s=options.join_patience_s,
        memory_mib=spec.worker.mem_mib,
        progress_every_s=options.progress_every_s,
        log_max_bytes=options.log_max_bytes,
        account=_account(site, spec),
    )
