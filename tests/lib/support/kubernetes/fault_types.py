"""The faults of a fault run on a real cluster: how each is made, mended, and when its work goes on again.

Each function makes one fault and returns the seconds from it until work goes on, by the trainers' own records: the
next life of a job that the fault has hit, or the first beat of a job that was submitted right after it. After a restart
of the API server or of etcd it returns when such a job had its nodes, and goes on: kubelets look again at a server that
did not answer only after half a minute or more. When its trainer began is read from the records in the end.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable
from typing import Any

from support.kubernetes.world import Probe, World, boot_s
from support.trainer_records import Life
from trainmaster.backends.kubernetes.api import paths

LONG_S = 30.0
ENOUGH_S = 8.0
BAD_IMAGES = (
    ("127.0.0.1:1/no-such-image:1", "IfNotPresent"),
    ("no-such-registry.invalid/no-such-image:1", "IfNotPresent"),
    ("registry.local/no-such-image:1", "Never"),
    ("registry.local/No Such Image!", "IfNotPresent"),
    ("10.77.0.99:5000/no-such-image:1", "Always"),
)
"""And how they are to be pulled: a registry that refuses, one whose name nobody knows, an image that is not to be
pulled, a name that is none, and a registry that does not answer."""
Fault = Callable[[World, random.Random], float]


def _victim(world: World, rng: random.Random) -> tuple[str, Life]:
    """A job that lives now and has some way to go; nobody else has chosen it."""

    def choose() -> tuple[str, Life] | None:
        living = []
        now_s = boot_s()
        for name, seconds in list(world.seconds.items()):
            lives = [life for life in world.lives(name) if now_s - life.last_s < 0.4 and not life.over]
            if name not in world.chosen and lives and float(lives[-1].last_word) + ENOUGH_S < seconds:
                living.append((name, lives[-1]))
        if not living:
            return None
        found = rng.choice(living)
        world.chosen.add(found[0])
        return found

    with contextlib.suppress(AssertionError):
        return world.until("a job to hit", choose, 0.5)
    world.submit(LONG_S)
    return world.until("a job to hit", choose, 90)


def _next_life_s(world: World, job: str, before: Life, fault_s: float, patience_s: float = 120.0) -> float:
    """Seconds until a later attempt of the job began."""

    def again() -> float | None:
        later = [life.first_s for life in world.lives(job) if life.generation > before.generation]
        return min(later) - fault_s if later else None

    took_s = world.until(f"another life of {job}", again, patience_s)
    world.chosen.discard(job)
    return took_s


def _probe_s(world: World, fault_s: float) -> float:
    """Seconds until a job that is submitted now has begun."""
    name = _placed(world, fault_s)
    lives = world.until(f"the beginning of {name}", lambda: world.lives(name), 120)
    return lives[0].first_s - fault_s


def _placed(world: World, fault_s: float) -> str:
    """Submits a job and waits until its pod has a node, which is noted."""
    name = world.submit(1.0)
    world.until(
        f"a node for {name}", lambda: any(pod["spec"].get("nodeName") for pod in world.pods(name)), 120, every_s=0.05
    )
    world.probes.append(Probe(name, fault_s, boot_s() - fault_s))
    return name


def _node_of(world: World, job: str) -> str:
    nodes = [pod["spec"].get("nodeName") for pod in world.pods(job) if pod["status"].get("phase") == "Running"]
    return str(nodes[-1]) if nodes else ""


# -- the service --------------------------------------------------------------------------------------------


def nothing(world: World, rng: random.Random) -> float:
    """How long a job takes to begin when nothing is wrong: what the other figures contain."""
    return _probe_s(world, boot_s())


def leader_killed(world: World, rng: random.Random) -> float:
    """The other replica stands by: who kills a leader while the last one is still coming up has killed both."""
    world.until("a replica that stands by", lambda: all(replica.is_prepared() for replica in world.replicas))
    number = world.until("a leader", lambda: (found := world.leader()) is not None and [found])[0]
    fault_s = boot_s()
    world.replicas[number].kill()
    took_s = _probe_s(world, fault_s)
    world.replicas[number].start()
    return took_s


def both_killed(world: World, rng: random.Random) -> float:
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
        _placed(world, fault_s)
        return world.probes[-1].placed_s

    return fault


# -- nodes --------------------------------------------------------------------------------------------------


def _node_lost(order: str, undo: str) -> Fault:
    def fault(world: World, rng: random.Random) -> float:
        job, life = _victim(world, rng)
        node = _node_of(world, job)
        fault_s = boot_s()
        world.cluster.order(order, node)
        try:
            return _next_life_s(world, job, life, fault_s)
        finally:
            world.cluster.order(undo, node)

    return fault


power_cut, partition = _node_lost("stop", "start"), _node_lost("partition", "heal")


def kubelet_restarted(world: World, rng: random.Random) -> float:
    """Nothing may happen to its trainers; the time is that of a new job, on any node."""
    job, life = _victim(world, rng)
    node = _node_of(world, job)
    fault_s = boot_s()
    world.cluster.order("stop", f"{node}-kubelet")
    time.sleep(rng.uniform(0.5, 3.0))
    _start_kubelet(world, node)
    took_s = _probe_s(world, fault_s)
    generations = {other.generation for other in world.lives(job)}
    world.chosen.discard(job)
    if max(generations) > life.generation:
        raise AssertionError(f"{job} was started again because a kubelet was: {sorted(generations)}")
    return took_s


def kubelet_away(world: World, rng: random.Random) -> float:
    """For so long that the cluster calls the node lost. Its trainers renew their leases all the same, so they go on,
    and who is done is believed; new jobs go elsewhere, which is what is timed."""
    job, life = _victim(world, rng)
    node = _node_of(world, job)
    world.cluster.order("stop", f"{node}-kubelet")
    world.until(f"the cluster to call {node} lost", lambda: not _is_ready(world, node), 120)
    took_s = _probe_s(world, boot_s())
    if rng.random() < 0.5:
        world.until(f"the end of {job}", lambda: world.statuses()[job].get("state") == "finished", 120)
    _start_kubelet(world, node)
    world.until(f"the cluster to call {node} ready", lambda: _is_ready(world, node), 120)
    generations = {other.generation for other in world.lives(job)}
    world.chosen.discard(job)
    if max(generations) > life.generation:
        raise AssertionError(f"{job} was started again because its kubelet was away: {sorted(generations)}")
    return took_s


def _is_ready(world: World, node: str) -> bool:
    conditions = world.ask("get", paths.core("nodes", name=node))["status"]["conditions"]
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def _start_kubelet(world: World, node: str) -> None:
    """The rest of the node runs; the program waits for a sign that only a whole start of it gives, so we give it."""
    assert world.cluster.folder is not None
    sign = world.cluster.folder / node / "machine-is-up"
    starting = threading.Thread(target=world.cluster.order, args=("start", node))
    starting.start()
    while starting.is_alive():
        sign.touch()
        time.sleep(0.1)


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


def image_missing(world: World, rng: random.Random) -> float:
    """Not a recovery: the time until the job's owner is told by its status, whether it has failed by then or not. It
    must fail in the end."""
    image, pull = rng.choice(BAD_IMAGES)
    fault_s = boot_s()
    name = world.submit(1.0, image=image, pull=pull, maxAttempts=1)
    status = world.until(f"a reason for {name} that names {image}", lambda: _naming(world, name, image), 120)
    took_s = boot_s() - fault_s
    world.until(f"the failure of {name}", lambda: world.statuses()[name].get("state") == "failed", 240)
    print(f"    {image} ({pull}): {status['state']}: {status['message']}", flush=True)
    return took_s


def _naming(world: World, job: str, image: str) -> dict[str, Any] | None:
    status = world.statuses()[job]
    return status if image in (status.get("message") or "") else None


KINDS: dict[str, Fault] = {
    "nothing": nothing,
    "leader-killed": leader_killed,
    "both-replicas-killed": both_killed,
    "api-server-killed": _component("apiserver"),
    "etcd-killed": _component("etcd"),
    "node-power-cut": power_cut,
    "partition-and-heal": partition,
    "kubelet-restarted": kubelet_restarted,
    "kubelet-away": kubelet_away,
    "pod-deleted": pod_deleted,
    "image-missing": image_missing,
    "evicted": evicted,
}
EXPECTED_TO_FAIL = ("image-missing",)
AT_ONCE = {"pod-deleted": 4, "evicted": 4, "image-missing": 5}
"""Faults of these kinds hit one job each, so that many are made at a time."""
BUSY = {"image-missing": 2}
"""Other jobs at the same time, where a fault should not wait for a place."""
