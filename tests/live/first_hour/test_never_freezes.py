"""A service that has never run answers and decides at once, whatever the policy: nothing compiles, nothing big
is loaded. Processor time is bounded, since clocks on the wall tell of other work on the machine too."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.machine import Machine, until
from trainmaster.client.client import Client
from trainmaster.policies import registry

pytestmark = pytest.mark.slow

READY_CPU_S, SWITCH_CPU_S = 3.0, 0.9
"""On a quiet machine: ready in three seconds, and an answer within a second."""
PATIENCE_S = 10.0
"""On the clock, on a busy machine; compiling took from 40 s to two minutes."""


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    here = Machine(tmp_path_factory.mktemp("cold"))
    here.environment["XDG_CACHE_HOME"] = str(here.work / "cache")
    here.up("--nodes", "v100:1x4,k80:1x4", "--backend", "simulated")
    yield here
    here.down()


def _cpu_s(machine: Machine) -> float:
    """Of the service's process, without those that look ahead or learn."""
    assert machine.service is not None
    fields = Path(f"/proc/{machine.service.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class _Pings(threading.Thread):
    """Somebody else asks all the while."""

    def __init__(self, home: Path) -> None:
        super().__init__()
        self.home, self.stop, self.worst_s, self.count = home, threading.Event(), 0.0, 0

    def run(self) -> None:
        with Client.find(self.home) as client:
            while not self.stop.wait(0.1):
                begun = time.monotonic()
                client.get("/service")
                self.worst_s, self.count = max(self.worst_s, time.monotonic() - begun), self.count + 1


def test_it_is_ready_at_once(machine: Machine) -> None:
    assert _cpu_s(machine) < READY_CPU_S


def _decided(client: Client, job: str) -> bool:
    view = client.get(f"/jobs/{job}")
    return view["state"] != "pending" or view["why"] not in ("", "next_round")


def test_every_policy_decides_at_once_and_freezes_nobody(machine: Machine) -> None:
    sizes, steps = ({"min": 1, "max": 1}, {"min": 1, "max": 2}), {"steps": 1e6, "steps_per_s": {"v100": 1.0}}
    short = {"command": ["x"], "deadline_s": 86_400, "steps": 5, "steps_per_s": {"v100": 50.0}}
    pings = _Pings(machine.home)
    with Client.find(machine.home) as client:
        for k in range(5):
            client.submit({"command": ["x"], "workers": sizes[k % 2], "preemptible": True, **steps})
        pings.start()
        try:
            for policy in [entry.name for entry in registry.entries()]:
                before_s = _cpu_s(machine)
                assert client.put("/policy", {"policy": policy})["policy"] == policy
                job = client.submit(short)["id"]
                until(lambda job=job: _decided(client, job), f"{policy} to decide", PATIENCE_S)
                assert _cpu_s(machine) - before_s < SWITCH_CPU_S, policy
        finally:
            pings.stop.set()
            pings.join()
    assert pings.count > 0 and pings.worst_s < PATIENCE_S
