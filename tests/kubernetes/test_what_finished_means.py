"""Real kubelets: what was taken away has not finished and costs no attempt; GPUs are given again once they are free.

The trainer is polite: at SIGTERM it saves and exits with 0, as is common practice.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.kubernetes.cluster import own_cluster
from support.kubernetes.world import ENDED, IMAGE, World, world
from trainmaster.backends.kubernetes.api import paths

pytestmark = pytest.mark.slow
LEASE_S = 10.0
GPUS = 4
"""Of each of the two nodes."""
POLITE = """
import os, pathlib, signal, sys, time
def save(*_):
    pathlib.Path(f"/records/{sys.argv[1]}.saved-{time.time_ns()}").touch()
    os._exit(0)
signal.signal(signal.SIGTERM, save)
pathlib.Path(f"/records/{sys.argv[1]}.begun-{os.environ['HOSTNAME']}-{time.time_ns()}").touch()
while not os.path.exists(f"/records/{sys.argv[1]}.complete"):
    time.sleep(0.1)
"""
RUDE = "while [ ! -e /records/NAME.complete ]; do sleep 0.1; done"


@pytest.fixture(scope="module")
def made() -> Iterator[World]:
    with (
        own_cluster(2, "--gpus", str(GPUS)) as (cluster, folder),
        world(cluster, folder, n_replicas=1, policy="drf", lease_s=LEASE_S) as made,
    ):
        yield made


def _submit(
    made: World, name: str, command: list[str], *, launcher: bool = True, workers: tuple[int, int] = (1, 1),
    others: tuple[dict[str, Any], ...] = (), **spec: Any,
) -> None:  # fmt: skip
    mount = [{"name": "records", "mountPath": "/records"}]
    trainer = {"name": "trainer", "image": IMAGE, "imagePullPolicy": "IfNotPresent", "command": command}
    template = {
        "spec": {
            "containers": [{**trainer, "volumeMounts": mount}, *({**trainer, **other} for other in others)],
            "volumes": [{"name": "records", "hostPath": {"path": str(made.records)}}],
            "terminationGracePeriodSeconds": 20 if others else 5,
        }
    }
    annotations = {} if launcher else {"trainmaster.dev/launcher": "false"}
    size = {"min": workers[0], "max": workers[1]}
    body = {
        "apiVersion": "trainmaster.dev/v1alpha1", "kind": "TrainingJob",
        "metadata": {"name": name, "annotations": annotations},
        "spec": {"workers": size, "gpusPerWorker": 1, "template": template, "maxAttempts": 1, **spec},
    }  # fmt: skip
    made.ask("create", paths.training_jobs("default"), body)


def _polite(name: str) -> list[str]:
    return ["python3", "-c", POLITE, name]


def _lives(made: World, name: str) -> int:
    return len(list(made.records.glob(f"{name}.begun-*")))


def _running(made: World, name: str) -> list[dict[str, Any]]:
    pods = made.pods(name)
    return [p for p in pods if p["status"].get("phase") == "Running" and "deletionTimestamp" not in p["metadata"]]


def _state(made: World, name: str) -> str:
    return made.statuses().get(name, {}).get("state", "")


def _complete(made: World, name: str) -> None:
    """Now the training may come to its own end, and only now the job finishes."""
    assert _state(made, name) not in ENDED
    (made.records / f"{name}.complete").touch()
    made.until(f"{name} finishes", lambda: _state(made, name) in ENDED)
    assert _state(made, name) == "finished", made.statuses()[name]


def _delete(made: World, pod: dict[str, Any]) -> None:
    made.cluster.kubectl("delete", "pod", pod["metadata"]["name"], "--wait=false")


def _evict(made: World, pod: dict[str, Any]) -> None:
    name = pod["metadata"]["name"]
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": "default"}}
    made.ask("create", f"{paths.pod('default', name)}/eviction", body)


def _drain(made: World, pod: dict[str, Any]) -> None:
    node = pod["spec"]["nodeName"]
    made.cluster.kubectl("drain", node, "--ignore-daemonsets", "--force", "--delete-emptydir-data", "--timeout=60s")
    made.cluster.kubectl("uncordon", node)


@pytest.mark.parametrize("launcher", [True, False])
@pytest.mark.parametrize("take_away", [_delete, _evict, _drain])
def test_a_polite_trainer_that_is_taken_away_has_not_finished(
    made: World, take_away: Callable[[World, dict[str, Any]], None], launcher: bool
) -> None:
    name = f"polite{take_away.__name__.replace('_', '-')}-{'leased' if launcher else 'bare'}"
    _submit(made, name, _polite(name), launcher=launcher)
    made.until(f"{name} trains", lambda: _lives(made, name) == 1 and _running(made, name))
    take_away(made, _running(made, name)[0])
    made.until(f"{name} trains again", lambda: _lives(made, name) == 2 or _state(made, name) in ENDED)
    assert list(made.records.glob(f"{name}.saved-*")), "the trainer was to save and exit with 0"
    _complete(made, name)


def test_a_polite_trainer_has_not_finished_because_nobody_leads(made: World) -> None:
    """Its lease runs out, and its launcher ends it by SIGTERM or SIGKILL."""
    _submit(made, "unled", _polite("unled"))
    made.until("it trains", lambda: _lives(made, "unled") == 1 and _running(made, "unled"))
    process = made.replicas[0].process
    assert process is not None
    process.send_signal(signal.SIGSTOP)
    try:
        time.sleep(2.5 * LEASE_S)
    finally:
        process.send_signal(signal.SIGCONT)
    made.until("it trains again", lambda: _lives(made, "unled") == 2 or _state(made, "unled") in ENDED)
    _complete(made, "unled")


@pytest.mark.long
def test_a_polite_trainer_has_not_finished_because_the_api_server_was_away(made: World) -> None:
    """Whether it went on or its lease ran out: it has not finished."""
    _submit(made, "unserved", _polite("unserved"))
    made.until("it trains", lambda: _lives(made, "unserved") == 1 and _running(made, "unserved"))
    made.cluster.order("stop", "apiserver")
    try:
        time.sleep(8 * LEASE_S)
    finally:
        made.cluster.order("start", "apiserver")

    def trains() -> bool:
        saved = len(list(made.records.glob("unserved.saved-*")))
        return _state(made, "unserved") in ENDED or (
            _state(made, "unserved") == "running" and _lives(made, "unserved") == saved + 1
        )

    made.until("it trains, or trains again", trains)
    _complete(made, "unserved")


@pytest.mark.parametrize("launcher", [True, False])
def test_a_deleted_pod_costs_no_attempt(made: World, launcher: bool) -> None:
    """The command ends by SIGTERM (143), and `maxAttempts` is 1."""
    name = f"rude-{'leased' if launcher else 'bare'}"
    _submit(made, name, ["sh", "-c", RUDE.replace("NAME", name)], launcher=launcher)
    for _ in range(2):
        pod = made.until(f"{name} runs", lambda: _running(made, name))[0]
        _delete(made, pod)
        before = pod["metadata"]["uid"]
        made.until(
            f"{name} runs again",
            lambda before=before: (
                _state(made, name) in ENDED or [p for p in _running(made, name) if p["metadata"]["uid"] != before]
            ),
        )
    _complete(made, name)


def test_a_gang_of_a_plain_command_that_shrinks_fills_its_seats_again(made: World) -> None:
    _submit(made, "plain", _polite("plain"), workers=(1, 4))
    made.until("four workers", lambda: _lives(made, "plain") == 4)
    made.ask("patch", paths.training_jobs("default", "plain"), {"spec": {"workers": {"min": 1, "max": 2}}})
    made.until("two workers of a new gang", lambda: len(_running(made, "plain")) == 2 and _lives(made, "plain") == 6)
    made.until("the status says so", lambda: _state(made, "plain") == "running")
    _complete(made, "plain")


def test_gpus_are_given_again_when_the_last_container_has_ended(made: World) -> None:
    """A second container outlives the trainer by some seconds; the next gang needs all GPUs of both nodes."""
    slow = {"name": "slow", "command": ["sh", "-c", "trap 'sleep 8; exit 0' TERM; while :; do sleep 0.2; done"]}
    whole: dict[str, Any] = {"workers": (2, 2), "gpusPerWorker": GPUS}
    _submit(made, "outlived", _polite("outlived"), others=(slow,), **whole)
    made.until("it trains", lambda: _lives(made, "outlived") == 2)
    _submit(made, "next", _polite("next"), **whole)
    (made.records / "outlived.complete").touch()
    refused: list[str] = []

    def begun() -> bool:
        refused.extend(p["status"]["reason"] for p in made.pods("next") if p["status"].get("phase") == "Failed")
        return bool(refused) or _lives(made, "next") == 2

    made.until("the next trains", begun)
    assert not refused
    assert _state(made, "outlived") == "finished"
    _complete(made, "next")
