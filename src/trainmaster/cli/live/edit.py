"""`trainmaster edit`: other terms for a job that waits or runs. Options are those of `submit`."""

from __future__ import annotations

import time
from typing import Any

import click

from trainmaster.cli.live.control import preemptions_told, print_jobs
from trainmaster.cli.shared.amounts import range_of
from trainmaster.cli.shared.command import JOB, command
from trainmaster.cli.shared.times import deadline_seconds, seconds_of
from trainmaster.client.client import Client, job_path
from trainmaster.model.errors import InputError


@command()
@JOB
@click.option("--priority", type=int, help="Higher goes first.")
@click.option("--weight", type=float, help="Share relative to other jobs.")
@click.option("--deadline", metavar="2h|DATE|none", help="Deadline from now on; none: no deadline.")
@click.option(
    "--time", "run_time", metavar="2h|none", help="Maximum run time, what it has run included; none: no limit."
)
@click.option("--workers", metavar="A..B", help="Number of workers, as `resize`.")
@click.option("--servers", metavar="A..B", help="Number of parameter servers, while it does not run.")
def edit(
    client: Client,
    job: str,
    priority: int | None,
    weight: float | None,
    deadline: str | None,
    run_time: str | None,
    workers: str | None,
    servers: str | None,
    output: str,
) -> None:
    """Change priority, deadline, run time or size of a job.

    It goes on meanwhile: the policy sees the change at its next decision.
    """
    given: dict[str, Any] = {"priority": priority, "weight": weight}
    changes = {field: value for field, value in given.items() if value is not None}
    if run_time is not None:
        changes["time_s"] = None if run_time == "none" else seconds_of(run_time, "--time")
    for field, text in (("workers", workers), ("servers", servers)):
        if text is not None:
            changes[field] = range_of(text, f"--{field}")
    if deadline is not None:
        changes["deadline_s"] = None
        if deadline != "none":
            now_s = time.time()
            age_s = now_s - client.get(job_path(job))["submitted"]
            changes["deadline_s"] = age_s + deadline_seconds(deadline, now_s)
    if not changes:
        raise InputError("nothing to change", "an option such as --priority 5")
    with preemptions_told(client):
        print_jobs([client.post(job_path(job, "/edit"), changes, again=1)], output, single=True)
