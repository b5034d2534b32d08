"""A cluster with fake nodes, shared by the tests of one run; skipped with a message where there is none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from trainmaster.backends.kubernetes.crd import NAME, crd
from trainmaster.testing.kube_cluster import KubeCluster, NoCluster, kubernetes_cluster


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
