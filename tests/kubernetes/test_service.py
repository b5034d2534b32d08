"""`trainmaster up --backend kubernetes` as its users meet it: TrainingJobs run, leaders die, nodes come and go."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.kubernetes.bench import training_job
from support.kubernetes.cluster import KubeCluster

SOURCE = str(Path(__file__).resolve().parents[2] / "src")


class Replica:
    def __init__(self, cluster: KubeCluster, home: Path, policy: str) -> None:
        self.home = home
        home.mkdir(parents=True, exist_ok=True)
        self.log = (home / "out").open("w")
        command = [
            sys.executable, "-m", "trainmaster", "up", "--backend", "kubernetes", "--kubeconfig",
            str(cluster.kubeconfig), "--home", str(home), "--port", "0", "--agent-port", str(free_port()), "--policy",
            policy,
        ]  # fmt: skip
        env = {**os.environ, "PYTHONPATH": SOURCE}
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log, env=env)

    def output(self) -> str:
        return (self.home / "out").read_text()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.kill()
        self.log.close()


class Commands:
    """The command line against a service whose home folder is here."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        split = words.index("--") if "--" in words else len(words)
        ours = ("--home", str(self.home), "-o", "json")
        line = [sys.executable, "-m", "trainmaster", *words[:split], *ours, *words[split:]]
        env = {**os.environ, "PYTHONPATH": SOURCE}
        return subprocess.run(line, capture_output=True, text=True, env=env, timeout=120)

    def __call__(self, *words: str) -> Any:
        done = self.run(*words)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return json.loads(done.stdout)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def until(truth: Callable[[], Any], patience_s: float = 90.0, told: Callable[[], str] = str) -> Any:
    deadline_s = time.monotonic() + patience_s
    while True:
        found = truth()
        if found:
            return found
        assert time.monotonic() < deadline_s, f"it did not come about: {told()[-3000:]}"
        time.sleep(0.2)


def job(name: str, workers: int = 1, gpus: int = 1, seconds: int = 3, code: int = 0, **spec: Any) -> dict[str, Any]:
    body = training_job(name, ["true"], (workers, workers), gpus, launcher=False, **spec)
    body["metadata"]["namespace"] = "default"
    annotations = {"trainmaster.dev/fake-run": f"{seconds}s"}
    if code:
        annotations["trainmaster.dev/fake-exit"] = str(code)
    body["spec"]["template"]["metadata"] = {"annotations": annotations}
    return body


def states(cluster: KubeCluster) -> dict[str, str]:
    items = cluster.get("tj", "-n", "default")["items"]
    return {item["metadata"]["name"]: (item.get("status") or {}).get("state", "") for item in items}


@pytest.fixture
def replicas(fake_cluster: KubeCluster, tmp_path: Path) -> Iterator[Callable[..., Replica]]:
    started: list[Replica] = []
    fake_cluster.kubectl("delete", "tj", "--all", "-n", "default", "--wait=false")

    def start(policy: str = "fifo") -> Replica:
        replica = Replica(fake_cluster, tmp_path / f"home{len(started)}", policy)
        started.append(replica)
        return replica

    yield start
    for replica in started:
        replica.stop()
    fake_cluster.kubectl("delete", "tj", "--all", "-n", "default", "--wait=false")


