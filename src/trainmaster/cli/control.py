"""`trainmaster cancel`, `pause`, `resume` and `resize`: what a user may ask of jobs."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from trainmaster.cli.amounts import range_of
from trainmaster.cli.output import HomeOption, Output, check_output, one_message, to_json
from trainmaster.cli.safe_text import safe_line
from trainmaster.client.client import Client, job_path
from trainmaster.client.errors import Refused
from trainmaster.model.errors import InputError

Jobs = Annotated[list[str], typer.Argument(metavar="JOB...", help="Ids or names.")]


@one_message
def cancel(jobs: Jobs, home: HomeOption = None, output: Output = "table") -> None:
    """Cancel jobs."""
    _ask_each(jobs, "cancel", home, output)


@one_message
def pause(jobs: Jobs, home: HomeOption = None, output: Output = "table") -> None:
    """Pause jobs: they free their GPUs and keep their progress."""
    _ask_each(jobs, "pause", home, output)


@one_message
def resume(jobs: Jobs, home: HomeOption = None, output: Output = "table") -> None:
    """Put paused jobs back into the queue."""
    _ask_each(jobs, "resume", home, output)


@one_message
def resize(
    job: Annotated[str, typer.Argument(metavar="JOB", help="Id or name.")],
    workers: Annotated[str, typer.Argument(metavar="A..B", help="Workers it may have: 2..4, or 3 for exactly three.")],
    home: HomeOption = None,
    output: Output = "table",
) -> None:
    """Change how many workers a job may have."""
    check_output(output)
    wanted = range_of(workers, "A..B")
    if wanted["min"] < 1:
        raise InputError(f"'{workers}' allows no worker", "at least 1", "To stop a job for a while: pause.")
    with Client.find(home) as client:
        view = client.post(job_path(job, "/resize"), {"workers": wanted}, again=1)
    _print([view], output, single=True)


def _ask_each(jobs: list[str], verb: str, home: Any, output: str) -> None:
    """Every job is asked, also after one was refused; a refusal makes the exit code 1."""
    check_output(output)
    views: list[dict[str, Any]] = []
    refusals: list[str] = []
    with Client.find(home) as client:
        for job in jobs:
            try:
                views.append(client.post(job_path(job, f"/{verb}"), again=1))
            except Refused as refused:
                refusals.append(str(refused))
    _print(views, output, single=len(jobs) == 1)
    for told in refusals:
        typer.echo(f"error: {safe_line(told)}", err=True)
    if refusals:
        raise typer.Exit(1)


def _print(views: list[dict[str, Any]], output: str, single: bool) -> None:
    if output == "json":
        if views or not single:
            typer.echo(to_json(views[0] if single else views), nl=False)
        return
    for view in views:
        workers = view["request"]["workers"]
        size = f"{workers['min']}..{workers['max']}" if workers["min"] != workers["max"] else f"{workers['min']}"
        phase = f" ({view['phase']})" if view["phase"] not in (view["state"], "") else ""
        name = "" if view["name"] in ("", view["id"]) else f" ({view['name']})"
        typer.echo(safe_line(f"{view['id']}{name}: {view['state']}{phase}, workers {size}"))
