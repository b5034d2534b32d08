"""Pod creations per second against a real API server: our client, aiohttp alone, and other clients if installed.

python bench/bench_kube_client.py [--kubeconfig FILE] [--pods 1000] [--connections 32]; without a file a cluster is
started where one can be.

The pods name a scheduler that does not exist, so nothing but the API server and etcd works on them.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import orjson

from support.kubernetes.cluster import NoCluster, kubernetes_cluster
from trainmaster.backends.kubernetes.api import paths
from trainmaster.backends.kubernetes.api.client import KubeClient
from trainmaster.backends.kubernetes.api.config import KubeConfig, load_config

NAMESPACE = "default"


def pod(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"bench": "client"}},
        "spec": {"schedulerName": "nobody", "containers": [{"name": "c", "image": "x"}]},
    }


async def _spread(n: int, width: int, one: Callable[[int], Awaitable[object]]) -> None:
    numbers = iter(range(n))

    async def worker() -> None:
        for number in numbers:
            await one(number)

    await asyncio.gather(*(worker() for _ in range(width)))


async def ours(config: KubeConfig, n: int, width: int) -> None:
    client = await KubeClient(config, connections=width).open()
    path = paths.pods(NAMESPACE)
    await _spread(n, width, lambda k: client.create(path, pod(f"ours-{k}")))
    await client.close()


async def bare_aiohttp(config: KubeConfig, n: int, width: int) -> None:
    connector = aiohttp.TCPConnector(limit=width, ssl=config.ssl_context())
    async with aiohttp.ClientSession(connector=connector) as session:

        async def one(k: int) -> None:
            data = orjson.dumps(pod(f"aiohttp-{k}"))
            headers = {"Content-Type": "application/json", "Authorization": f"Bearer {config.bearer()}"}
            async with session.post(config.server + paths.pods(NAMESPACE), data=data, headers=headers) as answer:
                await answer.read()
                assert answer.status == 201, answer.status

        await _spread(n, width, one)


async def with_httpx(config: KubeConfig, n: int, width: int) -> None:
    limits = httpx.Limits(max_connections=width)
    options: dict[str, Any] = {"headers": {"Authorization": f"Bearer {config.bearer()}"}, "timeout": 60}
    async with httpx.AsyncClient(verify=config.ssl_context(), limits=limits, trust_env=False, **options) as session:

        async def one(k: int) -> None:
            answer = await session.post(config.server + paths.pods(NAMESPACE), json=pod(f"httpx-{k}"))
            assert answer.status_code == 201, answer.status_code

        await _spread(n, width, one)


def official(kubeconfig: Path, n: int, width: int) -> None:
    import kubernetes  # type: ignore[import-not-found]

    kubernetes.config.load_kube_config(str(kubeconfig))
    settings = kubernetes.client.Configuration.get_default_copy()
    settings.connection_pool_maxsize = width
    api = kubernetes.client.CoreV1Api(kubernetes.client.ApiClient(settings))
    with ThreadPoolExecutor(width) as pool:
        list(pool.map(lambda k: api.create_namespaced_pod(NAMESPACE, pod(f"official-{k}")), range(n)))


async def clean(config: KubeConfig) -> None:
    client = await KubeClient(config).open()
    params = {"labelSelector": "bench=client"}
    body = {"gracePeriodSeconds": 0}
    await client.request("DELETE", paths.pods(NAMESPACE), params=params, body=body, timeout_s=300)
    await client.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kubeconfig", type=Path)
    parser.add_argument("--pods", type=int, default=1000)
    parser.add_argument("--connections", type=int, default=32)
    options = parser.parse_args()
    if options.kubeconfig is not None:
        compare(options.kubeconfig, options.pods, options.connections)
        return
    try:
        with kubernetes_cluster(fake=1) as cluster:
            compare(cluster.kubeconfig, options.pods, options.connections)
    except NoCluster as error:
        print(error)


def compare(kubeconfig: Path, n: int, width: int) -> None:
    config = load_config(kubeconfig)
    ways: dict[str, Callable[[], object]] = {
        "trainmaster": lambda: asyncio.run(ours(config, n, width)),
        "aiohttp alone": lambda: asyncio.run(bare_aiohttp(config, n, width)),
        "httpx": lambda: asyncio.run(with_httpx(config, n, width)),
        "kubernetes (official)": lambda: official(kubeconfig, n, width),
    }
    for name, way in ways.items():
        asyncio.run(clean(config))
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        try:
            way()
        except ImportError as error:
            print(f"{name:24} not installed ({error.name})")
            continue
        wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
        print(f"{name:24} {n / wall_s:7.0f} pods/s  {1e6 * cpu_s / n:7.0f} us CPU of the client per pod")
    asyncio.run(clean(config))


if __name__ == "__main__":
    main()
