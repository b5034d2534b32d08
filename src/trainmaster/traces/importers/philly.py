"""Microsoft Philly `cluster_job_log` (JSON) with its `cluster_machine_list`; a file or the folder of both."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl

from trainmaster.model.errors import InputError
from trainmaster.traces.delimited import read_table
from trainmaster.traces.importers.shaping import finish, json_records, member, parse_instant, sibling
from trainmaster.traces.source import Source, read_source
from trainmaster.traces.trace import JobTrace, companion_from_table

NAME = "philly"
_STATUS = {"Pass": "completed", "Killed": "cancelled", "Failed": "failed", "Running": "running"}
_JOBS = "cluster_job_log"


def recognises(source: Source) -> bool:
    if source.path.is_dir():
        return sibling(source, _JOBS) is not None
    head = source.head.lstrip()
    return head.startswith("[") and '"jobid"' in head and '"attempts"' in head


def load(source: Source) -> JobTrace:
    if source.path.is_dir():
        source = read_source(sibling(source, _JOBS) or source.path / _JOBS)
    jobs, attempts = [], []
    for line, record in json_records(source):
        job, tries = _job(record, source.path, line)
        jobs.append(job)
        attempts.extend(tries)
    submitted = [job["submitted"] for job in jobs if job["submitted"] is not None]
    if not submitted:
        raise InputError("no job has a submission time", "Philly job records", "", source.path)
    epoch = min(submitted)
    table = pl.DataFrame([_row(job, epoch) for job in jobs], infer_schema_length=None)
    tries = [{**a, "start_s": _seconds(a["start_s"], epoch), "end_s": _seconds(a["end_s"], epoch)} for a in attempts]
    return finish(
        table,
        source,
        NAME,
        nodes=_nodes(source),
        attempts=companion_from_table(pl.DataFrame(tries, infer_schema_length=None), "attempts", source.path)
        if tries
        else None,
        meta={"epoch": epoch.isoformat(sep=" "), "timezone": "Pacific, as logged"},
    )


def _job(record: dict[str, Any], path: Path, line: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    job_id = member(record, "jobid", str, path, line)
    if not job_id:
        raise InputError("the record has no jobid", "a Philly job record", "", path, line, "jobid")
    status = member(record, "status", str, path, line, default="unknown")
    tries = []
    for number, attempt in enumerate(member(record, "attempts", list, path, line, default=[]), start=1):
        detail = member(attempt, "detail", list, path, line, default=[])
        sizes = [len(member(part, "gpus", list, path, line, default=[])) for part in detail]
        hosts = [str(member(part, "ip", str, path, line, default="?")) for part in detail]
        start = parse_instant(member(attempt, "start_time", str, path, line), path, line, "start_time")
        end = parse_instant(member(attempt, "end_time", str, path, line), path, line, "end_time")
        tries.append(
            {
                "job_id": job_id,
                "attempt": number,
                "start_s": start,
                "end_s": end,
                "node_id": "|".join(hosts) or None,
                "gpus": float(sum(sizes)) if sizes else None,
                "exit": None,
                "sizes": sizes,
            }
        )
    shape = next((a["sizes"] for a in tries if a["sizes"]), None)
    spans = [(a["end_s"] - a["start_s"]).total_seconds() for a in tries if a["start_s"] and a["end_s"]]
    if any(span < 0 for span in spans):
        raise InputError("an attempt ends before it starts", "start_time <= end_time", "", path, line, "end_time")
    starts = [a["start_s"] for a in tries if a["start_s"]]
    job = {
        "line": line,
        "job_id": job_id,
        "submitted": parse_instant(record.get("submitted_time"), path, line, "submitted_time"),
        "first_start": starts[0] if starts else None,
        "last_end": tries[-1]["end_s"] if tries else None,
        "duration_s": sum(spans) if spans else None,
        "status": _STATUS.get(status, "unknown"),
        "user": member(record, "user", str, path, line),
        "vc": member(record, "vc", str, path, line),
        "shape": shape,
        "attempts": len(tries) or None,
    }
    return job, [{k: v for k, v in a.items() if k != "sizes"} for a in tries]


def _row(job: dict[str, Any], epoch: datetime) -> dict[str, Any]:
    shape: list[int] | None = job["shape"]
    start_s, end_s = _seconds(job["first_start"], epoch), _seconds(job["last_end"], epoch)
    if start_s is not None and end_s is not None and end_s < start_s:
        start_s = end_s = None  # attempts are logged out of order in a few jobs
    return {
        "line": job["line"],
        "job_id": job["job_id"],
        "submit_s": _seconds(job["submitted"], epoch),
        "submit_wall": None if job["submitted"] is None else job["submitted"].isoformat(sep=" "),
        "start_s": start_s,
        "end_s": end_s,
        "duration_s": job["duration_s"],
        "duration_kind": "run",
        "status": job["status"],
        "user": job["user"],
        "vc": job["vc"],
        "gpus": float(sum(shape)) if shape else None,
        "num_workers": len(shape) if shape else None,
        "gpus_per_worker": float(shape[0]) if shape and len(set(shape)) == 1 else None,
        "gang": True,
        "attempts": job["attempts"],
    }


def _seconds(instant: datetime | None, epoch: datetime) -> float | None:
    return None if instant is None else (instant - epoch).total_seconds()


def _nodes(source: Source) -> pl.DataFrame | None:
    """`machineId,number of GPUs,single GPU mem`, with or without that header; memory as `24GB`."""
    path = sibling(source, "cluster_machine_list", "cluster_machine_list.csv")
    if path is None:
        return None
    machines = read_source(path)
    names = ("node_id", "gpus", "gpu_mem_gib")
    table = read_table(machines, header=names)
    if table["node_id"][0] is not None and "machine" in str(table["node_id"][0]).lower():
        table = table.slice(1)
    table = table.with_columns(
        pl.col("node_id").str.strip_chars(), pl.col("gpu_mem_gib").str.strip_chars().str.strip_suffix("GB")
    )
    return companion_from_table(table, "nodes", path)
