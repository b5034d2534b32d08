"""The queue as a table: what waits and runs, how far it is, why it waits."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from trainmaster.cli.client import Json
from trainmaster.cli.screen import bar, cell, columns, one_line, screen, show, state_cell
from trainmaster.cli.times import short

_WIDE = 110
"""From so many columns on, type and name have their own."""


def size_text(job: Json) -> str:
    """`3/1..4` has three of one to four workers; `+2` servers; `x2` GPUs each unless one."""
    request = job["request"]
    low, high = request["workers"]["min"], request["workers"]["max"]
    span = f"{low}" if low == high else f"{low}..{high}"
    has = sum(place["workers"] for place in job["allocation"])
    text = f"{has}/{span}" if has and low != high else span
    servers = request["servers"]["max"]
    if servers:
        text += f"+{sum(place['servers'] for place in job['allocation']) if has else servers}"
    each = request["gpus_per_worker"]
    return text if each == 1 else f"{text}x{each:g}"


def type_text(job: Json) -> str:
    held = sorted({place["accelerator"] for place in job["allocation"]})
    return ",".join(held or job["request"]["gpu_types"]) or "any"


def progress_text(job: Json, width: int) -> str:
    fraction = job["progress"]["fraction"]
    if fraction is None:
        done = job["progress"]["work_done"]
        return f"{done:,.0f} steps" if done else ""
    percent = f"{fraction:4.0%}" if job["state"] == "finished" or fraction < 1 else " 99%"
    return f"{bar(fraction, width)} {percent}"


def remark_text(job: Json) -> str:
    if job["state"] in ("failed", "finished", "cancelled"):
        return " ".join(part for part in (job["exit"] or "", job["reason"]) if part)
    if job["state"] == "running" and not job["reason"]:
        return ", ".join(f"{place['node']}" for place in job["allocation"])
    return job["reason"]


def queue_table(jobs: list[Json], width: int) -> Table:
    wide = width >= _WIDE
    headers = ["#", "JOB"]
    if wide:
        headers += ["NAME"]
    headers += ["STATE", "SIZE"] + (["TYPE"] if wide else []) + ["PROGRESS", "ETA", "SLACK", "REASON"]
    table = columns(*headers, right=("#", "ETA", "SLACK"), fill="REASON")
    for job in jobs:
        row: list[Any] = [cell(job["position"] or ""), cell(_label(job, wide), "bold")]
        if wide:
            row.append(cell("" if job["name"] == job["id"] else job["name"]))
        row += [state_cell(job["state"]), cell(size_text(job))]
        if wide:
            row.append(cell(type_text(job)))
        late = job["slack_s"] is not None and job["slack_s"] < 0
        row += [
            cell(progress_text(job, 10 if wide else 5)),
            cell(short(job["eta_s"])),
            cell(short(job["slack_s"]), "red" if late else ""),
            cell(remark_text(job)),
        ]
        table.add_row(*row)
    return table


def _label(job: Json, wide: bool) -> str:
    if wide or job["name"] in ("", job["id"]):
        return job["id"]
    return f"{job['id']} {job['name']}" if len(job["name"]) <= 12 else f"{job['id']} {job['name'][:11]}…"


def head_line(service: Json, total: int, shown: int) -> str:
    """`gavel-max-min on v100=4 (emulated): 2 running, 5 pending`."""
    counts = ", ".join(f"{number} {state}" for state, number in sorted(service["jobs"].items()) if number)
    emulated = " (emulated speeds)" if service["emulated"] else ""
    more = f"; the first {shown} of {total} are shown" if shown < total else ""
    return f"{service['policy']} on {service['cluster']}{emulated}: {counts or 'no jobs'}{more}"


def show_queue(jobs: list[Json], service: Json, total: int) -> None:
    show(one_line(head_line(service, total, len(jobs)), "dim"))
    if jobs:
        show(queue_table(jobs, screen().width))
