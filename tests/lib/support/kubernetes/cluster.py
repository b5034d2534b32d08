"""A Kubernetes cluster for tests: the one that is named in the environment, or one started for them, or none.

`TRAINMASTER_TEST_KUBECONFIG` names a cluster that may be used; otherwise the program `cluster` beside the shared data
(see `docs/testing.md`) starts one with as many real or fake nodes as asked for, and stops it again.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support import ROOT

UP_S = 180


class NoCluster(Exception):
    """Neither a kubeconfig nor the program; the text says so."""


@dataclass
class KubeCluster:
    kubeconfig: Path
    tool: Path | None
    folder: Path | None

    def kubectl(
        self, *arguments: str, stdin: str | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        return self.run("kubectl", *arguments, stdin=stdin, check=check)

    def run(
        self, program: str, *arguments: str, stdin: str | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """kubectl or helm, as their user would call them."""
        if self.tool is None:
            command = [program, *arguments]
        else:
            command = [str(self.tool), "--dir", str(self.folder), program, *arguments]
        env = {**os.environ, "KUBECONFIG": str(self.kubeconfig)}
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, env=env, timeout=120)
        if check and done.returncode:
            raise AssertionError(f"{' '.join(command)}: {done.stderr or done.stdout}")
        return done

    def apply(self, *objects: dict[str, Any], check: bool = True) -> subprocess.CompletedProcess[str]:
        listed = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        return self.kubectl("apply", "-f", "-", stdin=json.dumps(listed), check=check)

    def get(self, *arguments: str) -> Any:
        return json.loads(self.kubectl("get", *arguments, "-o", "json").stdout)

    def order(self, *arguments: str) -> None:
        """Tell the program something, such as `stop apiserver`."""
        assert self.tool is not None, "only for a cluster of our own"
        subprocess.run(
            [str(self.tool), "--dir", str(self.folder), *arguments], check=True, capture_output=True, timeout=UP_S
        )


def tool_path() -> Path | None:
    root = Path(os.environ.get("TRAINMASTER_DATA", ROOT.parent / "shared"))
    path = root / "k8s" / "cluster"
    return path if path.exists() else None


@contextmanager
def kubernetes_cluster(*, fake: int = 3, nodes: int = 0, options: tuple[str, ...] = ()) -> Iterator[KubeCluster]:
    """Raises `NoCluster` when there is none to be had."""
    given = os.environ.get("TRAINMASTER_TEST_KUBECONFIG")
    if given:
        yield KubeCluster(Path(given), None, None)
        return
    tool = tool_path()
    if tool is None:
        raise NoCluster("no cluster: set TRAINMASTER_TEST_KUBECONFIG, or TRAINMASTER_DATA to a folder with k8s/cluster")
    for last in (False, True):  # the first start on a machine unpacks the programs, and may give up on a slow disk
        folder = Path(tempfile.mkdtemp(prefix="tm-k8s-"))
        base = [str(tool), "--dir", str(folder)]
        counts = ["--fake", str(fake), "--nodes", str(nodes), "--port", str(free_port())]
        try:
            started = subprocess.run([*base, "up", *counts, *options], capture_output=True, text=True, timeout=UP_S)
            if started.returncode == 0:
                yield KubeCluster(folder / "admin.conf", tool, folder)
                return
            if last:
                raise NoCluster(f"the cluster did not start: {(started.stderr or started.stdout)[-500:]}")
        finally:
            subprocess.run([*base, "down"], capture_output=True, timeout=UP_S)
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def own_cluster(nodes: int, *options: str) -> Iterator[tuple[KubeCluster, Path]]:
    """A cluster of one's own with real nodes, whose pods reach this machine, and a folder beside it. Skips without."""
    if os.geteuid() != 0:
        pytest.skip("real nodes need root")
    folder = Path(tempfile.mkdtemp(prefix="tm-beside-"))
    try:
        with kubernetes_cluster(fake=0, nodes=nodes, options=options) as cluster:
            if cluster.tool is None:
                pytest.skip("needs a cluster of its own, with pods that reach this machine")
            yield cluster, folder
    except NoCluster as error:
        pytest.skip(str(error))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
