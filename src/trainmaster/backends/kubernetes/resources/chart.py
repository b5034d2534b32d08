"""Those files of the Helm chart that are made from the same source as the manifests: the CRD and the rights."""

from __future__ import annotations

from typing import Any

import yaml

from trainmaster.backends.kubernetes.resources.crd import crd
from trainmaster.backends.kubernetes.resources.rbac import EDIT, EVERYBODY, KEEPS, SEES, VIEW, clients

_HEAD = "# Made by `python -m trainmaster.backends.kubernetes.resources.chart DIR`; do not edit.\n"
_NAME = '{{ include "trainmaster.name" . }}'
_LABELS = '{{- include "trainmaster.labels" . | nindent 4 }}'
_KEPT = {"helm.sh/resource-policy": "keep"}
"""TrainingJobs outlive the release, and so do their users' rights to them."""


def chart_files() -> dict[str, str]:
    """Texts by their path within the chart."""
    return {"templates/crd.yaml": _crd(), "templates/rbac.yaml": _rbac()}


def _yaml(data: Any) -> str:
    return yaml.safe_dump(data, sort_keys=False, width=120)


def _crd() -> str:
    made = crd()
    made["metadata"]["annotations"] = _KEPT
    return f"{_HEAD}{{{{- if .Values.crd.install }}}}\n{_yaml(made)}{{{{- end }}}}\n"


def _rbac() -> str:
    aggregate = "rbac.authorization.k8s.io/aggregate-to-"
    parts = [_role("ClusterRole", "", SEES), _binding("ClusterRole"), _role("Role", "", KEEPS), _binding("Role")]
    shared = [
        _role("ClusterRole", "-edit", EDIT, [f'{aggregate}edit: "true"', f'{aggregate}admin: "true"']),
        _role("ClusterRole", "-view", VIEW, [f'{aggregate}view: "true"']),
    ]
    joined = "---\n".join([*shared, *_client()])
    return _HEAD + "---\n".join(parts) + "{{- if .Values.rbac.aggregate }}\n---\n" + joined + "{{- end }}\n"


def _meta(kind: str, suffix: str, labels: list[str]) -> str:
    where = "" if kind.startswith("Cluster") else "\n  namespace: {{ .Release.Namespace }}"
    more = "".join(f"\n    {label}" for label in labels)
    return (
        f"apiVersion: rbac.authorization.k8s.io/v1\nkind: {kind}\nmetadata:\n  name: {_NAME}{suffix}{where}\n"
        f"  labels:\n    {_LABELS}{more}\n"
    )


def _role(kind: str, suffix: str, rules: list[dict[str, Any]], labels: list[str] | None = None) -> str:
    """`labels`: of a role that others take up, which is kept when the release goes."""
    kept = "" if labels is None else "  annotations:\n" + "".join(f"    {key}: {word}\n" for key, word in _KEPT.items())
    return _meta(kind, suffix, labels or []) + kept + _yaml({"rules": rules})


def _client() -> list[str]:
    """Rights of those who use the service from outside; names depend on the release."""
    role = _role("Role", "-client", clients("NAME")).replace("http:NAME:", f"http:{_NAME}:")
    role = role.replace("- NAME\n", f"- {_NAME}\n")
    bound = _meta("RoleBinding", "-client", [])
    bound += f"roleRef:\n  apiGroup: rbac.authorization.k8s.io\n  kind: Role\n  name: {_NAME}-client\n"
    return [role, bound + _yaml({"subjects": EVERYBODY})]


def _binding(kind: str) -> str:
    return (
        _meta(f"{kind}Binding", "", [])
        + f"roleRef:\n  apiGroup: rbac.authorization.k8s.io\n  kind: {kind}\n  name: {_NAME}\n"
        + f"subjects:\n- kind: ServiceAccount\n  name: {_NAME}\n  namespace: {{{{ .Release.Namespace }}}}\n"
    )


def main() -> None:
    import sys
    from pathlib import Path

    for path, text in chart_files().items():
        (Path(sys.argv[1]) / path).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
