"""From TrainingJobs to jobs and to what their users want changed."""

from copy import deepcopy
from fractions import Fraction
from typing import Any

import pytest

from trainmaster.backends.kubernetes.resources.quantity import QuantityError, parse_quantity, pod_requests
from trainmaster.backends.kubernetes.resources.training_job import job_id_of_object, spec_of_trainingjob
from trainmaster.backends.kubernetes.spec_diff import training_job_diff
from trainmaster.jobspec.engine import request_of
from trainmaster.jobspec.model import JobRequest
from trainmaster.model import event as ev
from trainmaster.model.errors import InputError
from trainmaster.model.job import DeadlineKind, JobId
from trainmaster.model.units import NEVER_MS
from trainmaster.service.kubernetes.access import Right, grant_of

EPOCH_MS = 1_700_000_000_000
FIRST = "spec.template.spec.containers[0]"
CREATED = "2023-11-14T22:15:20Z"  # 2 minutes after the epoch above


def job(**spec: Any) -> dict[str, Any]:
    template = {"spec": {"containers": [{"name": "main", "image": "x"}]}}
    return {
        "apiVersion": "trainmaster.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {
            "name": "resnet", "namespace": "vision", "uid": "0a1b2c3d-0000-4000-8000-000000000000",
            "creationTimestamp": CREATED, "generation": 1,
        },
        "spec": {"template": template, **spec},
    }  # fmt: skip


def container(**resources: Any) -> dict[str, Any]:
    return {"name": "main", "image": "x", "resources": resources}


@pytest.mark.parametrize(
    ("text", "value"),
    [("500m", Fraction(1, 2)), ("1.5Gi", Fraction(3 * 2**29)), ("2e3", 2000), ("1k", 1000), (4, 4),
     (".5", Fraction(1, 2)),
     ("100n", Fraction(1, 10**7)), ("12E", 12 * 10**18), ("1E3", 1000), ("+3", 3)],
)  # fmt: skip
def test_quantities(text: Any, value: Any) -> None:
    assert parse_quantity(text) == value


@pytest.mark.parametrize("text", ["", "abc", "1.5.2", "1Xi", "1 Gi", True, None, float("nan"), "9" * 80, "1e9999"])
def test_what_is_no_quantity_is_refused(text: Any) -> None:
    with pytest.raises(QuantityError):
        parse_quantity(text)


def test_a_pod_asks_for_the_larger_of_its_containers_and_its_init_containers() -> None:
    pod = {
        "containers": [container(requests={"cpu": "1"}), container(limits={"cpu": "2", "memory": "1Gi"})],
        "initContainers": [
            {**container(requests={"cpu": "500m"}), "restartPolicy": "Always"},
            container(requests={"cpu": "6"}),
        ],
        "overhead": {"cpu": "100m"},
    }
    asked = pod_requests(pod)
    assert asked["cpu"] == Fraction(66, 10), "the sidecar runs beside the second init container; overhead on top"
    assert asked["memory"] == 2**30


def test_defaults() -> None:
    spec = spec_of_trainingjob(job(), EPOCH_MS)
    assert spec.id == JobId("vision.resnet.0a1b2c3d") == job_id_of_object(job())
    assert (spec.workers_min, spec.workers_max, spec.servers_max) == (1, 1, 0)
    assert spec.worker.gpu_milli == 1000
    assert spec.entity == "vision"
    assert spec.submit_ms == 120_000
    assert spec.deadline_ms == NEVER_MS
    assert "template" not in spec.payload, "templates stay in the TrainingJob: the state must be small"


