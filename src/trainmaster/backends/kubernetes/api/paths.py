"""Addresses of API objects."""

from __future__ import annotations

from trainmaster.jobspec.training_job import API_VERSION

GROUP, VERSION = API_VERSION.split("/")


def _of(base: str, namespace: str | None, plural: str, name: str | None, sub: str | None) -> str:
    where = "" if namespace is None else f"/namespaces/{namespace}"
    return f"{base}{where}/{plural}" + ("" if name is None else f"/{name}") + ("" if sub is None else f"/{sub}")


def core(plural: str, namespace: str | None = None, name: str | None = None, sub: str | None = None) -> str:
    return _of("/api/v1", namespace, plural, name, sub)


def grouped(
    group: str, version: str, plural: str, namespace: str | None = None, name: str | None = None, sub: str | None = None
) -> str:
    return _of(f"/apis/{group}/{version}", namespace, plural, name, sub)


def pods(namespace: str | None = None) -> str:
    return core("pods", namespace)


def pod(namespace: str, name: str, sub: str | None = None) -> str:
    return core("pods", namespace, name, sub)


def nodes() -> str:
    return core("nodes")


def config_maps(namespace: str, name: str | None = None) -> str:
    return core("configmaps", namespace, name)


def training_jobs(namespace: str | None = None, name: str | None = None, sub: str | None = None) -> str:
    return grouped(GROUP, VERSION, "trainingjobs", namespace, name, sub)


def leases(namespace: str, name: str | None = None) -> str:
    return grouped("coordination.k8s.io", "v1", "leases", namespace, name)
