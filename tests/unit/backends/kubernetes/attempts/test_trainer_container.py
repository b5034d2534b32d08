"""What a pod tells its trainer: one variable where a launcher unfolds it, plain ones where none does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from trainmaster.backends.kubernetes.attempts.observations import PodSeat, RunFacts, RunKey
from trainmaster.backends.kubernetes.attempts.pod_objects import pod_body
from trainmaster.backends.kubernetes.attempts.trainer_container import equip, headless_service
from trainmaster.backends.kubernetes.resources.training_job import spec_of_trainingjob
from trainmaster.launcher.settings import IDENTITY, BadSettings, read_settings, unfolded

SEAT = PodSeat("worker-1", "worker", 1, "n7", 0, 1, 4, 0, "V100")


def equipped(
    launcher: bool, env: list[dict[str, Any]] | None = None, seat: PodSeat = SEAT, number: int = 1
) -> dict[str, Any]:
    container: dict[str, Any] = {"name": "main", "image": "x:1", "command": ["python", "train.py"]}
    job: dict[str, Any] = {
        "apiVersion": "trainmaster.dev/v1alpha1", "kind": "TrainingJob",
        "metadata": {
            "name": "t", "namespace": "ns", "uid": "0a1b2c3d-0", "creationTimestamp": "2023-11-14T22:15:20Z",
            "annotations": {} if launcher else {"trainmaster.dev/launcher": "false"},
        },
        "spec": {
            "workers": {"min": 4, "max": 4}, "gpusPerWorker": 1, "work": {"steps": 100},
            "template": {"spec": {"containers": [container]}},
        },
    }  # fmt: skip
    spec = spec_of_trainingjob(job, 0)
    container["env"] = env or []  # after it was checked
    facts = RunFacts(RunKey(spec.id, 3), "ns", "t", "0a1b2c3d-0", 5, "secret", ("a:1", "b:2"), 15.0, 20.0, spec, job)
    pod = pod_body(facts, seat, number)
    equip(pod, seat, facts)
    return pod


def env_of(pod: dict[str, Any]) -> dict[str, str | None]:
    return {entry["name"]: entry.get("value") for entry in pod["spec"]["containers"][0]["env"]}


def test_a_launcher_gets_one_variable_and_the_command_the_same_as_without_it() -> None:
    pod, plain = env_of(equipped(launcher=True)), env_of(equipped(launcher=False))
    assert pod.keys() == {"TRAINMASTER_POD_IP", IDENTITY}
    given = unfolded({IDENTITY: pod[IDENTITY] or "", "PATH": "/bin"})
    rendezvous = {name for name in plain if not name.startswith("TRAINMASTER_")} - {"PYTHONUNBUFFERED"}
    assert {name: plain[name] for name in plain.keys() - rendezvous}.items() <= given.items()
    assert "RANK" in rendezvous, "without launcher nobody can tell it later"
    settings = read_settings(given)
    assert (settings.member, settings.generation, settings.services) == ("worker-1", 3, ("a:1", "b:2"))
    assert given["PATH"] == "/bin" and IDENTITY not in given


@pytest.mark.parametrize("launcher", [True, False])
def test_a_template_cannot_pretend_to_be_another_member(launcher: bool) -> None:
    mine = [{"name": "TRAINMASTER_MEMBER", "value": "worker-0"}, {"name": "PYTHONUNBUFFERED", "value": "0"},
            {"name": IDENTITY, "value": "{}"}, {"name": "LR", "value": "0.1"}]  # fmt: skip
    pod = env_of(equipped(launcher, mine))
    given = unfolded({name: value for name, value in pod.items() if value is not None})
    assert (given["TRAINMASTER_MEMBER"], given["PYTHONUNBUFFERED"], given["LR"]) == ("worker-1", "1", "0.1")


def test_the_first_of_a_gang_has_a_name_that_resolves_also_when_the_gang_is_made_anew() -> None:
    first = PodSeat("worker-4", "worker", 0, "n7", 0, 1, 4, 0)
    other = PodSeat("worker-6", "worker", 2, "n7", 0, 1, 4, 0)
    pods = [equipped(False, seat=first, number=4), equipped(False, seat=other, number=6)]
    met_at = {env_of(pod)["MASTER_ADDR"] for pod in pods}
    assert met_at == {f"{pods[0]['metadata']['name']}.trainmaster-pods.ns.svc"}
    selector = headless_service()["spec"]["selector"].items()
    assert [selector <= pod["metadata"]["labels"].items() for pod in pods] == [True, False]


@pytest.mark.parametrize("text", ["", "[]", '{"A": 1}', "{"])
def test_a_damaged_identity_is_refused(text: str) -> None:
    with pytest.raises(BadSettings, match=IDENTITY):
        unfolded({IDENTITY: text})


def test_a_pods_status_says_what_a_trainer_that_failed_wrote_last() -> None:
    assert equipped(launcher=True)["spec"]["containers"][0]["terminationMessagePolicy"] == "FallbackToLogsOnError"
    assert equipped(launcher=False)["spec"]["containers"][0]["terminationMessagePolicy"] == "FallbackToLogsOnError"


@pytest.mark.parametrize(("asked", "cpu"), [({}, "1000m"), ({"cpu": "300m", "memory": "1Gi"}, "300m")])
def test_a_server_asks_for_what_the_ledger_counts(asked: dict[str, str], cpu: str) -> None:
    """One CPU where nobody says how many; workers are left as they are."""
    container: dict[str, Any] = {"name": "main", "image": "x:1"}
    if asked:
        container["resources"] = {"requests": asked}
    job: dict[str, Any] = {
        "metadata": {"name": "t", "namespace": "ns", "uid": "0a1b2c3d-0", "creationTimestamp": "2023-11-14T22:15:20Z"},
        "spec": {"servers": {"min": 1, "max": 1}, "template": {"spec": {"containers": [container]}}},
    }
    spec = spec_of_trainingjob(job, 0)
    facts = RunFacts(RunKey(spec.id, 3), "ns", "t", "0a1b2c3d-0", 5, "secret", ("a:1",), 15.0, 20.0, spec, job)
    pods = {role: pod_body(facts, replace(SEAT, role=role, n_devices=0), 0) for role in ("server", "worker")}
    requests = {
        role: pod["spec"]["containers"][0].get("resources", {}).get("requests", {}) for role, pod in pods.items()
    }
    assert requests["server"].get("cpu") == cpu and requests["worker"].get("cpu") == asked.get("cpu")
    assert f"{spec.server.cpu_milli}m" == cpu
    assert spec.server.mem_mib == (1024 if asked else 0)
