"""Installed by helm into a cluster with real kubelets, with its own service account, and used as a new user would.

The image is the cluster's plain Python; packages and source reach the pods by folders of the host, which is the only
difference from an installation with an image of one's own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import yaml

from support.kubernetes.cluster import KubeCluster, NoCluster, kubernetes_cluster
from trainmaster.backends.kubernetes.resources.manifests import InstallOptions, manifests

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm" / "trainmaster"
SITE = Path(numpy.__file__).resolve().parents[1]
SYSTEM = "trainmaster-system"
IMAGE = "registry.local/python:3.11"
START_S = 400

pytestmark = [pytest.mark.slow, pytest.mark.long]


def _host(name: str, path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The folder appears in the pod under its own path, so that paths in messages are those of this machine."""
    volume = {"name": name, "hostPath": {"path": str(path), "type": "Directory"}}
    return volume, {"name": name, "mountPath": str(path), "readOnly": True}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeCluster]:
    mounts = [_host("site", SITE), _host("source", ROOT / "src")]
    start = 'mkdir -p "$HOME" && exec python3 -c "from trainmaster.cli.main import main; main()" "$@"'
    values = {
        "image": {"repository": IMAGE.partition(":")[0], "tag": "3.11"},
        "command": ["sh", "-c", start, "trainmaster"],
        "resources": {"requests": {"cpu": "50m", "memory": "300Mi"}, "limits": {"memory": "1Gi"}},
        "extraEnv": [{"name": "PYTHONPATH", "value": f"{ROOT / 'src'}:{SITE}"}],
        "extraVolumes": [volume for volume, _ in mounts],
        "extraVolumeMounts": [mount for _, mount in mounts],
    }
    file = tmp_path_factory.mktemp("values") / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    try:
        with kubernetes_cluster(
            fake=0, nodes=2, options=("--gpus", "4", "--gpu-types", "Tesla-V100-SXM2-16GB", "--kube-scheduler")
        ) as cluster:
            cluster.run(
                "helm", "install", "trainmaster", str(CHART), "-n", SYSTEM, "--create-namespace", "-f", str(file)
            )
            until_s = time.monotonic() + START_S
            while time.monotonic() < until_s:
                done = cluster.kubectl(
                    "-n", SYSTEM, "rollout", "status", "deployment/trainmaster", "--timeout=60s", check=False
                )
                if done.returncode == 0:
                    break
            else:
                pods = cluster.kubectl("-n", SYSTEM, "describe", "pods").stdout[-3000:]
                logs = cluster.kubectl("-n", SYSTEM, "logs", "-l", "app.kubernetes.io/name=trainmaster", check=False)
                raise AssertionError(f"it does not start: {pods}\n{logs.stdout}\n{logs.stderr}")
            yield cluster
    except NoCluster as error:
        pytest.skip(str(error))


