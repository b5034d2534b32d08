"""The rights of the service are those that its code uses: compared with what it asks in the fault simulation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trainmaster.backends.kubernetes.resources.chart import chart_files
from trainmaster.backends.kubernetes.resources.rbac import KEEPS, SEES
from trainmaster.dst.kubernetes import transport
from trainmaster.dst.kubernetes.world import run_seed

CHART = Path(__file__).parents[5] / "deploy/helm/trainmaster"
Use = tuple[str, str, str]
"""Group, resource with its subresource, verb."""
BESIDE: set[Use] = {
    ("trainmaster.dev", "trainingjobs", "get"), ("trainmaster.dev", "trainingjobs", "create"),
    ("trainmaster.dev", "trainingjobs", "patch"), ("trainmaster.dev", "trainingjobs", "delete"),
    ("", "pods/log", "get"), ("", "pods/status", "patch"), ("", "events", "get"), ("", "events", "patch"),
    ("", "events", "create"), ("trainmaster.dev", "trainingjobs/status", "patch"),
    ("", "pods", "get"), ("", "configmaps", "create"), ("", "services", "create"),
    ("authentication.k8s.io", "tokenreviews", "create"), ("authorization.k8s.io", "subjectaccessreviews", "create"),
    ("", "secrets", "create"), ("", "secrets", "get"), ("", "configmaps", "get"), ("", "configmaps", "list"),
    ("", "configmaps", "delete"), ("coordination.k8s.io", "leases", "watch"),
    ("coordination.k8s.io", "leases", "list"),
}  # fmt: skip
"""Asked by requests of users, of gangs of others, or where the simulation has a shorter way: read in the code."""
OWNERS = {"batch", "jobset.x-k8s.io", "kubeflow.org"}
"""Groups of objects that own gangs of others."""


def granted(rules: list[dict[str, Any]]) -> set[Use]:
    return {
        (group, resource, verb)
        for rule in rules for group in rule["apiGroups"] for resource in rule["resources"] for verb in rule["verbs"]
    }  # fmt: skip


def use_of(method: str, path: str, watch: bool) -> Use:
    words = path.strip("/").split("/")
    group, words = ("", words[2:]) if words[0] == "api" else (words[1], words[3:])
    if words[0] == "namespaces" and len(words) > 2:
        words = words[2:]
    resource = words[0] + (f"/{words[2]}" if len(words) > 2 else "")
    verbs = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
    reads = "watch" if watch else "get" if len(words) > 1 else "list"
    return group, resource, verbs.get(method, reads)


@pytest.fixture(scope="module")
def used() -> set[Use]:
    found: set[Use] = set()
    with pytest.MonkeyPatch.context() as patch:
        ask, look = transport.Line.request, transport.Line.get

        def request(self: Any, method: str, url: str, **options: Any) -> Any:
            found.add(use_of(method, url.removeprefix(transport.SERVER), False))
            return ask(self, method, url, **options)

        def get(self: Any, url: str, **options: Any) -> Any:
            if dict(options.get("params") or {}).get("watch") == "true":
                found.add(use_of("GET", url.removeprefix(transport.SERVER), True))
            return look(self, url, **options)

        patch.setattr(transport.Line, "request", request)
        patch.setattr(transport.Line, "get", get)
        for seed in range(2):
            run_seed(seed)
    return found


def test_what_is_used_is_granted(used: set[Use]) -> None:
    assert {use for use in used if use[1] != "namespaces"} - granted([*SEES, *KEEPS]) == set()


def test_what_is_granted_is_used(used: set[Use]) -> None:
    wide = {use for use in granted([*SEES, *KEEPS]) if use[0] not in OWNERS}
    assert wide - used - BESIDE == set()


def test_nothing_in_every_namespace_is_changed_that_is_not_of_a_job() -> None:
    everywhere = granted(SEES)
    for resource in ("configmaps", "services"):
        assert {verb for _, name, verb in everywhere if name == resource} == {"create"}
    assert ("", "pods", "patch") not in everywhere


def test_the_chart_has_the_same() -> None:
    for path, text in chart_files().items():
        assert (CHART / path).read_text() == text
