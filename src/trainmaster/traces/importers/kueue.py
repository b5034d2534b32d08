"""Kubernetes history: `kubectl get workloads -A -o json` (Kueue) or `kubectl get jobs -A -o json` (batch/v1).

A job's GPUs are the pods of its pod sets times the `*/gpu` requests of their containers; it was submitted
when the object was created, started when Kueue admitted it (or the Job's startTime), ended when it finished.
"""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl

from trainmaster.model.errors import InputError
from trainmaster.traces.importers.shaping import finish, member, parse_instant, read_json
from trainmaster.traces.source import Source
from trainmaster.traces.trace import JobTrace

NAME = "kubernetes-workloads"
_KINDS = ("Workload", "Job")
_QUANTITY = re.compile(r"^(\d+(?:\.\d+)?)([numkMGTPE]|[KMGTPE]i)?$", re.ASCII)
_SCALE = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_SCALE |= {f"{prefix}i": 1024.0**power for power, prefix in enumerate("KMGTPE", start=1)}


def recognises(source: Source) -> bool:
    head = source.head.lstrip()
    return head.startswith("{") and '"items"' in head and ("kueue.x-k8s.io" in head or '"batch/v1"' in head)


def load(source: Source) -> JobTrace:
    document = read_json(source)
    text = source.text_bytes().decode("utf-8")
    items = member(document, "items", list, source.path, 1, default=[])
    if not items:
        raise InputError("the list has no items", "workloads or jobs", "", source.path, 1, "items")
    rows, seen_to = [], 0
    for item in items:
        name = member(member(item, "metadata", dict, source.path, None, default={}), "name", str, source.path, None)
        found = text.find(f'"{name}"', seen_to)
        seen_to = max(found, seen_to)
        rows.append(_row(item, source.path, text.count("\n", 0, seen_to) + 1))
    epochs = [row["submit"] for row in rows if row["submit"] is not None]
    if not epochs:
        raise InputError("no item has a creationTimestamp", "objects as stored", "", source.path, 1)
    epoch = min(epochs)
    for row in rows:
        submit, start, end = (_seconds(row.pop(key), epoch) for key in ("submit", "start", "end"))
        if start is not None and end is not None and end < start:
            raise InputError(
                "the job ended before it started", "admission before finish", "", source.path, row["line"], "status"
            )
        known = start is not None and end is not None
        row |= {"submit_s": submit, "start_s": start, "end_s": end}
        row["duration_s"] = end - start if known else None  # type: ignore[operator]
    table = pl.DataFrame(rows, infer_schema_length=None)
    return finish(table, source, NAME, meta={"epoch": epoch.isoformat(), "timezone": "UTC"})


def _row(item: Any, path: Path, line: int) -> dict[str, Any]:
    kind = member(item, "kind", str, path, line, default="Workload")
    if kind not in _KINDS:
        raise InputError(f"an item of kind {kind}", "Workload or Job", "", path, line, "kind")
    metadata = member(item, "metadata", dict, path, line, default={})
    spec = member(item, "spec", dict, path, line, default={})
    status = member(item, "status", dict, path, line, default={})
    namespace = member(metadata, "namespace", str, path, line, default="default")
    name = member(metadata, "name", str, path, line)
    if not name:
        raise InputError("an item without a name", "metadata.name", "", path, line, "metadata")
    row = {
        "line": line,
        "job_id": f"{namespace}/{name}",
        "tenant": namespace,
        "submit": _instant(metadata, "creationTimestamp", path, line),
        "submit_wall": member(metadata, "creationTimestamp", str, path, line),
        "duration_kind": "run",
        "gang": True,
    }
    return row | (_workload if kind == "Workload" else _batch_job)(spec, status, path, line)