class User:
    """Somebody with a token and a kubeconfig of their own."""

    def __init__(self, cluster: KubeCluster, name: str, role: str | None, folder: Path) -> None:
        self.cluster = cluster
        cluster.kubectl("create", "namespace", "research", check=False)
        cluster.kubectl("-n", "research", "create", "serviceaccount", name)
        if role is not None:
            cluster.kubectl(
                "-n", "research", "create", "rolebinding", name, f"--clusterrole={role}",
                f"--serviceaccount=research:{name}",
            )  # fmt: skip
        token = cluster.kubectl("-n", "research", "create", "token", name).stdout.strip()
        config = yaml.safe_load(cluster.kubeconfig.read_text())
        config["users"] = [{"name": name, "user": {"token": token}}]
        context = config["contexts"][0]["context"]
        config["contexts"] = [
            {"name": "here", "context": {"cluster": context["cluster"], "user": name, "namespace": "research"}}
        ]
        config["current-context"] = "here"
        self.kubeconfig = folder / f"{name}.conf"
        self.kubeconfig.write_text(yaml.safe_dump(config))
        self.kubeconfig.chmod(0o600)

    def trainmaster(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        env = {
            **os.environ, "KUBECONFIG": str(self.kubeconfig), "TRAINMASTER_URL": "kube:",
            "PYTHONPATH": str(ROOT / "src"),
        }  # fmt: skip
        command = [sys.executable, "-c", "from trainmaster.cli.main import main; main()", *arguments]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
        assert not check or done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
        return done

    def kubectl(self, *arguments: str, stdin: str | None = None, check: bool = True) -> str:
        done = self.cluster.kubectl("--kubeconfig", str(self.kubeconfig), *arguments, stdin=stdin, check=check)
        return done.stdout + done.stderr


@pytest.fixture(scope="module")
def alice(installed: KubeCluster, tmp_path_factory: pytest.TempPathFactory) -> User:
    return User(installed, "alice", "edit", tmp_path_factory.mktemp("alice"))


def job(name: str, script: str, **spec: Any) -> str:
    container = {"name": "main", "image": IMAGE, "command": ["python3", "-u", "-c", script]}
    made = {
        "apiVersion": "trainmaster.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": name},
        "spec": {"template": {"spec": {"containers": [container]}}, **spec},
    }
    return json.dumps(made)


def test_a_job_by_kubectl_runs_to_its_end(alice: User) -> None:
    script = "import os,time; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE']); time.sleep(2)"
    alice.kubectl("apply", "-f", "-", stdin=job("first", script, workers={"min": 2}))
    alice.kubectl("wait", "tj/first", "--for=condition=Complete", "--timeout=100s")
    assert "finished" in alice.kubectl("get", "tj", "first")
    told = alice.kubectl("describe", "tj", "first")
    assert "Starts on" in told and "Finished" in told
    logs = alice.trainmaster("logs", "first")
    assert "of 2" in logs.stdout, logs


def test_every_command_works_through_the_api_server(alice: User) -> None:
    run = alice.trainmaster
    submitted = run("submit", "--name", "second", "--image", IMAGE, "--elastic", "1..2", "--", "sleep", "300")
    job_id = submitted.stdout.strip().splitlines()[-1]
    assert job_id.startswith("research.second.")
    alice.kubectl("wait", "tj/second", "--for=condition=Running", "--timeout=60s")
    queue = json.loads(run("queue", "-o", "json").stdout)
    assert [item["name"] for item in queue["jobs"] if item["state"] == "running"] == ["second"]
    assert json.loads(run("job", job_id, "-o", "json").stdout)["namespace"] == "research"
    run("submit", "--name", "third", "--image", IMAGE, "--gpus", "8", "--", "sleep", "300")
    assert "waits" in run("why", "third").stdout
    alice.kubectl("wait", "tj/third", "--for=jsonpath={.status.state}=pending", "--timeout=20s")
    run("resize", "third", "1..4")
    alice.kubectl("wait", "tj/third", "--for=condition=Running", "--timeout=60s")
    assert json.loads(alice.kubectl("get", "tj", "third", "-o", "json"))["spec"]["workers"] == {"min": 1, "max": 4}
    run("pause", "second")
    deadline_s = time.monotonic() + 60
    while "paused" not in alice.kubectl("get", "tj", "second") and time.monotonic() < deadline_s:
        time.sleep(1)
    assert json.loads(alice.kubectl("get", "tj", "second", "-o", "json"))["spec"]["suspend"] is True
    run("resume", "second")
    speed = ("--steps", "60000", "--speed", "Tesla-V100-SXM2-16GB=10")
    preview = json.loads(
        run("submit", "--dry-run", "--image", IMAGE, *speed, "-o", "json", "--", "sleep", "300").stdout
    )
    assert preview["jobs"][0]["eta"]["p50_s"] > 5000
    told = run("whatif", "--add-nodes", "Tesla-V100-SXM2-16GB=8x4", check=False)
    assert told.returncode == 1 and "may not list trainingjobs" in told.stderr, "the whole queue is not hers to see"
    run("cancel", "second", "third")
    assert "cancel" in run("events").stdout
    run("submit", "--name", "huge", "--image", IMAGE, "--gpus", "64", "--", "true")
    assert "there is room for 8 on Tesla-V100-SXM2-16GB" in run("why", "huge").stdout