def test_everything_that_can_be_said() -> None:
    tj = job(
        workers={"min": 2, "max": 4}, servers={"min": 1, "max": 2}, gpusPerWorker=2, gpuResource="amd.com/gpu",
        gpuTypes=["MI300"], deadlineSeconds=600, deadlineKind="soft", weight=2.5, priority=7, entity="org",
        budget=12, model="ResNet-50", batchSize=64, work={"steps": 1000}, maxAttempts=5, preemptible=False,
        utility={"kind": "sigmoid", "theta1": 10, "theta2": 0.1, "theta3": 60}, stepsPerSecond={"MI300": 8.5},
    )  # fmt: skip
    tj["spec"]["template"]["spec"]["containers"] = [container(requests={"cpu": "1500m", "memory": "1G"})]
    spec = spec_of_trainingjob(tj, EPOCH_MS)
    assert (spec.workers_min, spec.workers_max, spec.servers_min, spec.servers_max) == (2, 4, 1, 2)
    assert (spec.worker.gpu_milli, spec.worker.cpu_milli, spec.worker.mem_mib) == (2000, 1500, 954)
    assert (spec.server.gpu_milli, spec.server.cpu_milli) == (0, 1500), "servers are workers without GPUs"
    assert (spec.deadline_ms, spec.deadline_kind) == (720_000, DeadlineKind.SOFT)
    assert (spec.weight, spec.priority, spec.entity, spec.budget, spec.max_attempts) == (2.5, 7, "org", 12.0, 5)
    assert (spec.work_total, spec.steps_per_s, spec.gpu_types) == (1000.0, {"MI300": 8.5}, ("MI300",))
    assert spec.payload["gpu_resource"] == "amd.com/gpu"


def test_the_template_may_say_how_many_gpus() -> None:
    tj = job()
    tj["spec"]["template"]["spec"]["containers"] = [container(limits={"nvidia.com/gpu": 2})]
    assert spec_of_trainingjob(tj, EPOCH_MS).worker.gpu_milli == 2000
    tj["spec"]["gpusPerWorker"] = 3
    with pytest.raises(InputError, match="asks for 2"):
        spec_of_trainingjob(tj, EPOCH_MS)


def bad(change: Any) -> dict[str, Any]:
    tj = job()
    change(tj["spec"])
    return tj


def _container(spec: dict[str, Any], **more: Any) -> None:
    spec["template"]["spec"]["containers"][0].update(more)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda s: s.update(workers={"min": 0}), "spec.workers.min"),
        (lambda s: s.update(workers={"min": 3, "max": 2}), "spec.workers.max"),
        (lambda s: s.update(workers={"min": True}), "spec.workers.min"),
        (lambda s: s.update(workers={"min": "2"}), "spec.workers.min"),
        (lambda s: s.update(servers={"max": 10**9}), "spec.servers.max"),
        (lambda s: s.update(gpusPerWorker=-1), "spec.gpusPerWorker"),
        (lambda s: s.update(gpusPerWorker=1.5), "spec.gpusPerWorker"),
        (lambda s: s.update(weight=0), "spec.weight"),
        (lambda s: s.update(weight=float("nan")), "spec.weight"),
        (lambda s: s.update(priority=10**6), "spec.priority"),
        (lambda s: s.update(deadlineSeconds=0), "spec.deadlineSeconds"),
        (lambda s: s.update(work={"steps": -5}), "spec.work.steps"),
        (lambda s: s.update(utility={"kind": "moonlight"}), "spec.utility.kind"),
        (lambda s: s.update(gpuTypes=[""]), "spec.gpuTypes.0"),
        (lambda s: s.update(stepsPerSecond={"v100": 0}), "spec.stepsPerSecond.v100"),
        (lambda s: s.pop("template"), "spec.template.spec"),
        (lambda s: s["template"].pop("spec"), "spec.template.spec"),
        (lambda s: s["template"]["spec"].update(containers=[]), "spec.template.spec.containers"),
        (lambda s: s["template"]["spec"].update(schedulerName="volcano"), "spec.template.spec.schedulerName"),
        (lambda s: s["template"]["spec"].update(nodeName="node0"), "spec.template.spec.nodeName"),
        (lambda s: s["template"]["spec"].update(restartPolicy="Always"), "spec.template.spec.restartPolicy"),
        (lambda s: _container(s, env=[{"name": "TRAINMASTER_TOKEN", "value": "x"}]), f"{FIRST}.env"),
        (lambda s: _container(s, env=[{"name": "RANK", "value": "0"}]), f"{FIRST}.env"),
        (lambda s: _container(s, resources={"requests": {"cpu": "lots"}}), "spec.template.spec.containers[].resources"),
        (lambda s: _container(s, resources={"limits": {"nvidia.com/gpu": "500m"}}), f"{FIRST}.resources"),
        (lambda s: s.update(servers={"min": 1}, serverTemplate={"spec": {"containers": [
            container(limits={"nvidia.com/gpu": 1})]}}), "spec.serverTemplate.spec.containers"),
    ],
)  # fmt: skip
def test_what_cannot_be_a_job_is_refused_with_its_field(change: Any, field: str) -> None:
    with pytest.raises(InputError) as caught:
        spec_of_trainingjob(bad(change), EPOCH_MS)
    assert caught.value.column == field


