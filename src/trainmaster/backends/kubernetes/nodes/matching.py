"""Whether a node accepts a pod: cordon, taints, node selector and required node affinity. Pure; says why not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Json = Mapping[str, Any]
BLOCKING = ("NoSchedule", "NoExecute")
UNSCHEDULABLE_TAINT = "node.kubernetes.io/unschedulable"


def why_not(pod_spec: Json, node: Json, *, lasting: bool = False) -> str | None:
    """None when the node accepts the pod. `lasting`: only what does not pass by itself, such as a cordon does."""
    labels = node["metadata"].get("labels") or {}
    missing = [
        f"{key}={value}"
        for key, value in sorted((pod_spec.get("nodeSelector") or {}).items())
        if labels.get(key) != value
    ]
    if missing:
        return f"nodeSelector wants {', '.join(missing)}"
    affinity = ((pod_spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    if affinity and not any(_term(term, node) for term in affinity.get("nodeSelectorTerms") or ()):
        return "required node affinity does not match"
    spec = node.get("spec") or {}
    tolerations = pod_spec.get("tolerations") or ()
    cordon = {"key": UNSCHEDULABLE_TAINT, "effect": "NoSchedule"}
    if spec.get("unschedulable") and not lasting and not _tolerated(cordon, tolerations):
        return "cordoned"
    for taint in spec.get("taints") or ():
        if taint.get("effect") not in BLOCKING or _tolerated(taint, tolerations):
            continue
        passing = str(taint.get("key", "")).startswith("node.kubernetes.io/")
        if not (lasting and passing):
            value = f"={taint['value']}" if taint.get("value") else ""
            return f"taint {taint.get('key')}{value}:{taint.get('effect')} is not tolerated"
    return None


def _tolerated(taint: Json, tolerations: Iterable[Json]) -> bool:
    return any(_tolerates(toleration, taint) for toleration in tolerations)


def _tolerates(toleration: Json, taint: Json) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
        return False
    key, operator = toleration.get("key") or "", toleration.get("operator") or "Equal"
    if not key:
        return operator == "Exists"
    if key != taint.get("key"):
        return False
    return operator == "Exists" or (toleration.get("value") or "") == (taint.get("value") or "")


def _term(term: Json, node: Json) -> bool:
    """All expressions of one term; an empty term matches nothing, as the API server has it."""
    labels = node["metadata"].get("labels") or {}
    expressions, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    if not expressions and not fields:
        return False
    named = {"metadata.name": node["metadata"]["name"]}
    return all(_expression(e, labels) for e in expressions) and all(_expression(e, named) for e in fields)


def _expression(expression: Json, labels: Mapping[str, str]) -> bool:
    key, operator, values = expression.get("key"), expression.get("operator"), list(expression.get("values") or [])
    have = labels.get(key) if isinstance(key, str) else None
    match operator:
        case "In":
            return have in values and have is not None
        case "NotIn":
            return have is None or have not in values
        case "Exists":
            return have is not None
        case "DoesNotExist":
            return have is None
        case "Gt" | "Lt":
            try:
                mine, bound = int(have or ""), int(values[0])
            except (ValueError, IndexError):
                return False
            return mine > bound if operator == "Gt" else mine < bound
        case _:
            return False
