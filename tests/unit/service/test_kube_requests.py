"""What `trainmaster submit` means on Kubernetes, and what is hidden from whom."""

from __future__ import annotations

from typing import Any

import pytest

from trainmaster.backends.kubernetes.attempts.trainer_container import set_environment
from trainmaster.backends.kubernetes.resources.training_job import spec_of_trainingjob
from trainmaster.jobspec.limits import Range, Workers
from trainmaster.jobspec.reading import request_from
from trainmaster.jobspec.training_job import to_training_job
from trainmaster.model.errors import InputError
from trainmaster.service.api.job_api import HIDDEN, masked, only_seen, space_of, without_hidden


def made(index: int | None = None, **fields: Any) -> dict[str, Any]:
    body = request_from({"command": ["python", "train.py"], "image": "registry/x:1", **fields})
    return to_training_job(body, "vision", "AbC-123xyz", index, "alice")


def test_a_request_becomes_a_training_job_that_means_the_same() -> None:
    thing = made(
        name="resnet", workers=Workers(min=2, max=4), gpus_per_worker=2, gpu_types=["V100"],
        env={"B": "2", "A": "$(id)"},
        cpus_per_worker=1.5, memory_mib_per_worker=512, deadline_s=90.4, deadline_kind="soft", steps=100, weight=2,
        steps_per_s={"V100": 3.0}, servers=Range(min=1, max=1), server_command=["serve"],
    )  # fmt: skip
    assert thing["metadata"]["annotations"]["trainmaster.dev/submitted-by"] == "alice"
    thing["metadata"].update(uid="0a1b2c3d-0", creationTimestamp="2023-11-14T22:15:20Z")
    spec = spec_of_trainingjob(thing, 1_700_000_000_000)
    assert (spec.workers_min, spec.workers_max, spec.servers_max, spec.worker.gpu_milli) == (2, 4, 1, 2000)
    assert (spec.worker.cpu_milli, spec.worker.mem_mib, spec.weight, spec.work_total) == (1500, 512, 2.0, 100.0)
    assert spec.deadline_ms == 120_000 + 90_000
    trainer = thing["spec"]["template"]["spec"]["containers"][0]
    assert trainer["command"] == ["python", "train.py"]
    assert trainer["env"] == [{"name": "A", "value": "$(id)"}, {"name": "B", "value": "2"}]
    assert thing["spec"]["serverTemplate"]["spec"]["containers"][0]["command"] == ["serve"]
    assert "workingDir" not in trainer


def test_names_are_made_up_from_the_request_and_arrays_are_numbered() -> None:
    assert made()["metadata"]["name"] == "job-abc123xyz"
    assert [made(k, name="a")["metadata"]["name"] for k in range(2)] == ["a-0", "a-1"]
    copy = made(4, name="a")
    copy["metadata"].update(uid="0a1b2c3d-0", creationTimestamp="2023-11-14T22:15:20Z")
    assert spec_of_trainingjob(copy, 0).name == "a-4"
    container = copy["spec"]["template"]["spec"]["containers"][0]
    set_environment(container, {"TRAINMASTER_JOB_ID"}, [{"name": "TRAINMASTER_JOB_ID", "value": "x"}])
    assert {"name": "TRAINMASTER_ARRAY_INDEX", "value": "4"} in container["env"], "it reaches the trainer"


@pytest.mark.parametrize(
    ("fields", "column"),
    [
        ({"image": None}, "image"),
        ({"snapshot": True}, "snapshot"),
        ({"name": "Upper"}, "name"),
        ({"name": "x" * 46}, "name"),
        ({"name": "1st"}, "name"),
        ({"gpus_per_worker": 0.5}, "gpus_per_worker"),
        ({"env": {"TRAINMASTER_TOKEN": "x"}}, "env"),
        ({"env": {"A": "\0"}}, "env.A"),
        ({"command": ["python", "\ud800"]}, "command.1"),
        ({"workers": {"min": 0, "max": 1}}, "workers.min"),
    ],
)
def test_what_cannot_be_is_refused_with_its_field(fields: dict[str, Any], column: str) -> None:
    with pytest.raises(InputError) as caught:
        made(**fields)
    assert caught.value.column == column


OURS, THEIRS = "vision.resnet.0a1b2c3d", "speech.secret.ffffffff"
SEES = frozenset({"vision"})


def test_namespaces_of_ids() -> None:
    assert space_of(OURS) == "vision"
    assert space_of("job-12") is None and space_of("a.b.c") is None and space_of(None) is None


def test_jobs_of_other_namespaces_are_masked() -> None:
    text = f"needs 4 GPUs; held by {OURS} (2), {THEIRS} (2)"
    assert masked(text, None) == text
    assert masked(text, SEES) == f"needs 4 GPUs; held by {OURS} (2), {HIDDEN} (2)"
    why = {"text": text, "holders": [[OURS, 2], [THEIRS, 2]], "advice": [f"wait for {THEIRS}"], "behind": THEIRS}
    shown = without_hidden(why, SEES)
    assert THEIRS not in str(shown) and OURS in str(shown)
    assert without_hidden(why, None) == why
    assert only_seen([OURS, THEIRS, "job-3"], SEES) == [OURS, "job-3"]
