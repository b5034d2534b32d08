"""Jobs as real processes under several policies: order of events and completion times are as simulated."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support.as_simulated import compare, launch_ms
from trainmaster.client.client import Client
from trainmaster.engine.engine import Settings
from trainmaster.engine.persistence import ended_from_record
from trainmaster.engine.records import Ended
from trainmaster.estimate.prices import PRICE_PER_GPU_HOUR
from trainmaster.forecast.situation import Costs
from trainmaster.model.cluster import parse_cluster
from trainmaster.model.errors import TrainmasterError
from trainmaster.model.job import Phase
from trainmaster.stores.sqlite import SqliteStore

NODES = "v100=2x2,k80=1x1"
ROUND_S = 5.0
IN_ROUNDS = ("gavel-max-min",)
SPEEDS = {"v100": 10.0, "k80": 5.0}
PATIENCE_S = 300.0


@dataclass
class Live:
    home: Path
    client: Client
    process: subprocess.Popen[bytes]


@pytest.fixture
def live(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Live]:
    home = tmp_path / "home"
    policy = getattr(request, "param", "fifo")
    env = {**os.environ, "PYTHONPATH": ":".join(filter(None, sys.path))}
    command = [sys.executable, "-m", "trainmaster", "up", "--home", str(home), "--port", "0", "--quiet",
               "--nodes", NODES, "--policy", policy, "--stop-jobs"]  # fmt: skip
    if policy in IN_ROUNDS:
        command += ["--round", str(ROUND_S)]
    process = subprocess.Popen(command, env=env)
    deadline_s = time.monotonic() + 120
    while not (home / "address").exists():
        assert process.poll() is None, "the service did not start"
        assert time.monotonic() < deadline_s
        time.sleep(0.1)
    with Client.find(home) as client:
        yield Live(home, client, process)
    process.terminate()
    process.wait(60)


def _submit(live: Live, steps: int, workers: int, **more: Any) -> str:
    body = {
        "command": [sys.executable, "-m", "trainmaster.runtime.emulated", "--steps", str(steps), "--save-every", "10"],
        "steps": steps,
        "steps_per_s": SPEEDS,
        "workers": {"min": workers, "max": workers},
        "preemptible": True,  # as jobs of traces are
        "env": {"PYTHONPATH": ":".join(filter(None, sys.path))},
        "workdir": str(live.home),
        **more,
    }
    return live.client.submit(body)["id"]


def _ended(live: Live, ids: list[str]) -> dict[str, Ended]:
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        states = {job_id: live.client.get(f"/jobs/{job_id}")["state"] for job_id in ids}
        if not set(states.values()) & {"pending", "running", "paused"}:
            break
        assert time.monotonic() < deadline_s, states
        time.sleep(0.5)
    store = SqliteStore(live.home / "trainmaster.db")
    try:
        records = store.load().ended
    finally:
        store.close()
    return {job_id: ended_from_record(records[job_id]) for job_id in ids}


_UTILITY = {"kind": "sigmoid", "theta1": 50.0, "theta2": 0.01, "theta3": 600.0}
_CASES: dict[str, dict[str, Any]] = {
    "das": {},
    "fifo": {},
    "gavel-max-min": {},
    "oasis": {"utility": _UTILITY},
    "deadline": {"deadline_s": 600.0},
}


@pytest.mark.slow
@pytest.mark.parametrize(("live", "policy"), [(name, name) for name in sorted(_CASES)], indirect=["live"])
def test_live_as_simulated(live: Live, policy: str) -> None:
    more = [dict(_CASES[policy]) for _ in range(4)]
    if policy == "deadline":  # with equal deadlines who goes first hangs on the last per cent of a speed
        more[1]["deadline_s"] += 300.0
    sizes = ((150, 1), (100, 2), (80, 1), (120, 1))
    ids = [_submit(live, steps, workers, **options) for (steps, workers), options in zip(sizes, more, strict=True)]
    ended = _ended(live, ids)
    assert {end.phase for end in ended.values()} <= {Phase.FINISHED, Phase.REJECTED}
    events = [e for job_id in ids for e in live.client.get("/events", {"job": job_id, "limit": 1000})["events"]]
    settings = Settings(round_ms=round(ROUND_S * 1000) if policy in IN_ROUNDS else None)
    cluster = parse_cluster(NODES, PRICE_PER_GPU_HOUR)  # the service's has prices too, and a policy may heed them
    found = compare(policy, ended, cluster, settings, Costs(launch_ms=launch_ms(events)))
    assert not found.phases, "the same jobs are admitted"
    assert not found.out_of_order
    assert found.ratio == pytest.approx(1.0, rel=0.1), found
    print(f"{policy}: mean JCT {found.real_jct_s:.2f} s live, {found.simulated_jct_s:.2f} s simulated")


@pytest.mark.slow
def test_no_second_service_and_a_clean_stop(live: Live) -> None:
    env = {**os.environ, "PYTHONPATH": ":".join(filter(None, sys.path))}
    command = [sys.executable, "-m", "trainmaster", "up", "--home", str(live.home), "--port", "0"]
    second = subprocess.run(command, env=env, capture_output=True, check=False, timeout=120)
    assert second.returncode != 0
    assert b"already runs" in second.stderr
    assert live.client.get("/service")["policy"]
    with pytest.raises(TrainmasterError):
        live.client.put("/policy", {"policy": "no-such-policy"})


@pytest.mark.slow
@pytest.mark.parametrize("live", ["das"], indirect=True)
def test_das_orders_and_places_real_jobs(live: Live) -> None:
    """Everything runs once, where it was put; gangs that need both fast GPUs take turns; nobody decides instead."""
    ids = [_submit(live, steps, workers) for steps, workers in ((60, 2), (40, 2), (30, 1), (20, 1))]
    ended = _ended(live, ids)
    assert {end.phase for end in ended.values()} == {Phase.FINISHED}
    assert all(end.preemptions == 0 and end.attempts == 1 for end in ended.values())
    first, second = sorted((ended[job_id] for job_id in ids[:2]), key=lambda end: end.first_start_ms)
    assert second.first_start_ms >= first.ended_ms
    texts = [event["text"] for event in live.client.get("/events", {"limit": 1000})["events"]]
    assert texts and not [text for text in texts if "das:" in text], "the agents' answers could be used"
