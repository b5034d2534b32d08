"""`trainmaster logs`: what a job printed, of any attempt and member."""

from __future__ import annotations

from typing import Annotated

import typer

from trainmaster.cli.following import LogReader, ended_line, follow, follow_members, remark, write_log
from trainmaster.cli.output import HomeOption, Output, check_output, one_message, to_json
from trainmaster.client.client import Client, job_path
from trainmaster.model.errors import InputError


@one_message
def logs(
    job: Annotated[str, typer.Argument(metavar="JOB", help="Id or name.")],
    follow_it: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job has ended.")] = False,
    attempt: Annotated[int | None, typer.Option(min=1, help="Which start of it, from 1; default: the last.")] = None,
    member: Annotated[str | None, typer.Option(help="Such as worker-1 or server-0; default worker-0.")] = None,
    all_members: Annotated[bool, typer.Option("--all", help="Every member, each line under its name.")] = False,
    raw: Annotated[bool, typer.Option("--raw", help="Pass control characters on as they are.")] = False,
    home: HomeOption = None,
    output: Output = "table",
) -> None:
    """Print a job's log; -f follows it to the end."""
    check_output(output)
    if all_members and member is not None:
        raise InputError("--all and --member exclude each other", "one of them", column="--all")
    with Client.find(home) as client:
        if output == "json":
            _print_json(client, job, attempt, member)
            return
        if all_members:
            view = follow_members(client, job, attempt, raw, to_the_end=follow_it)
        else:
            view = _one(client, job, LogReader(client, job, member, attempt), follow_it, raw)
        if view is not None and view["state"] != "finished":
            remark(ended_line(view))


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


def _print_json(client: Client, job: str, attempt: int | None, member: str | None) -> None:
    """The whole log as one body, read in pieces."""
    asked: dict[str, str | int | None] = {"attempt": attempt, "member": member, "offset": 0}
    chunk = client.get(job_path(job, "/logs"), asked)
    pieces = [chunk["text"]]
    while chunk["text"]:
        asked = {"attempt": chunk["attempt"], "member": chunk["member"], "offset": chunk["offset"]}
        chunk = client.get(job_path(job, "/logs"), asked)
        pieces.append(chunk["text"])
    typer.echo(to_json({**chunk, "text": "".join(pieces)}), nl=False)