def test_jobs_run_wait_fail_and_are_deleted(fake_cluster: KubeCluster, replicas: Callable[..., Replica]) -> None:
    replica = replicas()
    until(lambda: "leader ready" in replica.output(), 120, replica.output)
    fake_cluster.apply(
        job("whole", workers=3, gpus=8, seconds=30), job("behind", workers=1, gpus=8, seconds=2),
        job("broken", gpus=1, seconds=1, code=7, maxAttempts=1),
    )  # fmt: skip
    until(lambda: states(fake_cluster).get("whole") == "running", told=replica.output)
    until(lambda: states(fake_cluster).get("behind") == "pending", told=replica.output)
    waiting = fake_cluster.get("tj", "behind", "-n", "default")["status"]
    assert waiting["reason"]
    over = {"whole": "finished", "behind": "finished", "broken": "failed"}
    until(lambda: states(fake_cluster) == over, 120, told=replica.output)
    fake_cluster.apply(job("endless", gpus=1, seconds=10_000))
    until(lambda: states(fake_cluster).get("endless") == "running", told=replica.output)
    for change, shown in (({"workers": {"min": 1, "max": 2}}, "2/1-2"), ({"deadlineSeconds": 900}, "2/1-2")):
        fake_cluster.kubectl(
            "patch", "tj", "endless", "-n", "default", "--type=merge", "-p", json.dumps({"spec": change})
        )
        generation = fake_cluster.get("tj", "endless", "-n", "default")["metadata"]["generation"]

        def taken(generation: int = generation, shown: str = shown) -> bool:
            status = fake_cluster.get("tj", "endless", "-n", "default")["status"]
            return (status["observedGeneration"], status["shown"]["workers"]) == (generation, shown)

        until(taken, 10, replica.output)  # sooner than progress is told anyway
    fake_cluster.kubectl("delete", "tj", "endless", "-n", "default")
    until(lambda: "endless" not in fake_cluster.kubectl("get", "pods", "-n", "default").stdout, told=replica.output)


def test_a_selector_and_a_cordon_are_honoured(fake_cluster: KubeCluster, replicas: Callable[..., Replica]) -> None:
    replica = replicas()
    nodes = [node["metadata"]["name"] for node in fake_cluster.get("nodes")["items"]]
    fake_cluster.kubectl("label", "node", nodes[2], "side=east", "--overwrite")
    until(lambda: "leader ready" in replica.output(), 120, replica.output)
    fake_cluster.kubectl("cordon", nodes[0])
    try:
        time.sleep(2.0)  # nodes and jobs are watched apart, so that a job may be heard of before an earlier cordon
        chosen = job("chosen", workers=2, gpus=4, seconds=2)
        chosen["spec"]["template"]["spec"]["nodeSelector"] = {"side": "east"}
        fake_cluster.apply(chosen, job("anywhere", workers=2, gpus=4, seconds=2))
        until(lambda: states(fake_cluster) == {"chosen": "finished", "anywhere": "finished"}, 120, replica.output)
        pods = fake_cluster.get("pods", "-n", "default", "-l", "trainmaster.dev/job=chosen")["items"]
        assert {pod["spec"]["nodeName"] for pod in pods} == {nodes[2]}
        pods = fake_cluster.get("pods", "-n", "default", "-l", "trainmaster.dev/job=anywhere")["items"]
        assert {pod["spec"]["nodeName"] for pod in pods} == {nodes[1]}
    finally:
        fake_cluster.kubectl("uncordon", nodes[0])
        fake_cluster.kubectl("label", "node", nodes[2], "side-")


def test_a_new_node_is_used_while_jobs_run(fake_cluster: KubeCluster, replicas: Callable[..., Replica]) -> None:
    if fake_cluster.tool is None:
        pytest.skip("nodes are made for a cluster of our own only")
    replica = replicas()
    fake_cluster.apply(job("runs", workers=3, gpus=8, seconds=10_000))
    until(lambda: states(fake_cluster).get("runs") == "running", 120, replica.output)
    fake_cluster.apply(job("more", workers=1, gpus=8, seconds=2))
    node = json.loads(json.dumps(fake_cluster.get("nodes")["items"][0]))
    meta, status = node["metadata"], node["status"]
    node["metadata"] = {key: meta[key] for key in ("labels", "annotations") if key in meta} | {"name": "newcomer"}
    node["spec"] = {"taints": node["spec"].get("taints", [])}
    fake_cluster.apply(node)
    try:
        body = json.dumps({"status": {key: status[key] for key in ("allocatable", "capacity", "conditions")}})
        fake_cluster.kubectl("patch", "node", "newcomer", "--subresource=status", "--type=merge", "-p", body)
        until(lambda: states(fake_cluster).get("more") == "finished", 60, replica.output)
        assert states(fake_cluster)["runs"] == "running"
        runs = fake_cluster.get("tj", "runs", "-n", "default")["status"]
        assert runs["attempts"] == 1
    finally:
        fake_cluster.kubectl("delete", "tj", "--all", "-n", "default", "--wait=false")
        fake_cluster.kubectl("delete", "node", "newcomer")


