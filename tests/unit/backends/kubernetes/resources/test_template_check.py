"""Templates as the API server would make pods of them: the defaults of a namespace count."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from trainmaster.backends.kubernetes.resources import template_check
from trainmaster.backends.kubernetes.resources.template_check import TemplateCheck
from trainmaster.backends.kubernetes.resources.training_job import spec_of_trainingjob
from trainmaster.backends.kubernetes.spec_diff import training_job_diff
from trainmaster.model import event as ev


class _Api:
    """A namespace whose LimitRange gives containers without a request two CPUs."""

    def __init__(self) -> None:
        self.asked = 0

    async def request(self, _method: str, _path: str, *, body: dict[str, Any], **_: Any) -> dict[str, Any]:
        self.asked += 1
        if body["spec"].get("priorityClassName") == "urgent":
            body = {**body, "spec": {**body["spec"], "priority": 100_000}}
        containers = [{"resources": {"requests": {"cpu": "2"}}, **each} for each in body["spec"]["containers"]]
        return {"spec": {**body["spec"], "containers": containers}}


def _job(**fields: Any) -> dict[str, Any]:
    own = {"name": "own", "image": "i", "command": ["x"], "resources": {"requests": {"cpu": "1"}}}
    pod = {"containers": [{"name": "main", "image": "i", "command": ["x"]}, own], "priorityClassName": "urgent"}
    spec = {"template": {"spec": pod}, **fields}
    meta = {"name": "a", "namespace": "b", "uid": "0a1b2c3d", "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {"metadata": meta, "spec": spec}


def _answered(check: TemplateCheck) -> None:
    async def ask() -> None:
        check.known(_job())
        await asyncio.gather(*check._tasks)

    asyncio.run(ask())


def test_what_a_limit_range_adds_is_asked_of_nodes() -> None:
    api = _Api()
    check = TemplateCheck(api)  # type: ignore[arg-type]
    _answered(check)
    assert check.known(_job()) and check.fault(_job()) is None
    assert spec_of_trainingjob(check.filled(_job()), 0).worker.cpu_milli == 3000
    assert spec_of_trainingjob(_job(), 0).worker.cpu_milli == 1000, "the object is left as it is"


def test_the_priority_class_of_the_template_gives_the_priority_that_is_not_set() -> None:
    check = TemplateCheck(_Api())  # type: ignore[arg-type]
    _answered(check)
    unset = spec_of_trainingjob(check.filled(_job()), 0)
    assert unset.priority == 100_000
    assert spec_of_trainingjob(check.filled(_job(priority=3)), 0).priority == 3
    assert spec_of_trainingjob(check.filled(_job(priority=0)), 0).priority == 0
    assert training_job_diff(None, _job(), unset, paused=False) == [], "the object says nothing of it"
    assert training_job_diff(None, _job(priority=4), unset, False) == [ev.JobTermsChanged(unset.id, priority=4)]
    raised = replace(unset, priority=4)
    assert training_job_diff(None, _job(), raised, False) == [ev.JobTermsChanged(unset.id, priority=100_000)]


def test_an_answer_holds_for_a_while(monkeypatch: Any) -> None:
    api = _Api()
    check = TemplateCheck(api)  # type: ignore[arg-type]
    _answered(check)
    _answered(check)
    assert api.asked == 1
    monkeypatch.setattr(template_check, "KEEP_S", 0.0)
    again = TemplateCheck(api)  # type: ignore[arg-type]
    _answered(again)
    _answered(again)
    assert api.asked == 3
