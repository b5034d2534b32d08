"""`trainmaster run`: submit a job, follow its log, exit with its code; Ctrl-C cancels it."""

from __future__ import annotations

import signal
import time

import click

from trainmaster.cli.live.following import (
    LogReader,
    ended_line,
    exit_code,
    follow,
    follow_members,
    job_view,
    remark,
    wait_for_all,
    write_log,
)
from trainmaster.cli.live.submission.job_options import JobOptions, PanelCommand, with_job_options
from trainmaster.cli.live.submission.request import build
from trainmaster.cli.live.submit import hand_in
from trainmaster.cli.shared.command import command
from trainmaster.client.client import Client, job_path
from trainmaster.client.transport import Json
from trainmaster.model.errors import TrainmasterError


@command(output=False, cls=PanelCommand)
@with_job_options
@click.option("--raw", is_flag=True, help="Pass control characters of the log on.")
def run(client: Client, options: JobOptions, raw: bool) -> None:
    """Submit a job, follow its log, exit with its code."""
    request = build(options, time.time())
    request.body.setdefault("max_attempts", 1)  # who watches a program fail starts it again himself
    jobs = hand_in(client, request, options.bare_env)["ids"]
    reader = LogReader(client, jobs[0], None, None)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        _announce(client, jobs)
        code = _follow(client, jobs, reader, raw)
    except KeyboardInterrupt:
        code = _cancel(client, jobs, reader, raw)
    raise SystemExit(code)


def _announce(client: Client, jobs: list[str]) -> None:
    if len(jobs) > 1:
        remark(f"{len(jobs)} jobs, {jobs[0]} to {jobs[-1]}; see `trainmaster logs ID`")
        return
    view = job_view(client, jobs[0])
    waits = f": {view['reason']}" if view["state"] == "pending" and view["reason"] else ""
    remark(f"{jobs[0]} is {view['state']}{waits}")


def _follow(client: Client, jobs: list[str], reader: LogReader, raw: bool) -> int:
    """A job's log, or, of an array, the end of each member."""
    if len(jobs) > 1:
        return wait_for_all(client, jobs)
    if _has_members(job_view(client, jobs[0])):
        ended = follow_members(client, jobs[0], None, raw, to_the_end=True)
    else:
        ended = follow(reader, client, jobs[0], lambda text: write_log(text, raw))
    view = ended or job_view(client, jobs[0])
    if view["state"] != "finished":
        remark(ended_line(view))
        for line in view.get("output", "").splitlines():
            remark(line)
        if view.get("hint"):
            remark(f"hint: {view['hint']}")
    return exit_code(view)


def _has_members(view: Json) -> bool:
    """Whether more than one process may speak: each line is then shown under its member's name."""
    request = view["request"]
    return request["workers"]["max"] > 1 or request["servers"]["max"] > 0


def _cancel(client: Client, jobs: list[str], reader: LogReader, raw: bool) -> int:
    """Ask the service to end what was started, and stay until it has; a second Ctrl-C leaves at once."""
    remark(f"cancelling {', '.join(jobs[:3])}{' ...' if len(jobs) > 3 else ''}; Ctrl-C again: do not wait for the end")
    client.close()  # the interrupted request may have left half an answer on the connection
    try:
        for job in jobs:
            client.post(job_path(job, "/cancel"), again=1)
        _follow(client, jobs, reader, raw)
    except KeyboardInterrupt:
        remark("detached; cancellation continues")
    except TrainmasterError as error:
        remark(f"it may still run: {error}")
        return 1
    return 130