# -- changes ------------------------------------------------------------------------------------------


def changed(**spec: Any) -> tuple[list[ev.UserEvent], JobId]:
    old = job(workers={"min": 1, "max": 4}, deadlineSeconds=600)
    known = spec_of_trainingjob(old, EPOCH_MS)
    new = deepcopy(old)
    new["spec"].update(spec)
    return training_job_diff(old, new, known, False), known.id


def test_nothing_changed_is_no_wish() -> None:
    assert changed() == ([], JobId("vision.resnet.0a1b2c3d"))


def test_workers_deadline_weight_and_suspend() -> None:
    events, job_id = changed(workers={"min": 2, "max": 8})
    assert events == [ev.JobRangeChanged(job_id, 2, 8)]
    events, job_id = changed(deadlineSeconds=1200)
    assert events == [ev.JobTermsChanged(job_id, deadline_ms=1_320_000, deadline_kind=DeadlineKind.HARD)]
    events, job_id = changed(deadlineSeconds=None)
    assert events == [ev.JobTermsChanged(job_id, deadline_ms=NEVER_MS, deadline_kind=DeadlineKind.NONE)]
    events, job_id = changed(weight=3, priority=4)
    assert events == [ev.JobTermsChanged(job_id, weight=3, priority=4)]
    events, job_id = changed(suspend=True)
    assert events == [ev.JobPaused(job_id)]


def test_resuming_is_told_when_suspend_falls_or_when_a_paused_job_is_seen_for_the_first_time() -> None:
    paused = job(suspend=True)
    spec = spec_of_trainingjob(paused, EPOCH_MS)
    for yet_to_be_carried_out in (False, True):
        told = training_job_diff(paused, job(suspend=False), spec, not yet_to_be_carried_out)
        assert told == [ev.JobResumed(spec.id)]
    assert training_job_diff(None, job(), spec, True) == [ev.JobResumed(spec.id)]
    assert training_job_diff(None, job(), spec, False) == [], "a new leader does not ask all jobs to go on"
    assert training_job_diff(None, paused, spec, True) == []
    assert training_job_diff(None, paused, spec, False) == [ev.JobPaused(spec.id)]


def test_deletion_cancels_whatever_else_was_changed() -> None:
    tj = job(workers={"min": 9})
    spec = spec_of_trainingjob(job(), EPOCH_MS)
    tj["metadata"]["deletionTimestamp"] = CREATED
    assert training_job_diff(None, tj, spec, False) == [ev.JobCancelled(spec.id)]


def test_a_range_that_cannot_be_changes_nothing() -> None:
    spec = spec_of_trainingjob(job(), EPOCH_MS)
    with pytest.raises(InputError):
        training_job_diff(job(), job(workers={"min": 5, "max": 2}, suspend=True), spec, False)


def test_a_job_is_shown_with_what_its_object_asks_for() -> None:
    """As `trainmaster job` and `queue` have it: sizes, servers and terms, not the defaults of a request."""
    tj = job(workers={"min": 1, "max": 4}, servers={"min": 1, "max": 2}, gpusPerWorker=2, deadlineSeconds=600, weight=3)
    shown = request_of(spec_of_trainingjob(tj, EPOCH_MS))
    assert (shown["workers"], shown["servers"]) == ({"min": 1, "max": 4}, {"min": 1, "max": 2})
    assert (shown["gpus_per_worker"], shown["deadline_s"], shown["weight"]) == (2, 600, 3)
    assert JobRequest.model_validate(shown | {"command": ["x"]}).priority == 0


@pytest.mark.parametrize(
    ("right", "told"),
    [
        (Right("create", "vision"), "rolebinding ... --clusterrole=edit -n vision"),
        (Right("list"), "clusterrolebinding ... --clusterrole=view"),
        (Right("list", resource="nodes", group=""), "--verb=list --resource=nodes)"),
    ],
)
def test_a_missing_right_is_told_with_a_grant_that_would_give_it(right: Right, told: str) -> None:
    assert told in grant_of(right)
