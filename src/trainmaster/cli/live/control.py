"""`trainmaster cancel`, `pause`, `resume` and `resize`: what a user may ask of jobs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from trainmaster.cli.shared.amounts import range_of
from trainmaster.cli.shared.command import JOB, command
from trainmaster.cli.shared.output import to_json
from trainmaster.client.client import Client, job_path
from trainmaster.client.errors import Refused
from trainmaster.model.errors import InputError
from trainmaster.wire.safe_text import safe_line


def _asking(verb: str, text: str) -> click.Command:
    """Every job is asked, also after one was refused; a refusal makes the exit code 1."""

    @command(help=text, name=verb)
    @click.argument("jobs", nargs=-1, required=True, metavar="JOB...")
    def ask(client: Client, jobs: tuple[str, ...], output: str) -> None:
        views: list[dict[str, Any]] = []
        refusals: list[str] = []
        for job in jobs:
            try:
                views.append(client.post(job_path(job, f"/{verb}"), again=1))
            except Refused as refused:
                refusals.append(str(refused))
        print_jobs(views, output, single=len(jobs) == 1)
        for told in refusals:
            click.echo(f"error: {safe_line(told)}", err=True)
        if refusals:
            raise SystemExit(1)

    return ask


cancel = _asking("cancel", "Cancel jobs.")
pause = _asking("pause", "Pause jobs: they free their GPUs and keep their progress.")
resume = _asking("resume", "Put paused jobs back into the queue.")


@contextmanager
def preemptions_told(client: Client) -> Iterator[None]:
    """Say afterwards which jobs were given notice of a preemption meanwhile."""
    since = client.get("/events", {"last": 1})["next"]
    yield
    for event in client.get("/events", {"after": since, "limit": 1000})["events"]:
        if event["kind"] == "preemption":
            click.echo(safe_line(f"Warning: {event['text']}."), err=True)


@command()
@JOB
@click.argument("workers", metavar="A..B")
def resize(client: Client, job: str, workers: str, output: str) -> None:
    """Change how many workers a job may have.

    A..B is the range: 2..4, or 3 for exactly three.
    """
    wanted = range_of(workers, "A..B")
    if wanted["min"] < 1:
        raise InputError(f"invalid range '{workers}'", "at least 1 worker", "To stop a job for a while: pause.")
    with preemptions_told(client):
        print_jobs([client.post(job_path(job, "/resize"), {"workers": wanted}, again=1)], output, single=True)


def print_jobs(views: list[dict[str, Any]], output: str, single: bool) -> None:
    if output == "json":
        if views or not single:
            click.echo(to_json(views[0] if single else views), nl=False)
        return
    for view in views:
        workers = view["request"]["workers"]
        size = f"{workers['min']}..{workers['max']}" if workers["min"] != workers["max"] else f"{workers['min']}"
        phase = f" ({view['phase']})" if view["phase"] not in (view["state"], "") else ""
        name = "" if view["name"] in ("", view["id"]) else f" ({view['name']})"
        click.echo(safe_line(f"{view['id']}{name}: {view['state']}{phase}, workers {size}"))
