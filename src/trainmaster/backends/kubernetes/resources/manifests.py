"""Everything that a cluster needs to run Trainmaster, as objects. The Helm chart makes the same; a test compares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainmaster.backends.kubernetes.resources.crd import crd
from trainmaster.backends.kubernetes.resources.rbac import EDIT, EVERYBODY, KEEPS, SEES, VIEW, clients

Json = dict[str, Any]

HTTP_PORT = 8642
AGENT_PORT = 8643
USER_ID = 65532
"""No such user exists on nodes or in images; whatever escapes is nobody."""


@dataclass(frozen=True)
class InstallOptions:
    """What an operator chooses. The same names, in the chart's spelling, are its values."""

    name: str = "trainmaster"
    namespace: str = "trainmaster-system"
    image: str = "ghcr.io/trainmaster/trainmaster:latest"
    pull_policy: str = "IfNotPresent"
    replicas: int = 2
    policy: str = "fifo"
    log_level: str = "info"
    cpu: str = "500m"
    memory: str = "1Gi"
    service_monitor: bool = False
    with_crd: bool = True
    with_namespace: bool = True


def manifests(options: InstallOptions) -> list[Json]:
    """In the order in which they should be applied."""
    made: list[Json] = []
    if options.with_crd:
        made.append(crd())
    if options.with_namespace:
        made.append(_namespace(options))
    made += [
        _named(options, "v1", "ServiceAccount", automountServiceAccountToken=False),
        *_roles(options),
        _service(options),
        _deployment(options),
        _named(
            options,
            "policy/v1",
            "PodDisruptionBudget",
            spec={"maxUnavailable": 1, "selector": {"matchLabels": _selector(options)}},
        ),
    ]
    if options.service_monitor:
        made.append(_service_monitor(options))
    return made


def _selector(options: InstallOptions) -> dict[str, str]:
    return {"app.kubernetes.io/name": "trainmaster", "app.kubernetes.io/instance": options.name}


def _named(options: InstallOptions, api: str, kind: str, suffix: str = "", **more: Any) -> Json:
    meta = {"name": options.name + suffix, "namespace": options.namespace, "labels": _selector(options)}
    return {"apiVersion": api, "kind": kind, "metadata": meta, **more}


def _everywhere(options: InstallOptions, kind: str, suffix: str = "", **more: Any) -> Json:
    """An object without a namespace."""
    labels = {**_selector(options), **more.pop("labels", {})}
    meta = {"name": options.name + suffix, "labels": labels}
    return {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": meta, **more}


def _namespace(options: InstallOptions) -> Json:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": options.namespace, "labels": labels}}


def _roles(options: InstallOptions) -> list[Json]:
    rbac = "rbac.authorization.k8s.io"
    subject = [{"kind": "ServiceAccount", "name": options.name, "namespace": options.namespace}]
    aggregate = "rbac.authorization.k8s.io/aggregate-to-"
    return [
        _everywhere(options, "ClusterRole", rules=SEES),
        _everywhere(
            options,
            "ClusterRoleBinding",
            roleRef={"apiGroup": rbac, "kind": "ClusterRole", "name": options.name},
            subjects=subject,
        ),
        _named(options, f"{rbac}/v1", "Role", rules=KEEPS),
        _named(
            options,
            f"{rbac}/v1",
            "RoleBinding",
            roleRef={"apiGroup": rbac, "kind": "Role", "name": options.name},
            subjects=subject,
        ),
        _everywhere(
            options,
            "ClusterRole",
            "-edit",
            rules=EDIT,
            labels={f"{aggregate}edit": "true", f"{aggregate}admin": "true"},
        ),
        _everywhere(options, "ClusterRole", "-view", rules=VIEW, labels={f"{aggregate}view": "true"}),
        _named(options, f"{rbac}/v1", "Role", "-client", rules=clients(options.name)),
        _named(
            options,
            f"{rbac}/v1",
            "RoleBinding",
            "-client",
            roleRef={"apiGroup": rbac, "kind": "Role", "name": f"{options.name}-client"},
            subjects=EVERYBODY,
        ),
    ]


def _service(options: InstallOptions) -> Json:
    """Headless: clients find all replicas; one that does not lead passes requests on to the one that does."""
    ports = [
        {"name": "http", "port": HTTP_PORT, "targetPort": "http"},
        {"name": "agent", "port": AGENT_PORT, "targetPort": "agent"},
    ]
    spec = {"clusterIP": "None", "selector": _selector(options), "ports": ports}
    return _named(options, "v1", "Service", spec=spec)


def _deployment(options: InstallOptions) -> Json:
    return _named(
        options,
        "apps/v1",
        "Deployment",
        spec={
            "replicas": options.replicas,
            "selector": {"matchLabels": _selector(options)},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 1}},
            "template": {"metadata": {"labels": _selector(options)}, "spec": _pod(options)},
        },
    )


