"""What thousands of trainers cost the service: launchers' connections that attach and renew, on one hub.

    python bench/bench_launchers.py [--trainers 8000] [--lease-s 30] [--seconds 30]

Prints CPU of the hub's process per second, for attaching and for renewing, as one JSON object. The launchers are
connections of another process that speak as launchers do; nothing is simulated on the hub's side.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import resource
import time
from multiprocessing.connection import Connection
from typing import Any

from support.launcher_attempts import LauncherAttempts
from trainmaster.backends.kubernetes.attempts.observations import PodSeat, RunFacts, RunKey, run_token
from trainmaster.backends.kubernetes.launchers.hub import AgentHub
from trainmaster.gang.protocol import Attach, Began, Begin, LineBuffer, Progress, Renew, encode
from trainmaster.launcher.dialing import PATH, PROTOCOL
from trainmaster.model.lease import LeaseRule
from trainmaster.testing.builders import a_job

SECRET = b"b" * 32
GANG = 8


class Client(asyncio.Protocol):
    """One launcher's connection: renews, and reports progress with each renewal, as a runtime would cause it to."""

    def __init__(self, attach: Attach, every_s: float, delay_s: float) -> None:
        self._attach, self._every_s, self._delay_s = attach, every_s, delay_s
        self._buffer: LineBuffer | None = None
        self._number = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(
            f"GET {PATH} HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: {PROTOCOL}\r\n\r\n".encode() + encode(self._attach)
        )

    def data_received(self, data: bytes) -> None:
        if self._buffer is None:
            data = data.partition(b"\r\n\r\n")[2]
            self._buffer = LineBuffer()
            asyncio.get_running_loop().call_later(self._delay_s, self._renew)
        for message in self._buffer.feed(data):
            if isinstance(message, Begin):
                self._transport.write(encode(Began(1)))

    def _renew(self) -> None:
        self._number += 1
        self._transport.write(encode(Renew(self._number)) + encode(Progress(float(self._number), 1.0, 0.5)))
        asyncio.get_running_loop().call_later(self._every_s, self._renew)


def _keys(trainers: int) -> list[RunKey]:
    return [RunKey(f"job-{n}", 1) for n in range(-(-trainers // GANG))]


def _clients(pipe: Connection, trainers: int, port: int, every_s: float) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        gate = asyncio.Semaphore(200)

        async def one(number: int) -> None:
            key = RunKey(f"job-{number // GANG}", 1)
            attach = Attach(run_token(SECRET, key), key.job_id, 1, f"worker-{number % GANG}", "boot", "127.0.0.1")
            delay_s = every_s * number / trainers
            async with gate:
                await loop.create_connection(lambda: Client(attach, every_s, delay_s), "127.0.0.1", port)

        await asyncio.gather(*(one(number) for number in range(trainers)))
        pipe.send("there")
        await asyncio.Event().wait()

    asyncio.run(run())


async def _measure(trainers: int, lease_s: float, seconds: float) -> dict[str, Any]:
    rule = LeaseRule(int(lease_s * 1000))
    attempts = LauncherAttempts()
    hub = attempts.hub = AgentHub(SECRET, rule, lambda: time.monotonic_ns() // 1_000_000, attempts)
    for key in _keys(trainers):
        facts = RunFacts(key, "default", key.job_id, "", 1, "", (), lease_s, 20.0, a_job(key.job_id), {})
        attempts.start(facts, [PodSeat(f"worker-{n}", "worker", n, "n", 0, 1, GANG, 0) for n in range(GANG)])
    port = await hub.listen("127.0.0.1", 0)
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    every_s = rule.renew_every_ms / 1000
    process = multiprocessing.get_context("spawn").Process(
        target=_clients, args=(theirs, trainers, port, every_s), daemon=True
    )
    process.start()
    began_cpu_s, began_s = time.process_time(), time.monotonic()
    while not ours.poll():
        await asyncio.sleep(0.05)
    attach_cpu_s, attach_s = time.process_time() - began_cpu_s, time.monotonic() - began_s
    await asyncio.sleep(every_s)
    before, began_cpu_s, began_s = hub.renewals, time.process_time(), time.monotonic()
    await asyncio.sleep(seconds)
    wall_s = time.monotonic() - began_s
    cpu_s, renewals = time.process_time() - began_cpu_s, hub.renewals - before
    process.kill()
    await hub.close()
    return {
        "trainers": trainers, "lease_s": lease_s, "attach_cpu_s": round(attach_cpu_s, 2),
        "attach_s": round(attach_s, 2),
        "renewals_per_s": round(renewals / wall_s, 1), "cpu_per_s": round(cpu_s / wall_s, 4),
        "cpu_us_per_renewal": round(1e6 * cpu_s / max(renewals, 1), 1),
        "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainers", type=int, default=8000)
    parser.add_argument("--lease-s", type=float, default=30.0)
    parser.add_argument("--seconds", type=float, default=30.0)
    options = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65536), hard))
    print(json.dumps(asyncio.run(_measure(options.trainers, options.lease_s, options.seconds))))


if __name__ == "__main__":
    main()
