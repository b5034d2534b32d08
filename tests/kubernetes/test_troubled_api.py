"""An API server that throttles, conflicts, fails and loses answers; and one that gives no rights: nothing is lost."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from aiohttp import web

from support.kubernetes.bench import training_job
from support.kubernetes.cluster import KubeCluster, free_port
from support.loop_thread import LoopThread
from trainmaster.backends.kubernetes.api.config import load_config

pytestmark = pytest.mark.slow
SOURCE = str(Path(__file__).resolve().parents[2] / "src")
TROUBLE = 0.25
"""So many of the writes go wrong in some way."""
N_JOBS = 24


class Troublemaker:
    """Passes requests on to the API server; a part of the writes is refused, or done without an answer."""

    def __init__(self, kubeconfig: Path, seed: int) -> None:
        self._config = load_config(kubeconfig)
        self._rng = random.Random(seed)
        self.made: dict[str, int] = {}

    async def open(self) -> int:
        context = self._config.ssl_context()
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=context), auto_decompress=False
        )
        app = web.Application(client_max_size=2**25)
        app.router.add_route("*", "/{path:.*}", self._pass)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        port = free_port()
        await web.TCPSite(self._runner, "127.0.0.1", port).start()
        return port

    async def close(self) -> None:
        await self._runner.cleanup()
        await self._session.close()

    async def _pass(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        trouble = self._trouble(request)
        if trouble == "throttled":
            return web.json_response(_status(429, "TooManyRequests"), status=429, headers={"Retry-After": "1"})
        if trouble == "failed":
            return web.json_response(_status(503, "ServiceUnavailable"), status=503)
        if trouble == "conflict":
            return web.json_response(_status(409, "Conflict"), status=409)
        headers = {k: v for k, v in request.headers.items() if k.lower() in ("content-type", "accept")}
        token = self._config.bearer()
        if token:
            headers["Authorization"] = f"Bearer {token}"
        url = self._config.server + request.raw_path
        async with self._session.request(request.method, url, data=body, headers=headers) as answer:
            if trouble == "unanswered":
                await answer.read()
                assert request.transport is not None
                request.transport.close()
                raise asyncio.CancelledError
            passed = web.StreamResponse(status=answer.status)
            passed.content_type = answer.content_type
            await passed.prepare(request)
            async for chunk in answer.content.iter_any():
                await passed.write(chunk)
            await passed.write_eof()
            return passed

    def _trouble(self, request: web.Request) -> str:
        if request.method == "GET" or "/leases" in request.path or self._rng.random() >= TROUBLE:
            return ""
        kinds = ["throttled", "failed", "unanswered"]
        if request.method == "PATCH":
            kinds.append("conflict")
        kind = self._rng.choice(kinds)
        self.made[kind] = self.made.get(kind, 0) + 1
        return kind


def _status(code: int, reason: str) -> dict[str, Any]:
    return {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason,
            "message": f"made up: {reason}"}  # fmt: skip


@pytest.fixture
def troublemaker(fake_cluster: KubeCluster) -> Iterator[tuple[Troublemaker, int]]:
    thread = LoopThread("troublemaker")
    made = Troublemaker(fake_cluster.kubeconfig, seed=7)
    port = thread.call(made.open(), 20)
    yield made, port
    thread.call(made.close(), 20)
    thread.close()


def _kubeconfig(folder: Path, server: str, **user: str) -> Path:
    path = folder / "kubeconfig"
    config = {
        "clusters": [{"name": "c", "cluster": {"server": server, "insecure-skip-tls-verify": True}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(yaml.safe_dump(config))
    return path


def _up(kubeconfig: Path, home: Path, out: Any) -> subprocess.Popen[bytes]:
    command = [
        sys.executable, "-m", "trainmaster", "up", "--backend", "kubernetes", "--kubeconfig", str(kubeconfig),
        "--home", str(home), "--port", "0", "--agent-port", str(free_port()), "--policy", "fifo:backfill=true",
    ]  # fmt: skip
    return subprocess.Popen(command, stdout=out, stderr=out, env={**os.environ, "PYTHONPATH": SOURCE})


def test_no_job_is_lost_or_run_twice_while_every_fourth_write_goes_wrong(
    fake_cluster: KubeCluster, troublemaker: tuple[Troublemaker, int], tmp_path: Path
) -> None:
    made, port = troublemaker
    fake_cluster.kubectl("delete", "tj", "--all", "-n", "default")
    out = tmp_path / "out"
    process = _up(_kubeconfig(tmp_path, f"http://127.0.0.1:{port}"), tmp_path / "home", out.open("w"))
    try:
        jobs = []
        for k in range(N_JOBS):
            workers = 1 + k % 3
            body = training_job(f"troubled-{k}", ["true"], (workers, workers), 2, launcher=False)
            body["metadata"]["namespace"] = "default"
            body["spec"]["template"]["metadata"] = {"annotations": {"trainmaster.dev/fake-run": "2s"}}
            jobs.append(body)
        fake_cluster.apply(*jobs)
        deadline_s = time.monotonic() + 150
        while True:
            items = fake_cluster.get("tj", "-n", "default")["items"]
            states = [(item.get("status") or {}).get("state") for item in items]
            if states == ["finished"] * N_JOBS:
                break
            assert time.monotonic() < deadline_s and process.poll() is None, (states, out.read_text()[-3000:])
            time.sleep(1.0)
        assert made.made.keys() == {"throttled", "failed", "unanswered", "conflict"}, made.made
        assert [item["status"]["attempts"] for item in items] == [1] * N_JOBS
        labels = [pod["metadata"].get("labels") or {} for pod in fake_cluster.get("pods", "-n", "default")["items"]]
        named = [label.get("trainmaster.dev/job", "") for label in labels]
        pods = [name for name in named if name.startswith("troubled-")]  # other tests use this cluster too
        assert {name: pods.count(name) for name in set(pods)} == {f"troubled-{k}": 1 + k % 3 for k in range(N_JOBS)}
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(40)
        fake_cluster.kubectl("delete", "tj", "--all", "-n", "default", "--wait=false")


def test_a_service_account_without_rights_is_told_which_one_is_missing(
    fake_cluster: KubeCluster, tmp_path: Path
) -> None:
    fake_cluster.kubectl("-n", "default", "create", "serviceaccount", "powerless", check=False)
    token = fake_cluster.kubectl("-n", "default", "create", "token", "powerless").stdout.strip()
    server = load_config(fake_cluster.kubeconfig).server
    process = _up(_kubeconfig(tmp_path, server, token=token), tmp_path / "home", subprocess.PIPE)
    told = b"".join(process.communicate(timeout=60)).decode()
    assert process.returncode == 2, told
    assert "a right is missing" in told and "trainingjobs" in told and "kube manifests" in told
    assert "Traceback" not in told