def test_a_leader_that_is_killed_is_followed_within_15_s(
    fake_cluster: KubeCluster, replicas: Callable[..., Replica]
) -> None:
    one = replicas()
    until(lambda: "leader ready" in one.output(), 120, one.output)
    two = replicas()
    until(lambda: "ready" in two.output(), 120, two.output)
    fake_cluster.apply(job("lives", workers=2, gpus=4, seconds=40), job("waits", workers=3, gpus=8, seconds=1))
    until(lambda: states(fake_cluster).get("lives") == "running", told=one.output)
    before = {pod["metadata"]["uid"] for pod in fake_cluster.get("pods", "-n", "default")["items"]}
    Commands(one.home)("policy", "fifo:backfill=true")
    one.kill()
    killed_s = time.monotonic()
    until(lambda: "leader ready" in two.output(), 60, two.output)
    took_s = time.monotonic() - killed_s
    assert took_s < 15.0, f"{took_s:.1f} s"
    assert Commands(two.home)("policy")["policy"] == "fifo:backfill=true", "the choice of the operator"
    until(lambda: states(fake_cluster) == {"lives": "finished", "waits": "finished"}, 120, two.output)
    pods = fake_cluster.get("pods", "-n", "default", "-l", "trainmaster.dev/job=lives")["items"]
    assert {pod["metadata"]["uid"] for pod in pods} <= before, "what ran went on, and was not started twice"
    assert fake_cluster.get("tj", "lives", "-n", "default")["status"]["attempts"] == 1


def test_forecasts_reach_kubectl_and_every_command(fake_cluster: KubeCluster, replicas: Callable[..., Replica]) -> None:
    replica = replicas()
    until(lambda: "leader ready" in replica.output(), 120, replica.output)
    speed = {"work": {"steps": 6000}, "stepsPerSecond": {"Tesla-V100-SXM2-16GB": 10.0}}
    fake_cluster.apply(job("first", workers=3, gpus=8, seconds=10_000, **speed))
    until(lambda: states(fake_cluster).get("first") == "running", told=replica.output)
    fake_cluster.apply(job("second", workers=3, gpus=8, seconds=10_000, **speed))

    def shown() -> list[list[str]]:
        rows = [line.split() for line in fake_cluster.kubectl("get", "tj", "-n", "default").stdout.splitlines()]
        return [row for row in rows if any(":" in word for word in row)]

    until(lambda: len(shown()) == 2, 60, replica.output)  # an ETA is the only column with a time of day
    statuses = {t["metadata"]["name"]: t["status"] for t in fake_cluster.get("tj", "-n", "default")["items"]}
    assert statuses["second"]["state"] == "pending", "nothing has happened to it but the forecast"
    assert 500 < statuses["first"]["etaSeconds"] < 700
    assert 1100 < statuses["second"]["etaSeconds"] < 1400
    ask = Commands(replica.home)
    etas = {found["name"]: found["eta_s"] for found in ask("queue")["jobs"]}
    assert 400 < etas["first"] < 700 and 1000 < etas["second"] < 1400
    whatif = ask("whatif", "--add-nodes", "Tesla-V100-SXM2-16GB=24x8")
    gains_s = {name.split(".")[1]: seconds for name, seconds in whatif["gains_s"].items()}
    assert abs(gains_s["first"]) < 1 and gains_s["second"] > 500, "with as many nodes again nobody waits"
    speed = "Tesla-V100-SXM2-16GB=10"
    wanted = ["--image", "registry.local/pause:1", "--gpus", "8", "--steps", "600", "--speed", speed]
    preview = ask("submit", "--dry-run", *wanted, "--", "true")["jobs"][0]
    assert preview["starts"]["p50_s"] > 1000, "behind both"
    # A minute's work; the middle of the ends and the middle of the starts need not come from the same drawn future.
    assert 20 < preview["eta"]["p50_s"] - preview["starts"]["p50_s"] < 150
    assert len(fake_cluster.get("tj", "-n", "default")["items"]) == 2, "nothing was submitted"
    refused = ask.run("submit", "--dry-run", "--gpus", "8", "--", "true")
    assert refused.returncode == 2 and "--image" in refused.stderr