def _workload(spec: dict, status: dict, path: Path, line: int) -> dict[str, Any]:
    pods = gpus = least = cpus = memory = 0.0
    workers, per_worker = 0, set()
    for pod_set in member(spec, "podSets", list, path, line, default=[]):
        count = member(pod_set, "count", int, path, line, default=1)
        minimum = member(pod_set, "minCount", int, path, line, default=count)
        per_pod = _requests(member(pod_set, "template", dict, path, line, default={}), path, line)
        pods += count
        gpus += count * per_pod["gpu"]
        least += minimum * per_pod["gpu"]
        cpus += count * per_pod["cpu"]
        memory += count * per_pod["memory"]
        if per_pod["gpu"] > 0:
            workers += count
            per_worker.add(per_pod["gpu"])
    conditions = _conditions(status, path, line)
    finished = conditions.get("Finished")
    admitted = conditions.get("Admitted") or conditions.get("QuotaReserved")
    admission = member(status, "admission", dict, path, line, default={})
    queue = member(admission, "clusterQueue", str, path, line) or member(spec, "queueName", str, path, line)
    if finished is not None:
        failed = "fail" in (finished[1] + finished[2]).lower()
        state = "failed" if failed else "completed"
    else:
        state = "running" if admitted else "pending"
    return {
        "start": admitted[0] if admitted else None,
        "end": finished[0] if finished else None,
        "status": state,
        "vc": queue,
        "priority": member(spec, "priority", int, path, line),
        "gpus": gpus,
        "num_workers": workers or None,
        "gpus_per_worker": per_worker.pop() if len(per_worker) == 1 else None,
        "min_gpus": least if least < gpus else None,
        "max_gpus": gpus if least < gpus else None,
        "gpu_types": _flavors(admission, path, line),
        "cpus": cpus or None,
        "mem_gib": memory / 2**30 or None,
        "limit_s": _as_float(member(spec, "maximumExecutionTimeSeconds", int, path, line)),
        "attempts": None,
    }


def _batch_job(spec: dict, status: dict, path: Path, line: int) -> dict[str, Any]:
    count = member(spec, "parallelism", int, path, line, default=1)
    per_pod = _requests(member(spec, "template", dict, path, line, default={}), path, line)
    conditions = _conditions(status, path, line)
    failed = conditions.get("Failed")
    start = _instant(status, "startTime", path, line)
    end = _instant(status, "completionTime", path, line) or (failed[0] if failed else None)
    return {
        "start": start,
        "end": end,
        "status": "failed" if failed else "completed" if end else "running" if start else "pending",
        "vc": None,
        "priority": None,
        "gpus": count * per_pod["gpu"],
        "num_workers": count,
        "gpus_per_worker": per_pod["gpu"],
        "min_gpus": None,
        "max_gpus": None,
        "gpu_types": None,
        "cpus": count * per_pod["cpu"] or None,
        "mem_gib": count * per_pod["memory"] / 2**30 or None,
        "limit_s": _as_float(member(spec, "activeDeadlineSeconds", int, path, line)),
        "attempts": None,
    }


def _requests(template: dict, path: Path, line: int) -> dict[str, float]:
    """GPU, CPU and memory of one pod: the sum over its containers (requests, else limits)."""
    total = {"gpu": 0.0, "cpu": 0.0, "memory": 0.0}
    pod = member(template, "spec", dict, path, line, default={})
    for container in member(pod, "containers", list, path, line, default=[]):
        resources = member(container, "resources", dict, path, line, default={})
        limits = member(resources, "limits", dict, path, line, default={})
        asked = limits | member(resources, "requests", dict, path, line, default={})
        for name, quantity in asked.items():
            key = "gpu" if name.endswith("/gpu") else name
            if key in total:
                total[key] += _quantity(quantity, path, line, name)
    return total


def _quantity(value: Any, path: Path, line: int, column: str) -> float:
    match = _QUANTITY.match(str(value))
    if match is None:
        raise InputError(f"invalid quantity {value!r}", "such as 8, 500m or 64Gi", "", path, line, column)
    return float(match[1]) * _SCALE[match[2] or ""]


def _conditions(status: dict, path: Path, line: int) -> dict[str, tuple[datetime, str, str]]:
    """Conditions that hold: type -> (since when, reason, message)."""
    holding = {}
    for condition in member(status, "conditions", list, path, line, default=[]):
        if member(condition, "status", str, path, line) != "True":
            continue
        since = _instant(condition, "lastTransitionTime", path, line)
        if since is not None:
            texts = (str(condition.get("reason") or ""), str(condition.get("message") or ""))
            holding[member(condition, "type", str, path, line, default="")] = (since, *texts)
    return holding


def _flavors(admission: dict, path: Path, line: int) -> str | None:
    names: set[str] = set()
    for assignment in member(admission, "podSetAssignments", list, path, line, default=[]):
        flavors = member(assignment, "flavors", dict, path, line, default={})
        names |= {member(flavors, key, str, path, line, default="") for key in flavors if key.endswith("/gpu")}
    return "|".join(sorted(names)) or None


def _instant(record: dict, key: str, path: Path, line: int) -> datetime | None:
    return parse_instant(member(record, key, str, path, line), path, line, key)


def _seconds(instant: datetime | None, epoch: datetime) -> float | None:
    return None if instant is None else (instant - epoch).total_seconds()


def _as_float(value: int | None) -> float | None:
    return None if value is None else float(value)
