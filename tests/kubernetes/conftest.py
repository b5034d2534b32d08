"""A cluster with fake nodes, shared by the tests of one run; skipped with a message where there is none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.kubernetes.cluster import KubeCluster, NoCluster, free_port, kubernetes_cluster
from trainmaster.backends.kubernetes.resources.crd import NAME, crd


@pytest.fixture(scope="session")
def fake_cluster() -> Iterator[KubeCluster]:
    """Three fake nodes and the TrainingJob resource."""
    try:
        with kubernetes_cluster(fake=3) as cluster:
            cluster.apply(crd())
            cluster.kubectl("wait", "--for=condition=Established", f"crd/{NAME}", "--timeout=30s")
            yield cluster
    except NoCluster as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def service(fake_cluster: KubeCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The service beside the cluster: three nodes with eight GPUs."""
    home = tmp_path_factory.mktemp("gangs") / "home"
    out = (home.parent / "out").open("w")
    command = [
        sys.executable, "-m", "trainmaster", "up", "--backend", "kubernetes", "--kubeconfig",
        str(fake_cluster.kubeconfig), "--home", str(home), "--port", "0", "--agent-port", str(free_port()),
        "--policy", "fifo",
    ]  # fmt: skip
    process = subprocess.Popen(
        command,
        stdout=out,
        stderr=out,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2] / "src")},
    )
    deadline_s = time.monotonic() + 600
    while "leader ready" not in (home.parent / "out").read_text():
        assert process.poll() is None and time.monotonic() < deadline_s, (home.parent / "out").read_text()
        time.sleep(0.2)
    yield home
    process.send_signal(signal.SIGTERM)
    process.wait(40)
