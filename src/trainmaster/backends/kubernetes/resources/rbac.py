"""The rights that the service account has, each with its reason: no more than the service uses."""

from __future__ import annotations

from typing import Any

from trainmaster.backends.kubernetes.resources.crd import GROUP, PLURAL

Rule = dict[str, Any]


def _rule(groups: str | list[str], resources: list[str], verbs: list[str], names: list[str] | None = None) -> Rule:
    made: Rule = {"apiGroups": [groups] if isinstance(groups, str) else groups, "resources": resources, "verbs": verbs}
    return {**made, "resourceNames": names} if names else made


LOOK = ["get", "list", "watch"]
SEES = [
    # Jobs: read them, create and change them for users who may (asked by SubjectAccessReview), tell their status.
    _rule(GROUP, [PLURAL], [*LOOK, "create", "patch", "delete"]),
    _rule(GROUP, [f"{PLURAL}/status"], ["patch"]),
    # Pods of jobs: created, bound, ended. Conditions of foreign pods tell why they wait. Logs for `trainmaster logs`.
    _rule("", ["pods"], [*LOOK, "create", "delete"]),
    _rule("", ["pods/binding"], ["create"]),
    _rule("", ["pods/status"], ["patch"]),
    _rule("", ["pods/log"], ["get"]),
    # What there is to give away.
    _rule("", ["nodes"], ["list", "watch"]),
    # What the launcher needs beside the pods of a job: its source, and names for rendezvous. What is there stays.
    _rule("", ["configmaps", "services"], ["create"]),
    # Why a job waits, starts, shrinks.
    _rule("", ["events"], ["get", "create", "patch"]),
    # Size of the gangs of other controllers.
    _rule("batch", ["jobs"], ["get"]),
    _rule("jobset.x-k8s.io", ["jobsets"], ["get"]),
    _rule("kubeflow.org", ["pytorchjobs", "tfjobs", "mpijobs", "jaxjobs", "paddlejobs", "xgboostjobs"], ["get"]),
    # Who asks, and what they may.
    _rule("authentication.k8s.io", ["tokenreviews"], ["create"]),
    _rule("authorization.k8s.io", ["subjectaccessreviews"], ["create"]),
]
"""In every namespace."""

KEEPS = [
    # The engine's state, written by one leader.
    _rule("", ["configmaps"], ["get", "list", "create", "delete"]),
    _rule("coordination.k8s.io", ["leases"], [*LOOK, "create", "update"]),
    # The key that the tokens of launchers are made from. Creation cannot be limited to a name.
    _rule("", ["secrets"], ["create"]),
    _rule("", ["secrets"], ["get"], ["trainmaster-agent"]),
]
"""In the service's own namespace."""

EDIT = [
    _rule(GROUP, [PLURAL], [*LOOK, "create", "update", "patch", "delete", "deletecollection"]),
]
VIEW = [
    _rule(GROUP, [PLURAL], LOOK),
]
"""What users get who may edit or view a namespace: joined to the roles that every cluster has."""


def clients(name: str) -> list[Rule]:
    """Reach the service through the API server, which needs no open port; the service itself asks who comes."""
    return [_rule("", ["services/proxy"], ["get", "create", "update"], [name, f"http:{name}:8642"])]


EVERYBODY = [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:authenticated"}]
