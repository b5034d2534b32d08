"""The faults of a fault run on a real cluster: how each is made, mended, and when its work goes on again.

Each function makes one fault and returns the seconds from it until work goes on, by the trainers' own records: the
next life of a job that the fault has hit, or the first beat of a job that was submitted right after it.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable

from trainmaster.backends.kubernetes import paths
from trainmaster.backends.kubernetes.client import ApiError
from trainmaster.testing.kube_world import World, boot_s
from trainmaster.testing.trainer_records import Life

LONG_S = 25.0
BAD_IMAGE = "registry.local/no-such-image:1"
Fault = Callable[[World, random.Random], float]


def _victim(world: World, rng: random.Random, workers: int = 1) -> tuple[str, Life]:
    """A job that lives now and has some way to go."""

    def choose() -> tuple[str, Life] | None:
        living = []
        now_s = boot_s()
        for name in world.names:
            lives = [life for life in world.lives(name) if now_s - life.last_s < 0.4 and not life.over]
            if lives and float(lives[-1].last_word) < LONG_S * 0.5:
                living.append((name, lives[-1]))
        return rng.choice(living) if living else None

    with contextlib.suppress(AssertionError):
        return world.until("a job to hit", choose, 3)
    world.submit(LONG_S, workers)
    return world.until("a job to hit", choose, 60)


def _next_life_s(world: World, job: str, before: Life, fault_s: float, patience_s: float = 120.0) -> float:
    """Seconds until another life of the job began, or the job was seen to be done."""

    def again() -> float | None:
        lives = world.lives(job)
        later = [life.first_s for life in lives if life.first_s > max(fault_s, before.first_s)]
        if later:
            return min(later) - fault_s
        own = max((life for life in lives), key=lambda life: life.last_s)
        return max(own.last_s - fault_s, 0.0) if own.last_word == "finished" else None

    return world.until(f"another life of {job}", again, patience_s)


def _probe_s(world: World, fault_s: float) -> float:
    """Seconds until a job that is submitted now has begun."""
    name = world.submit(1.0)
    lives = world.until(f"the beginning of {name}", lambda: world.lives(name), 120)
    return lives[0].first_s - fault_s


def _node_of(world: World, job: str) -> str:
    nodes = [pod["spec"].get("nodeName") for pod in world.pods(job) if pod["status"].get("phase") == "Running"]
    return str(nodes[-1]) if nodes else ""


# -- the service --------------------------------------------------------------------------------------------


def leader_killed(world: World, rng: random.Random) -> float:  # noqa: ARG001
    number = world.until("a leader", lambda: (found := world.leader()) is not None and [found])[0]
    fault_s = boot_s()
    world.replicas[number].kill()
    took_s = _probe_s(world, fault_s)
    world.replicas[number].start()
    return took_s


def both_killed(world: World, rng: random.Random) -> float:  # noqa: ARG001
    fault_s = boot_s()
    for replica in world.replicas:
        replica.kill()
    for replica in world.replicas:
        replica.start()
    return _probe_s(world, fault_s)


def _component(name: str) -> Fault:
    def fault(world: World, rng: random.Random) -> float:
        fault_s = boot_s()
        world.cluster.order("stop", name)
        time.sleep(rng.uniform(0.5, 4.0))
        world.cluster.order("start", name)
        return _probe_s(world, fault_s)

    return fault


# -- nodes --------------------------------------------------------------------------------------------------


def power_cut(world: World, rng: random.Random) -> float:
    job, life = _victim(world, rng)
    node = _node_of(world, job)
    fault_s = boot_s()
    world.cluster.order("stop", node)
    try:
        return _next_life_s(world, job, life, fault_s)
    finally:
        world.cluster.order("start", node)


def partition(world: World, rng: random.Random) -> float:
    job, life = _victim(world, rng)
    node = _node_of(world, job)
    fault_s = boot_s()
    world.cluster.order("partition", node)
    try:
        return _next_life_s(world, job, life, fault_s)
    finally:
        world.cluster.order("heal", node)
        world.until(f"{node} back", lambda: _ready(world, node), 120)


def kubelet_restarted(world: World, rng: random.Random) -> float:
    """Nothing may happen to its trainers; the time is that of a new job, on any node."""
    job, life = _victim(world, rng)
    node = _node_of(world, job)
    fault_s = boot_s()
    world.cluster.order("stop", f"{node}-kubelet")
    time.sleep(rng.uniform(0.5, 3.0))
    world.cluster.order("start", node)
    took_s = _probe_s(world, fault_s)
    generations = {other.generation for other in world.lives(job)}
    if generations != {life.generation} and generations - {life.generation} > {0}:
        raise AssertionError(f"{job} was started again because a kubelet was: {sorted(generations)}")
    return took_s


def _ready(world: World, node: str) -> bool:
    conditions = world.ask("get", f"{paths.nodes()}/{node}")["status"]["conditions"]
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


# -- pods ---------------------------------------------------------------------------------------------------


def pod_deleted(world: World, rng: random.Random) -> float:
    job, life = _victim(world, rng)
    grace_s = rng.choice([None, 1, 0])  # 0: by force, without waiting for the kubelet
    pod = rng.choice([pod for pod in world.pods(job) if pod["status"].get("phase") == "Running"])
    fault_s = boot_s()
    world.ask("delete", paths.pod("default", pod["metadata"]["name"]), grace_s=grace_s)
    return _next_life_s(world, job, life, fault_s)


def evicted(world: World, rng: random.Random) -> float:
    job, life = _victim(world, rng)
    pod = rng.choice([pod for pod in world.pods(job) if pod["status"].get("phase") == "Running"])
    name = pod["metadata"]["name"]
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": "default"}}
    fault_s = boot_s()
    world.ask("create", paths.pod("default", name, "eviction"), body)
    return _next_life_s(world, job, life, fault_s)


def image_missing(world: World, rng: random.Random) -> float:  # noqa: ARG001
    """Not a recovery: the time until the job's owner is told, by its status."""
    fault_s = boot_s()
    name = world.submit(1.0, image=BAD_IMAGE, maxAttempts=1)

    def told() -> bool:
        try:
            status = world.statuses()[name]
        except ApiError:
            return False
        return status.get("state") == "failed" and "image" in (status.get("message") or "").lower()

    world.until(f"the failure of {name}, with its reason", told, 120)
    return boot_s() - fault_s


KINDS: dict[str, Fault] = {
    "leader-killed": leader_killed,
    "both-replicas-killed": both_killed,
    "api-server-killed": _component("apiserver"),
    "etcd-killed": _component("etcd"),
    "node-power-cut": power_cut,
    "partition-and-heal": partition,
    "kubelet-restarted": kubelet_restarted,
    "pod-deleted": pod_deleted,
    "image-missing": image_missing,
    "evicted": evicted,
}
EXPECTED_TO_FAIL = ("image-missing",)
