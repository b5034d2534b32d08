"""`trainmaster submit --dry-run`: when a job would start and finish, without submitting it."""

from __future__ import annotations

from typing import Any

import click

from trainmaster.cli.live.submission.request import Request
from trainmaster.cli.shared.output import to_json
from trainmaster.cli.shared.screen import show_line
from trainmaster.cli.shared.times import banded, short
from trainmaster.client.client import Client
from trainmaster.model.errors import InputError

WAIT_S = 120.0
"""A long queue takes a while to roll forward."""
Json = dict[str, Any]


def show(client: Client, request: Request, output: str) -> None:
    try:
        found: Json = client.post("/jobs/preview", request.body, again=1, wait_s=WAIT_S)
    except InputError as fault:
        raise request.blame(fault) from None
    if output == "json":
        click.echo(to_json(found), nl=False)
        return
    jobs: list[Json] = found["jobs"]
    if len(jobs) == 1:
        lines = _of_one(jobs[0])
    else:
        starts = [job["starts"] for job in jobs if job["starts"] is not None]
        ends = [job["eta"] for job in jobs if job["eta"] is not None and job["work_known"]]
        lines = [f"{len(jobs)} jobs"]
        if starts:
            lines.append(f"the first would start in {banded(min(starts, key=lambda band: band['p50_s']))}")
        if ends:
            lines.append(f"the last would finish in {banded(max(ends, key=lambda band: band['p50_s']))}")
        unseen = len(jobs) - len(ends)
        if unseen:
            lines.append(f"of {unseen} no end is foreseen")
    for line in [*lines, "nothing was submitted"]:
        show_line(line)


def _ends(job: Json) -> str:
    return "finish" if job["ends_as"] in ("", "finished") else "end"


def _of_one(job: Json) -> list[str]:
    lines: list[str] = []
    if job["starts"] is not None:
        lines.append(f"would start in {banded(job['starts'])}")
    note = job.get("eta_note", "")
    if job["eta"] is not None and not job["work_known"]:
        why = note or "its amount of work is unknown"
        return [*lines, f"cannot predict a finish: {why}; pass --steps and --speed"]
    if job["eta"] is not None:
        lines.append(", ".join(filter(None, (f"would {_ends(job)} in {banded(job['eta'])}", note))))
    elif job["ends_as"] in ("", "finished"):
        lines.append("cannot predict a finish: what the job waits for does not happen in the forecast")
    else:
        lines.append(f"would most likely end {job['ends_as']}")
    slack_s = job["slack_s"]
    if slack_s is not None:
        lines.append(f"deadline: {short(abs(slack_s))} {'to spare' if slack_s >= 0 else 'too late'}")
    return lines
