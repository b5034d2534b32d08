"""The service under load: submissions per second from several clients, a long queue, an idle service.

Starts `trainmaster up` with the simulated backend (so that processes of jobs do not disturb the figures), fills the
cluster, then submits from several processes at a fixed rate. Wall times depend on what else the machine does, so the
CPU time of the service is told beside them. `--check` exits 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

TARGET_RATE = 500.0
TARGET_QUEUE_S = 0.3
TARGET_IDLE_CPU = 0.01
TARGET_RSS_MB = 250.0
CHUNK_S = 0.05


def _client(address: str, token: str, jobs: int, rate: float, begin: Any, out: Any) -> None:
    """Submit so many jobs at this rate; tells latencies in seconds."""
    parts = urlsplit(address)
    # A bare socket: the clients share two cores with the service, and it is not they that are measured.
    connection = socket.create_connection((parts.hostname or "", parts.port or 80))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    head = f"POST /api/v1/jobs HTTP/1.1\r\nHost: {parts.netloc}\r\nAuthorization: Bearer {token}\r\n"
    head += "Content-Type: application/json\r\nContent-Length: "
    me = os.getpid()
    begin.wait()
    started = time.perf_counter()
    latencies = []
    for k in range(jobs):
        ahead_s = started + k / rate - time.perf_counter()
        if ahead_s > 0:
            time.sleep(ahead_s)
        body = {
            "command": ["train", "--seed", str(k)],
            "steps": 1e6,
            "request_id": f"{me}-{k}",
            "entity": f"team-{k % 7}",
        }
        data = json.dumps(body)
        sent = time.perf_counter()
        connection.sendall(f"{head}{len(data)}\r\n\r\n{data}".encode())
        answer = b""
        while not answer.endswith(b"}"):  # of a JSON object, the end
            part = connection.recv(65536)
            if not part:
                break
            answer += part
        if not answer.startswith(b"HTTP/1.1 201 "):
            raise SystemExit(f"submission refused: {answer!r}")
        latencies.append(time.perf_counter() - sent)
    out.put((started, time.perf_counter(), latencies))


def _get(address: str, token: str, path: str) -> tuple[float, Any]:
    parts = urlsplit(address)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port)
    begun = time.perf_counter()
    connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
    data = connection.getresponse().read()
    return time.perf_counter() - begun, json.loads(data)


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--rate", type=float, default=1.2 * TARGET_RATE, help="offered, by all clients together")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--policy", default="fifo")
    parser.add_argument("--idle-s", type=float, default=20.0)
    parser.add_argument("--check", action="store_true")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="trainmaster-bench-") as folder:
        home = Path(folder) / "home"
        command = [sys.executable, "-m", "trainmaster", "up", "--home", str(home), "--port", "0", "--quiet",
                   "--backend", "simulated", "--nodes", "v100=64x8", "--policy", chosen.policy]  # fmt: skip
        service = subprocess.Popen(command)
        try:
            return _measure(service, home, chosen)
        finally:
            service.terminate()
            service.wait(30)


def _measure(service: subprocess.Popen[bytes], home: Path, chosen: argparse.Namespace) -> int:
    while not (home / "address").exists():
        if service.poll() is not None:
            raise SystemExit("the service did not start")
        time.sleep(0.05)
    address, token = (home / "address").read_text().strip(), (home / "token").read_text().strip()
    process = psutil.Process(service.pid)
    empty_mb = process.memory_info().rss / 2**20
    begin, out = multiprocessing.Event(), multiprocessing.Queue()
    each = chosen.jobs // chosen.clients
    clients = [
        multiprocessing.Process(
            target=_client, args=(address, token, each, chosen.rate / chosen.clients, begin, out), daemon=True
        )
        for _ in range(chosen.clients)
    ]
    for client in clients:
        client.start()
    time.sleep(1.0)
    cpu_before = _cpu_s(process)
    begin.set()
    told = [out.get() for _ in clients]
    for client in clients:
        client.join()
    cpu_s = _cpu_s(process) - cpu_before
    wall_s = max(end for _, end, _ in told) - min(start for start, _, _ in told)
    latencies = sorted(latency for _, _, found in told for latency in found)
    submitted = len(latencies)
    pages = min(_get(address, token, "/api/v1/jobs?state=active&limit=1000")[0] for _ in range(5))
    _, page = _get(address, token, "/api/v1/jobs?state=active&limit=1")
    queue_s = min(_command_s(["queue", "-o", "json"], home) for _ in range(3))
    time.sleep(2.0)
    idle_before, idle_begun = _cpu_s(process), time.perf_counter()
    time.sleep(chosen.idle_s)
    idle_cpu = (_cpu_s(process) - idle_before) / (time.perf_counter() - idle_begun)
    rss_mb = process.memory_info().rss / 2**20
    rate = submitted / wall_s
    figures = {
        "policy": chosen.policy,
        "submitted": submitted,
        "active": page["total"],
        "offered_per_s": chosen.rate,
        "submissions_per_s": round(rate, 1),
        "service_cpu_ms_per_submission": round(cpu_s / submitted * 1000, 3),
        "latency_p50_s": round(latencies[submitted // 2], 4),
        "latency_p99_s": round(latencies[submitted * 99 // 100], 4),
        "page_of_1000_s": round(pages, 3),
        "queue_command_s": round(queue_s, 3),
        "idle_cpu_fraction": round(idle_cpu, 5),
        "rss_empty_mb": round(empty_mb, 1),
        "rss_mb": round(rss_mb, 1),
        "load_average": os.getloadavg()[0],
    }
    print(json.dumps(figures, indent=2))
    met = {
        "submissions": rate >= TARGET_RATE,
        "queue": queue_s < TARGET_QUEUE_S,
        "idle": idle_cpu < TARGET_IDLE_CPU,
        "memory": empty_mb < TARGET_RSS_MB,
    }
    missed = [name for name, fine in met.items() if not fine]
    if missed:
        print(f"missed: {', '.join(missed)}")
    return 1 if missed and chosen.check else 0


def _command_s(arguments: list[str], home: Path) -> float:
    begun = time.perf_counter()
    command = [sys.executable, "-m", "trainmaster", *arguments, "--home", str(home)]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr.decode())
    return time.perf_counter() - begun


if __name__ == "__main__":
    sys.exit(main())
