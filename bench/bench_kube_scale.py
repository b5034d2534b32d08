"""Scale on Kubernetes: pods bound per second against kube-scheduler on the same cluster, writes, memory, start-up.

    python bench/bench_kube_scale.py --nodes 1000 --jobs 10000 --pods 4000

Nodes are fake (kwok): what is measured is the control plane. In one run and on one cluster, cleared each time:

kube_scheduler        binds `--pods` single pods that are there already
trainmaster_gangs     Trainmaster binds as many pods that are there already, in gangs of 1 to 64
kube_scheduler_jobs   kube-scheduler with batch Jobs of parallelism 1 to 64: their controller makes the pods (no gangs)
trainmaster           `--jobs` TrainingJobs with gangs of 1 to 64 are queued; Trainmaster makes and binds their pods
start_up              a new process among `--crowd` pods of others, until it leads and answers
idle                  as many jobs are queued; when all is bound and told, CPU time while nothing happens

Rates are from the first to the last binding, as a watch sees them; where the pods are made as well, from the first that
was made. Writes are those that the API server counted. CPU
milliseconds for each pod are those of every part of the cluster, of the scheduler and of this program, which watches:
on a machine of few cores, where all of them run, their sum is what limits the rate. `--phases` chooses among the above.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil

from support.kubernetes.cluster import KubeCluster, free_port, kubernetes_cluster
from trainmaster.backends.kubernetes.api import paths
from trainmaster.backends.kubernetes.api.client import ApiError, KubeClient
from trainmaster.backends.kubernetes.api.config import load_config
from trainmaster.backends.kubernetes.resources.crd import NAME, crd

GPUS_PER_NODE = 8
TOLERATION = [{"key": "kwok.x-k8s.io/node", "operator": "Exists", "effect": "NoSchedule"}]
CREATORS = 32
SIZES, WEIGHTS = (1, 2, 4, 8, 16, 32, 64), (40, 15, 15, 15, 8, 5, 2)
SILENCE_S = 20.0
QUIET_S = 10.0
REST_S = 5.0
"""Before each measurement: controllers are still busy with the nodes, or with the pods of the last one."""
RIVALS = (
    ("trainmaster_gangs", "kube_scheduler"),
    ("trainmaster", "kube_scheduler_jobs"),
    ("trainmaster", "kube_scheduler"),
)
PARTS = ("apiserver", "etcd", "kwok", "controller-manager", "scheduler")
PHASES = ("kube_scheduler", "trainmaster_gangs", "kube_scheduler_jobs", "trainmaster", "start_up", "idle")
OURS = (
    "POST pods", "POST pods/binding", "PATCH trainingjobs/status", "POST events", "PATCH events", "POST configmaps",
    "DELETE configmaps",
)  # fmt: skip
"""Requests that Trainmaster makes; kwok and the controllers make others (and a few of the events)."""


class Bindings:
    """Sees every pod that gets a node. `times` are seconds since the watch began."""

    def __init__(self, client: KubeClient, namespace: str, *, made_too: bool = False) -> None:
        """`made_too`: pods are made while it watches, and that counts: time runs from the first that is made."""
        self.client, self.namespace = client, namespace
        self._select = {} if made_too else {"fieldSelector": "spec.nodeName!="}
        self.first_s = float("inf")
        self.times: dict[str, float] = {}
        self.begun_s = time.monotonic()
        self.last_s = self.begun_s

    async def watch(self) -> None:
        path = paths.pods(self.namespace)
        version = (await self.client.get(path, limit="1"))["metadata"]["resourceVersion"]
        while True:
            try:
                async for kind, pod in self.client.watch(path, version, **self._select):
                    version = pod["metadata"]["resourceVersion"]
                    if kind != "BOOKMARK":
                        self._saw(pod)
            except ApiError:
                await asyncio.sleep(0.1)

    def _saw(self, pod: dict[str, Any]) -> None:
        now_s = time.monotonic()
        self.first_s = min(self.first_s, now_s - self.begun_s)
        if pod["spec"].get("nodeName") and pod["metadata"]["uid"] not in self.times:
            self.last_s = now_s
            self.times[pod["metadata"]["uid"]] = now_s - self.begun_s

    async def until(self, count: int, limit_s: float) -> None:
        end_s = time.monotonic() + limit_s
        while len(self.times) < count and time.monotonic() < end_s:
            if self.times and time.monotonic() - self.last_s > SILENCE_S:
                return
            await asyncio.sleep(0.2)

    def rate(self) -> float:
        """Pods bound per second, from the first binding (or creation) to the last."""
        last_s = max(self.times.values(), default=0.0)
        return (len(self.times) - 1) / (last_s - self.first_s) if len(self.times) > 1 else 0.0

    def summary(self) -> dict[str, Any]:
        """`tenths_s`: from the first to each tenth of the bindings; whether it went on steadily."""
        times = sorted(self.times.values())
        tenths = [times[len(times) * k // 10 - 1] - self.first_s for k in range(1, 11)] if len(times) >= 10 else []
        return {
            "pods": len(times), "bound_per_s": round(self.rate(), 1), "tenths_s": [round(t, 1) for t in tenths]
        }  # fmt: skip


class Costs:
    """CPU time of every part of the cluster and of this program, from when it is made."""

    def __init__(self, cluster: KubeCluster) -> None:
        self._folder = cluster.folder
        self._before = self._now()

    def _now(self) -> dict[str, float]:
        found = {"observer": _cpu_s(psutil.Process())}
        if self._folder is None:
            return found
        for name in PARTS:
            with contextlib.suppress(OSError, ValueError, psutil.Error):
                found[name] = _cpu_s(psutil.Process(int((self._folder / f"{name}.pid").read_text())))
        return found

    def per_pod_ms(self, pods: int, trainmaster_s: float = 0.0) -> dict[str, float]:
        """`trainmaster_s`: what Trainmaster took, which is no part of the cluster."""
        spent = {name: now_s - self._before.get(name, 0.0) for name, now_s in self._now().items()}
        spent["trainmaster"] = trainmaster_s
        spent["all"] = sum(spent.values())
        return {name: round(1000 * taken_s / max(pods, 1), 2) for name, taken_s in spent.items() if taken_s}


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


async def many(work: list[Any]) -> None:
    """Run coroutine functions, so many at a time."""
    queue = list(reversed(work))

    async def one() -> None:
        while queue:
            await queue.pop()()

    await asyncio.gather(*(one() for _ in range(CREATORS)))


def pod(name: str, scheduler: str, gang: str = "", size: int = 1) -> dict[str, Any]:
    resources = {"limits": {"nvidia.com/gpu": "1"}, "requests": {"nvidia.com/gpu": "1", "cpu": "100m"}}
    container = {"name": "main", "image": "registry.local/pause:1", "resources": resources}
    spec = {"schedulerName": scheduler, "tolerations": TOLERATION, "containers": [container]}
    labels = {"trainmaster.dev/gang": gang, "trainmaster.dev/gang-size": str(size)} if gang else {}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec}


def batch_job(name: str, size: int) -> dict[str, Any]:
    template = {"spec": {**pod(name, "default-scheduler")["spec"], "restartPolicy": "Never"}}
    spec = {"parallelism": size, "completions": size, "backoffLimit": 0, "template": template}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}


def gangs_of(count: int, seed: int) -> list[int]:
    """Sizes of gangs that have so many members in all."""
    rng, sizes = random.Random(seed), []
    while sum(sizes) < count:
        sizes.append(min(rng.choices(SIZES, WEIGHTS)[0], count - sum(sizes)))
    return sizes


def job(name: str, size: int) -> dict[str, Any]:
    container = {"name": "main", "image": "registry.local/pause:1", "resources": {"requests": {"cpu": "100m"}}}
    spec = {
        "workers": {"min": size, "max": size},
        "gpusPerWorker": 1,
        "template": {"spec": {"tolerations": TOLERATION, "containers": [container]}},
    }
    meta = {"name": name, "annotations": {"trainmaster.dev/launcher": "false"}}
    return {"apiVersion": "trainmaster.dev/v1alpha1", "kind": "TrainingJob", "metadata": meta, "spec": spec}


def writes_of(cluster: KubeCluster) -> Counter[str]:
    """Requests that change something, by verb and resource, as the API server has counted them."""
    text = cluster.kubectl("get", "--raw", "/metrics").stdout
    found: Counter[str] = Counter()
    for line in text.splitlines():
        if not line.startswith("apiserver_request_total{"):
            continue
        labels = dict(re.findall(r'(\w+)="([^"]*)"', line))
        if labels.get("verb") in ("POST", "PUT", "PATCH", "APPLY", "DELETE") and labels.get("code", "").startswith("2"):
            sub = f"/{labels['subresource']}" if labels.get("subresource") else ""
            found[f"{labels['verb']} {labels['resource']}{sub}"] += int(float(line.rsplit(" ", 1)[1]))
    return found


async def kube_scheduler_rate(client: KubeClient, cluster: KubeCluster, count: int) -> dict[str, Any]:
    await client.create(paths.core("namespaces"), {"metadata": {"name": "plain"}})
    made_s = time.monotonic()
    path = paths.pods("plain")
    await many([lambda k=k: client.create(path, pod(f"p{k}", "default-scheduler")) for k in range(count)])
    made_s = time.monotonic() - made_s
    seen = Bindings(client, "plain")
    watching = asyncio.create_task(seen.watch())
    before = writes_of(cluster)
    costs = Costs(cluster)
    cluster.order("start", "scheduler")
    await seen.until(count, 300)
    watching.cancel()
    cpu_ms = costs.per_pod_ms(len(seen.times))
    cluster.order("stop", "scheduler")
    made = writes_of(cluster) - before
    await clear(client, "plain")
    return {
        **seen.summary(), "created_per_s": round(count / made_s, 1),
        "cpu_ms_per_pod": cpu_ms, "writes": dict(made.most_common(8)),
    }  # fmt: skip


async def kube_scheduler_jobs(client: KubeClient, cluster: KubeCluster, count: int, seed: int) -> dict[str, Any]:
    await client.create(paths.core("namespaces"), {"metadata": {"name": "batch"}})
    seen = Bindings(client, "batch", made_too=True)
    watching = asyncio.create_task(seen.watch())
    cluster.order("start", "scheduler")
    before = writes_of(cluster)
    costs = Costs(cluster)
    path = "/apis/batch/v1/namespaces/batch/jobs"
    sizes = gangs_of(count, seed)
    await many([lambda k=k: client.create(path, batch_job(f"b{k}", sizes[k])) for k in range(len(sizes))])
    await seen.until(count, 300)
    watching.cancel()
    cpu_ms = costs.per_pod_ms(len(seen.times))
    cluster.order("stop", "scheduler")
    made = writes_of(cluster) - before
    await client.delete(path, propagation="Background", timeout_s=180.0, patience_s=180.0)
    await clear(client, "batch")
    return {
        "jobs": len(sizes), **seen.summary(), "cpu_ms_per_pod": cpu_ms,
        "writes": dict(made.most_common(8)),
    }  # fmt: skip


async def trainmaster_gangs(
    client: KubeClient, cluster: KubeCluster, options: argparse.Namespace, home: Path
) -> dict[str, Any]:
    await client.create(paths.core("namespaces"), {"metadata": {"name": "gangs"}})
    sizes = gangs_of(options.pods, options.seed)
    path = paths.pods("gangs")
    bodies = [pod(f"g{k}-{m}", "trainmaster", f"g{k}", size) for k, size in enumerate(sizes) for m in range(size)]
    await many([lambda body=body: client.create(path, body) for body in bodies])
    seen = Bindings(client, "gangs")
    watching = asyncio.create_task(seen.watch())
    before = writes_of(cluster)
    service = Running(cluster.kubeconfig, home, options.policy)
    costs = Costs(cluster)
    try:
        up_s = await service.serving()
        await seen.until(len(bodies), options.limit_s)
        cpu_s = service.cpu_s()
        cpu_ms = costs.per_pod_ms(len(seen.times), cpu_s)
        made = writes_of(cluster) - before
        mib = service.resident_mib()
    finally:
        watching.cancel()
        service.stop()
    await clear(client, "gangs")
    own = {name: made[name] for name in OURS if made[name]}
    return {
        "gangs": len(sizes), **seen.summary(), "up_s": round(up_s, 1),
        "cpu_s": round(cpu_s, 1), "cpu_ms_per_pod": cpu_ms, "own_writes": own,
        "own_writes_per_pod": round(sum(own.values()) / max(len(seen.times), 1), 2), "resident_mib": round(mib),
    }  # fmt: skip


async def clear(client: KubeClient, namespace: str) -> None:
    while True:
        with contextlib.suppress(ApiError):  # the server ends a request that takes it more than a minute
            await client.delete(paths.pods(namespace), grace_s=0, timeout_s=90.0)
        left, _ = await client.list_all(paths.pods(namespace))
        if not left:
            return
        await asyncio.sleep(1.0)


class Running:
    """Trainmaster as a process of its own, outside of the cluster."""

    def __init__(self, kubeconfig: Path, home: Path, policy: str) -> None:
        command = [
            sys.executable, "-c", "from trainmaster.cli.main import main; main()", "up", "--backend", "kubernetes",
            "--kubeconfig", str(kubeconfig), "--home", str(home), "--port", "0", "--agent-port", str(free_port()),
            "--policy", policy, "--log-level", "warning",
        ]  # fmt: skip
        self.begun_s = time.monotonic()
        self.log = (home.parent / "service.log").open("ab")
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log, env={**os.environ})
        self.home = home
        self.stats = psutil.Process(self.process.pid)

    def resident_mib(self) -> float:
        """Of the process and those that it started; pages that they share count once."""
        return sum(p.memory_full_info().pss for p in [self.stats, *self.stats.children(recursive=True)]) / 2**20

    def cpu_s(self) -> float:
        return sum(self.cpu_by_part_s().values())

    def cpu_by_part_s(self) -> Counter[str]:
        """Of the leader itself, and of the processes that forecast for it, those included that have ended."""
        times = self.stats.cpu_times()
        forecasts_s = times.children_user + times.children_system
        for child in self.stats.children(recursive=True):
            with contextlib.suppress(psutil.Error):
                forecasts_s += _cpu_s(child)
        return Counter({"leader": times.user + times.system, "forecasts": forecasts_s})

    async def serving(self, limit_s: float = 120.0) -> float:
        """Seconds from its start until it leads and answers."""
        import urllib.request

        while time.monotonic() - self.begun_s < limit_s:
            if self.process.poll() is not None:
                raise SystemExit(f"trainmaster ended: see {self.log.name}")
            try:
                at = (self.home / "address").read_text().strip()
                with urllib.request.urlopen(f"{at}/healthz", timeout=2) as answer:
                    if answer.status == 200:
                        return time.monotonic() - self.begun_s
            except OSError:
                pass
            await asyncio.sleep(0.1)
        raise SystemExit("trainmaster does not answer")

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()


async def queue_jobs(client: KubeClient, namespace: str, options: argparse.Namespace) -> tuple[list[int], float]:
    """Their sizes, and the seconds that it took to make them."""
    sizes = random.Random(options.seed).choices(SIZES, WEIGHTS, k=options.jobs)
    await client.create(paths.core("namespaces"), {"metadata": {"name": namespace}})
    path = paths.training_jobs(namespace)
    begun_s = time.monotonic()
    await many([lambda k=k: client.create(path, job(f"j{k:05}", sizes[k])) for k in range(options.jobs)])
    return sizes, time.monotonic() - begun_s


async def trainmaster_rate(
    client: KubeClient, cluster: KubeCluster, options: argparse.Namespace, home: Path
) -> dict[str, Any]:
    sizes, queued_s = await queue_jobs(client, "train", options)
    room = min(options.nodes * GPUS_PER_NODE, sum(sizes), options.most_bound)
    seen = Bindings(client, "train", made_too=True)
    watching = asyncio.create_task(seen.watch())
    before = writes_of(cluster)
    service = Running(cluster.kubeconfig, home, options.policy)
    costs = Costs(cluster)
    try:
        up_s = await service.serving()
        await seen.until(room, options.limit_s)
        cpu_s = service.cpu_s()
        bound = len(seen.times)
        cpu_ms = costs.per_pod_ms(bound, cpu_s)
        made = writes_of(cluster) - before
        busy_mib = service.resident_mib()
    finally:
        watching.cancel()
        service.stop()
    own = {name: made[name] for name in OURS if made[name]}
    return {
        "queued_jobs": options.jobs, "queued_per_s": round(options.jobs / queued_s, 1), "up_s": round(up_s, 1),
        **seen.summary(), "cpu_s": round(cpu_s, 1),
        "cpu_ms_per_pod": cpu_ms, "writes": dict(made.most_common(10)),
        "own_writes": own,
        "own_writes_per_pod": round(sum(own.values()) / max(bound, 1), 2),
        "resident_mib": round(busy_mib),
    }  # fmt: skip


async def idle(client: KubeClient, cluster: KubeCluster, options: argparse.Namespace, home: Path) -> dict[str, Any]:
    """Jobs wait and others run, and nothing changes."""
    await queue_jobs(client, "wait", options)
    told = writes_of(cluster)["PATCH trainingjobs/status"]
    service = Running(cluster.kubeconfig, home, options.policy)
    try:
        await service.serving()
        told_s = await settled(cluster, told + options.jobs, options.settle_s)
        before, begun_s = service.cpu_by_part_s(), time.monotonic()
        await asyncio.sleep(options.idle_s)
        spent, passed_s = service.cpu_by_part_s() - before, time.monotonic() - begun_s
        mib = service.resident_mib()
    finally:
        service.stop()
    pods, _ = await client.list_all(paths.pods("wait"))
    return {
        "jobs": options.jobs, "pods": len(pods), "told_s": round(told_s, 1), "idle_s": round(passed_s, 1),
        **{f"{part}_cpu_fraction": round(spent[part] / passed_s, 4) for part in ("leader", "forecasts")},
        "cpu_fraction": round(sum(spent.values()) / passed_s, 4), "resident_mib": round(mib),
    }  # fmt: skip


async def settled(cluster: KubeCluster, statuses: int, limit_s: float) -> float:
    """Seconds until every job has been told, a few at a time, and Trainmaster writes nothing any more."""
    begun_s, before = time.monotonic(), -1
    while time.monotonic() - begun_s < limit_s:
        made = writes_of(cluster)
        now = sum(made[name] for name in OURS if name != "POST configmaps")
        if now == before and made["PATCH trainingjobs/status"] >= statuses:
            break
        before = now
        await asyncio.sleep(QUIET_S)
    return time.monotonic() - begun_s


async def start_up(client: KubeClient, cluster: KubeCluster, options: argparse.Namespace, home: Path) -> dict[str, Any]:
    """A new process among many nodes and pods: how long until it leads and answers, and what it holds."""
    await client.create(paths.core("namespaces"), {"metadata": {"name": "crowd"}})
    nodes, _ = await client.list_all(paths.nodes())
    names = [node["metadata"]["name"] for node in nodes]

    def body(k: int) -> dict[str, Any]:
        made = pod(f"c{k}", "somebody-else")
        made["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "10m"}}
        made["spec"]["nodeName"] = names[k % len(names)]
        return made

    path = paths.pods("crowd")
    await many([lambda k=k: client.create(path, body(k)) for k in range(options.crowd)])
    service = Running(cluster.kubeconfig, home, options.policy)
    try:
        up_s = await service.serving()
        await asyncio.sleep(5.0)
        mib = service.resident_mib()
    finally:
        service.stop()
    return {"nodes": len(names), "pods": options.crowd, "up_s": round(up_s, 1), "resident_mib": round(mib)}


async def measure(cluster: KubeCluster, options: argparse.Namespace) -> dict[str, Any]:
    client = await KubeClient(load_config(cluster.kubeconfig), connections=CREATORS + 4).open()
    found: dict[str, Any] = {"nodes": options.nodes, "seed": options.seed, "policy": options.policy}
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        try:
            cluster.apply(crd())
            cluster.kubectl("wait", "--for=condition=Established", f"crd/{NAME}", "--timeout=30s")
            cluster.order("stop", "scheduler")
            await asyncio.sleep(REST_S)
            for phase in options.phases:
                match phase:
                    case "kube_scheduler":
                        found[phase] = await kube_scheduler_rate(client, cluster, options.pods)
                    case "trainmaster_gangs":
                        found[phase] = await trainmaster_gangs(client, cluster, options, home)
                    case "kube_scheduler_jobs":
                        found[phase] = await kube_scheduler_jobs(client, cluster, options.batch_pods, options.seed)
                    case "trainmaster":
                        found[phase] = await trainmaster_rate(client, cluster, options, home)
                    case "start_up":
                        found[phase] = await start_up(client, cluster, options, home)
                    case _:
                        found[phase] = await idle(client, cluster, options, home)
                print(phase, json.dumps(found[phase]), flush=True)
                await asyncio.sleep(REST_S)
        finally:
            log = Path(folder) / "service.log"
            if log.exists():
                print(log.read_text(errors="replace")[-options.log_tail :], file=sys.stderr)
            await client.close()
    for ours, theirs in RIVALS:
        rates = [found.get(name, {}).get("bound_per_s") for name in (ours, theirs)]
        if all(rates):
            found[f"{ours}_over_{theirs}"] = round(rates[0] / rates[1], 2)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--pods", type=int, default=4_000, help="pods that are there already")
    parser.add_argument("--most-bound", type=int, default=8_000, help="of TrainingJobs; then it is looked at")
    parser.add_argument("--batch-pods", type=int, default=2_000, help="pods of batch Jobs, for kube-scheduler")
    parser.add_argument("--crowd", type=int, default=20_000, help="pods of others at start-up")
    parser.add_argument("--phases", nargs="+", choices=PHASES, default=PHASES[:4])
    parser.add_argument("--policy", default="fifo:backfill=true")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit-s", type=float, default=300.0)
    parser.add_argument(
        "--settle-s", type=float, default=600.0, help="at most, until all jobs have been told why they wait"
    )
    parser.add_argument("--idle-s", type=float, default=300.0)
    parser.add_argument("--log-tail", type=int, default=2000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    # A busy machine may not keep up with heartbeats; nodes that are lost for that are not what is measured.
    extra = ("--fake-gpus", str(GPUS_PER_NODE), "--kube-scheduler", "--node-grace", "300")
    with kubernetes_cluster(fake=options.nodes, options=extra) as cluster:
        found = asyncio.run(measure(cluster, options))
    print(json.dumps(found, indent=2))
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
