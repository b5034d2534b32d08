"""The queue as a table: what waits and runs, how far it is, why it waits."""

from __future__ import annotations

from trainmaster.cli.live.following import ENDED, how_it_ended
from trainmaster.cli.live.queue import STATES
from trainmaster.cli.shared.screen import (
    Cell,
    bar,
    cell,
    coloured,
    cut,
    screen_width,
    show_line,
    state_cell,
    table_lines,
    write_lines,
)
from trainmaster.cli.shared.times import short
from trainmaster.client.transport import Json

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


def counts_steps(job: Json) -> bool:
    """Whether its steps are known: a plain command reports none."""
    return job["progress"].get("age_s") is not None or bool(job["request"]["steps"])


SILENT_S = 30.0
"""Reports come every few seconds: from so long a silence on, its length is shown."""


def state_text(job: Json) -> str:
    """The state, and `stalled` for a job that runs without progress."""
    return job["state"] if job.get("stalled_s") is None else "stalled"


def silence_text(job: Json) -> str:
    """`no report for 40 s` of a running job that has reported before; `no step for 5 min` of a stalled one."""
    if job.get("stalled_s") is not None:
        return f"no step for {short(job['stalled_s'])}"
    age_s = job["progress"].get("age_s")
    if job["state"] != "running" or age_s is None or age_s < SILENT_S:
        return ""
    return f"no report for {short(age_s)}"


def preemption_text(job: Json) -> str:
    """Of a job that was given notice."""
    left_s = job.get("preempted_in_s")
    return "" if left_s is None else f"in {short(left_s)}, or when it saves"


def progress_text(job: Json, width: int) -> str:
    fraction = job["progress"]["fraction"]
    if fraction is None:
        return f"{job['progress']['work_done']:,.0f} steps" if counts_steps(job) else ""
    if job["state"] == "pending" and not fraction:
        return ""
    percent = f"{fraction:4.0%}" if job["state"] == "finished" or fraction < 1 else " 99%"
    return f"{bar(fraction, width)} {percent}"


def remark_text(job: Json) -> str:
    if job["state"] in ENDED:
        return how_it_ended(job)
    if job["state"] == "running" and not job["reason"]:
        places = ", ".join(f"{place['node']}" for place in job["allocation"])
        notice = preemption_text(job)
        remarks = (silence_text(job), notice and f"preempted {notice}")
        return "; ".join((*filter(None, remarks), f"on {places}")) if any(remarks) else places
    return job["reason"]


def queue_lines(jobs: list[Json], width: int, colours: bool) -> list[str]:
    """A line per job below the headers; columns that hold nothing are left out."""
    wide = width >= _WIDE
    rows = [_cells(job, wide) for job in jobs]
    headers = [name for name in _HEADERS if name in _ALWAYS or any(row.get(name, _EMPTY).text for row in rows)]
    cells = [[row.get(name, _EMPTY) for name in headers] for row in rows]
    return table_lines(headers, cells, width, right=("#", "ETA", "SLACK"), colours=colours)


_HEADERS = ("#", "JOB", "NAME", "STATE", "SIZE", "TYPE", "PROGRESS", "ETA", "SLACK", "REASON")
_ALWAYS = ("JOB", "STATE", "SIZE", "REASON")
_EMPTY = Cell("")


def _cells(job: Json, wide: bool) -> dict[str, Cell]:
    late = job["slack_s"] is not None and job["slack_s"] < 0
    cells = {
        "#": cell(job["position"] or ""),
        "JOB": cell(job["id"] if wide else _label(job), "bold"),
        "STATE": state_cell(state_text(job)),
        "SIZE": cell(size_text(job)),
        "PROGRESS": cell(progress_text(job, 10 if wide else 5)),
        "ETA": cell("" if job["eta_s"] is None else short(job["eta_s"])),
        "SLACK": cell("" if job["slack_s"] is None else short(job["slack_s"]), "red" if late else ""),
        "REASON": cell(remark_text(job)),
    }
    if wide:
        cells["NAME"] = cell("" if job["name"] == job["id"] else cut(job["name"], 24))
        cells["TYPE"] = cell(cut(type_text(job), 16))
    return cells


def _label(job: Json) -> str:
    return job["id"] if job["name"] in ("", job["id"]) else f"{job['id']} {cut(job['name'], 16)}"


def head_line(service: Json, total: int, shown: int) -> str:
    """`gavel-max-min on v100=4 (emulated): 2 running, 5 pending`."""
    counts = ", ".join(f"{service['jobs'][state]} {state}" for state in STATES if service["jobs"].get(state))
    emulated = " (emulated speeds)" if service["emulated"] else ""
    more = f"; the first {shown} of {total} are shown" if shown < total else ""
    return f"{service['policy']} on {service['cluster']}{emulated}: {counts or 'no jobs'}{more}"


def show_queue(jobs: list[Json], service: Json, total: int) -> None:
    show_line(head_line(service, total, len(jobs)), "dim")
    if jobs:
        write_lines(queue_lines(jobs, screen_width(), coloured()))
