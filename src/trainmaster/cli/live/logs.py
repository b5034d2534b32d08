"""`trainmaster logs`: what a job printed, of any attempt and member."""

from __future__ import annotations

from typing import Any

import click

from trainmaster.cli.live.following import LogReader, ended_line, follow, follow_members, remark, write_log
from trainmaster.cli.shared.command import JOB, command
from trainmaster.client.client import Client, job_path
from trainmaster.model.errors import InputError


@command()
@JOB
@click.option("--follow", "-f", "follow_it", is_flag=True, help="Go on until the job has ended.")
@click.option("--attempt", type=click.IntRange(1), help="Which start of it, from 1; default: the last.")
@click.option("--member", help="Such as worker-1 or server-0; default worker-0.")
@click.option("--all", "all_members", is_flag=True, help="Every member, each line under its name.")
@click.option("--raw", is_flag=True, help="Pass control characters on as they are.")
def logs(
    client: Client,
    job: str,
    follow_it: bool,
    attempt: int | None,
    member: str | None,
    all_members: bool,
    raw: bool,
    output: str,
) -> Any:
    """Print a job's log; -f follows it to the end."""
    if all_members and member is not None:
        raise InputError("--all and --member exclude each other", "one of them", column="--all")
    if output == "json":
        return _whole(client, job, attempt, member)
    if all_members:
        view = follow_members(client, job, attempt, raw, to_the_end=follow_it)
    else:
        view = _one(client, job, LogReader(client, job, member, attempt), follow_it, raw)
    if view is not None and view["state"] != "finished":
        remark(ended_line(view))
    return None


def _one(client: Client, job: str, reader: LogReader, follow_it: bool, raw: bool) -> dict[str, object] | None:
    if follow_it:
        return follow(reader, client, job, lambda text: write_log(text, raw))
    reader.last_only()
    while True:
        text, _ = reader.read()
        if not text:
            break
        write_log(text, raw)
    if not reader.started:
        remark(f"{job} has not started yet; `trainmaster why {job}` says why, `logs -f` waits for it")
    elif len(reader.members) > 1:
        others = ", ".join(name for name in reader.members if name != reader.member)
        remark(f"this is {reader.member}; there are also {others} (--member, --all)")
    return None


def _whole(client: Client, job: str, attempt: int | None, member: str | None) -> dict[str, Any]:
    """The whole log as one body, read in pieces."""
    asked: dict[str, str | int | None] = {"attempt": attempt, "member": member, "offset": 0}
    chunk = client.get(job_path(job, "/logs"), asked)
    pieces = [chunk["text"]]
    while chunk["text"]:
        asked = {"attempt": chunk["attempt"], "member": chunk["member"], "offset": chunk["offset"]}
        chunk = client.get(job_path(job, "/logs"), asked)
        pieces.append(chunk["text"])
    return {**chunk, "text": "".join(pieces)}