def _pod(options: InstallOptions) -> Json:
    return {
        "serviceAccountName": options.name,
        "automountServiceAccountToken": True,
        "terminationGracePeriodSeconds": 15,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER_ID,
            "runAsGroup": USER_ID,
            "fsGroup": USER_ID,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(options)],
        "volumes": [{"name": "work", "emptyDir": {"sizeLimit": "1Gi"}}],
        "affinity": {
            "podAntiAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {
                        "weight": 100,
                        "podAffinityTerm": {
                            "topologyKey": "kubernetes.io/hostname",
                            "labelSelector": {"matchLabels": _selector(options)},
                        },
                    }
                ]
            }
        },
    }


def _container(options: InstallOptions) -> Json:
    def field_of(path: str) -> Json:
        return {"fieldRef": {"fieldPath": path}}

    return {
        "name": "trainmaster",
        "image": options.image,
        "imagePullPolicy": options.pull_policy,
        "args": [
            "up",
            "--backend",
            "kubernetes",
            "--host",
            "0.0.0.0",
            "--port",
            str(HTTP_PORT),
            "--agent-port",
            str(AGENT_PORT),
            "--namespace",
            "$(POD_NAMESPACE)",
            "--home",
            "/var/lib/trainmaster/home",
            "--policy",
            options.policy,
            "--log-level",
            options.log_level,
        ],
        "env": [
            {"name": "POD_NAME", "valueFrom": field_of("metadata.name")},
            {"name": "POD_NAMESPACE", "valueFrom": field_of("metadata.namespace")},
            {"name": "POD_IP", "valueFrom": field_of("status.podIP")},
            # A launcher is told who leads now; where a policy keeps us from its port, it finds the leader by this name.
            {"name": "TRAINMASTER_AGENT_ADDRESSES", "value": f"{options.name}.$(POD_NAMESPACE).svc:{AGENT_PORT}"},
            {"name": "HOME", "value": "/var/lib/trainmaster/home"},
            {"name": "TMPDIR", "value": "/var/lib/trainmaster"},
            {"name": "MPLCONFIGDIR", "value": "/var/lib/trainmaster/matplotlib"},
        ],
        "ports": [{"name": "http", "containerPort": HTTP_PORT}, {"name": "agent", "containerPort": AGENT_PORT}],
        "startupProbe": {"httpGet": {"path": "/livez", "port": "http"}, "periodSeconds": 2, "failureThreshold": 150},
        "livenessProbe": {"httpGet": {"path": "/livez", "port": "http"}, "periodSeconds": 10, "failureThreshold": 6},
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": "http"}, "periodSeconds": 5},
        "resources": {"requests": {"cpu": options.cpu, "memory": options.memory}, "limits": {"memory": options.memory}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "work", "mountPath": "/var/lib/trainmaster"}],
    }


def _service_monitor(options: InstallOptions) -> Json:
    return _named(
        options,
        "monitoring.coreos.com/v1",
        "ServiceMonitor",
        spec={
            "selector": {"matchLabels": _selector(options)},
            "endpoints": [{"port": "http", "path": "/metrics", "interval": "30s"}],
        },
    )