def test_a_user_without_rights_sees_nothing_and_is_told_why(
    installed: KubeCluster, alice: User, tmp_path: Path
) -> None:
    alice.kubectl("apply", "-f", "-", stdin=job("secret", "import time; time.sleep(100)"))
    mallory = User(installed, "mallory", None, tmp_path)
    told = mallory.trainmaster("job", "research.secret", check=False)
    assert told.returncode == 1 and "may not get trainingjobs in namespace 'research'" in told.stderr
    assert json.loads(mallory.trainmaster("queue", "-o", "json").stdout)["jobs"] == []
    told = mallory.trainmaster("submit", "--image", IMAGE, "--", "true", check=False)
    assert told.returncode == 1 and "may not create trainingjobs" in told.stderr
    told = mallory.trainmaster("nodes", check=False)
    assert told.returncode == 1 and "may not list nodes" in told.stderr
    assert "cannot list" in mallory.kubectl("get", "tj", check=False)
    alice.kubectl("delete", "tj", "secret")


def test_the_service_account_has_no_more_rights_than_it_was_given(installed: KubeCluster) -> None:
    account = f"--as=system:serviceaccount:{SYSTEM}:trainmaster"
    for verb, thing in (("get", "secrets"), ("create", "deployments"), ("delete", "nodes"), ("create", "clusterroles")):
        asked = installed.kubectl("auth", "can-i", verb, thing, "-n", "research", account, check=False)
        assert asked.stdout.strip() == "no", (verb, thing)


def test_its_pods_are_admitted_where_the_restricted_standard_is_enforced(installed: KubeCluster) -> None:
    label = "pod-security.kubernetes.io/enforce=restricted"
    installed.kubectl("create", "namespace", "strict")
    installed.kubectl("label", "namespace", "strict", label)
    deployment = next(t for t in manifests(InstallOptions(namespace="strict")) if t["kind"] == "Deployment")
    spec = {**deployment["spec"]["template"]["spec"], "serviceAccountName": "default"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "strict"}, "spec": spec}
    done = installed.kubectl("apply", "--dry-run=server", "-f", "-", stdin=json.dumps(pod), check=False)
    assert done.returncode == 0 and "violate" not in done.stderr, done.stderr


def test_metrics_and_removal(installed: KubeCluster, alice: User) -> None:
    path = f"/api/v1/namespaces/{SYSTEM}/services/http:trainmaster:8642/proxy/metrics"
    assert "trainmaster_" in installed.kubectl("get", "--raw", path).stdout
    alice.kubectl("apply", "-f", "-", stdin=job("stays", "import time; time.sleep(1000)"))
    alice.kubectl("wait", "tj/stays", "--for=condition=Running", "--timeout=60s")
    # Trainers end when nobody renews their lease, so a long one is given out before the service goes.
    kept = ("--reuse-values", "--set", "leaseSeconds=31536000", "--wait", "--timeout", "110s")
    installed.run("helm", "upgrade", "trainmaster", str(CHART), "-n", SYSTEM, *kept)
    time.sleep(20)
    installed.run("helm", "uninstall", "trainmaster", "-n", SYSTEM, "--wait")
    time.sleep(45)
    pods = json.loads(alice.kubectl("get", "pods", "-l", "trainmaster.dev/job=stays", "-o", "json"))["items"]
    assert [pod["status"]["phase"] for pod in pods] == ["Running"]
    assert "stays" in alice.kubectl("get", "tj"), "TrainingJobs stay, and so does the right to see them"
    # What was kept belongs to the next release of that name.
    installed.run("helm", "install", "trainmaster", str(CHART), "-n", SYSTEM)
