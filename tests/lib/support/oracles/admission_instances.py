"""Random admission instances, seeded: the paper-like configuration and tiny ones for comparison with the
optimum.

Paper-like: 50 + 50 servers with EC2-like capacities and the ranges of the OASiS evaluation: worker 0-4 GPU,
1-10 vCPU, 2-32 GB; PS 1-10 vCPU, 2-32 GB; b 100 Mb/s-5 Gb/s, B 5-20 Gb/s; E 50-200, N 5-100, M 10-100, tau
0.001-0.1 slot, e 30-575 MB; sigmoids with theta1 1-100, theta3 1-15, theta2 = 0 for 10 % of jobs, 0.01-1
for 55 %, 4-6 for 35 %.
Choices of our own where the ranges leave room: a slot is an hour; tau and b are log-uniform; a job whose
shortest run exceeds `longest_run_slots` is drawn again, since nearly all jobs of the raw ranges could not
complete while their utility lasts. The redraw leaves every parameter within its range.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

SLOT_SECONDS = 3600.0
MB_PER_GIGABIT = 125.0


@dataclass(frozen=True)
class PaperLike:
    """Parameters of the paper-like configuration; the three shares are of all jobs and sum to 1."""

    jobs: int = 100
    horizon: int = 100
    worker_servers: int = 50
    ps_servers: int = 50
    insensitive_share: float = 0.10
    critical_share: float = 0.35
    longest_run_slots: int = 15


# GPUs, vCPUs, memory in GB of accelerated and general-purpose instances of one large cloud, rounded.
WORKER_MACHINES = ((8.0, 32.0, 488.0), (4.0, 64.0, 488.0), (4.0, 16.0, 122.0), (2.0, 32.0, 244.0))
PS_MACHINES = ((0.0, 36.0, 60.0), (0.0, 64.0, 256.0), (0.0, 16.0, 64.0))


def paper_like_instance(config: PaperLike, seed: int) -> dict[str, Any]:
    """An admission instance (the JSON object) of the paper-like configuration."""
    rng = np.random.Generator(np.random.PCG64(seed))
    servers = [
        _server(f"{role}-{n:03d}", role, machines[int(rng.integers(len(machines)))])
        for role, machines, count in (
            ("worker", WORKER_MACHINES, config.worker_servers),
            ("ps", PS_MACHINES, config.ps_servers),
        )
        for n in range(count)
    ]
    arrivals = np.sort(rng.integers(0, config.horizon, config.jobs))
    jobs = [_paper_job(f"job-{n:04d}", int(arrival), config, rng) for n, arrival in enumerate(arrivals)]
    return {"kind": "admission", "horizon": config.horizon, "servers": servers, "jobs": jobs}


def _server(name: str, role: str, machine: tuple[float, float, float]) -> dict[str, Any]:
    return {
        "id": name,
        "role": role,
        "capacity": dict(zip(("gpu", "cpu", "memory_gb"), machine, strict=True)),
    }


def _paper_job(name: str, arrival: int, config: PaperLike, rng: np.random.Generator) -> dict[str, Any]:
    while True:
        job = {
            "id": name,
            "arrival": arrival,
            "epochs": int(rng.integers(50, 201)),
            "chunks": int(rng.integers(5, 101)),
            "minibatches": int(rng.integers(10, 101)),
            "step_slots": _log_uniform(rng, 0.001, 0.1),
            "gradient_mb": float(rng.uniform(30, 575)),
            "worker_mb_per_slot": _log_uniform(rng, 0.1, 5.0) * MB_PER_GIGABIT * SLOT_SECONDS,
            "server_mb_per_slot": float(rng.uniform(5.0, 20.0)) * MB_PER_GIGABIT * SLOT_SECONDS,
            "worker_demand": {
                "gpu": int(rng.integers(0, 5)),
                "cpu": int(rng.integers(1, 11)),
                "memory_gb": int(rng.integers(2, 33)),
            },
            "server_demand": {"cpu": int(rng.integers(1, 11)), "memory_gb": int(rng.integers(2, 33))},
            "utility": _sigmoid(config, rng),
        }
        step = job["step_slots"] + 2 * job["gradient_mb"] / job["worker_mb_per_slot"]
        if job["epochs"] * job["minibatches"] * step <= config.longest_run_slots:
            return job


def _sigmoid(config: PaperLike, rng: np.random.Generator) -> dict[str, Any]:
    kind = float(rng.uniform())
    if kind < config.insensitive_share:
        theta2 = 0.0
    elif kind < config.insensitive_share + config.critical_share:
        theta2 = float(rng.uniform(4, 6))
    else:
        theta2 = float(rng.uniform(0.01, 1))
    return {
        "kind": "sigmoid",
        "theta1": float(rng.uniform(1, 100)),
        "theta2": theta2,
        "theta3": float(rng.uniform(1, 15)),
    }


def _log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    return math.exp(float(rng.uniform(math.log(low), math.log(high))))


@dataclass(frozen=True)
class Tiny:
    """Size of the instances that the exact optimum can solve; `shared_share` of the servers host both
    roles.
    """

    jobs: int = 5
    horizon: int = 5
    worker_servers: int = 2
    ps_servers: int = 2
    shared_share: float = 0.0


def tiny_instance(config: Tiny, seed: int) -> dict[str, Any]:
    """A small instance with two resources, 2-12 worker-slots per job and sigmoids of all three urgencies."""
    rng = np.random.Generator(np.random.PCG64(seed))
    servers = []
    for role, count in (("worker", config.worker_servers), ("ps", config.ps_servers)):
        for n in range(count):
            chosen = "both" if float(rng.uniform()) < config.shared_share else role
            capacity = {"gpu": int(rng.integers(2, 5)), "cpu": int(rng.integers(4, 13))}
            if chosen == "ps":
                capacity["gpu"] = 0
            servers.append({"id": f"{role}-{n}", "role": chosen, "capacity": capacity})
    arrivals = np.sort(rng.integers(0, max(1, config.horizon - 1), config.jobs))
    jobs = [_tiny_job(f"job-{n}", int(arrival), rng) for n, arrival in enumerate(arrivals)]
    return {"kind": "admission", "horizon": config.horizon, "servers": servers, "jobs": jobs}


def _tiny_job(name: str, arrival: int, rng: np.random.Generator) -> dict[str, Any]:
    chunks = int(rng.integers(1, 5))
    urgency = float(rng.choice([0.0, float(rng.uniform(0.01, 1)), float(rng.uniform(4, 6))], p=[0.1, 0.55, 0.35]))
    server_rate = float(rng.uniform(50, 200))
    return {
        "id": name,
        "arrival": arrival,
        "epochs": int(rng.integers(1, 4)),
        "chunks": chunks,
        "minibatches": int(rng.integers(1, 4)),
        "step_slots": float(rng.uniform(0.1, 0.5)),
        "gradient_mb": float(rng.uniform(0, 5)),
        "worker_mb_per_slot": float(rng.uniform(0.2, 1.0)) * server_rate,
        "server_mb_per_slot": server_rate,
        "worker_demand": {"gpu": int(rng.integers(0, 3)), "cpu": int(rng.integers(1, 4))},
        "server_demand": {"cpu": int(rng.integers(1, 4))},
        "utility": {
            "kind": "sigmoid",
            "theta1": float(rng.uniform(1, 100)),
            "theta2": urgency,
            "theta3": float(rng.uniform(1, 5)),
        },
    }
