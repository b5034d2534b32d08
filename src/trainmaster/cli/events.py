"""`trainmaster events`: what happened, in order."""

from __future__ import annotations

from typing import Annotated

import typer

from trainmaster.cli.output import HomeOption, Output, check_output, one_message, to_json
from trainmaster.client.client import Client, job_path, patiently
from trainmaster.client.transport import Json

_PAGE = 500
_LONG_POLL_S = 10.0


@one_message
def events(
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until Ctrl-C.")] = False,
    job: Annotated[str | None, typer.Option(help="Only of this job (id or name).")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="The last so many.")] = 50,
    after: Annotated[int | None, typer.Option(min=0, help="Those after this number, from the first on.")] = None,
    home: HomeOption = None,
    output: Output = "table",
) -> None:
    """What happened, in order; -f follows."""
    check_output(output)
    with Client.find(home) as client:
        wanted = client.get(job_path(job))["id"] if job is not None else None
        page = read(client, wanted, after, limit)
        if output == "json" and not follow:
            typer.echo(to_json(page), nl=False)
            return
        _print(page["events"], output)
        try:
            while follow:
                page = _next(client, wanted, page["next"])
                _print(page["events"], output)
        except KeyboardInterrupt:
            return


def read(client: Client, job: str | None, after: int | None, limit: int) -> Json:
    """An `EventPage`: `limit` events after a number, or the last `limit` of all."""
    if after is not None:
        return client.get("/events", {"job": job, "after": after, "limit": min(limit, _PAGE)})
    page = client.get("/events", {"job": job, "last": min(limit, _PAGE), "limit": _PAGE})
    kept = page["events"]
    while page["events"]:
        page = client.get("/events", {"job": job, "after": page["next"], "limit": _PAGE})
        kept = (kept + page["events"])[-limit:]
    return {"events": kept[-limit:], "next": page["next"]}


def _next(client: Client, job: str | None, after: int) -> Json:
    asked = {"job": job, "after": after, "limit": _PAGE}
    return patiently(
        lambda: client.get("/events", asked, wait_s=_LONG_POLL_S),
        lambda told: typer.echo(f"trainmaster: {told}; waiting for it", err=True),
    )


def _print(found: list[Json], output: str) -> None:
    from trainmaster.cli.safe_text import safe_line
    from trainmaster.cli.times import instant

    for event in found:
        if output == "json":
            typer.echo(to_json(event, indent=None), nl=False)
            continue
        about = f"{event['job'] or '-':<12}"
        typer.echo(
            safe_line(f"{event['number']:>6}  {instant(event['at'])}  {about}  {event['kind']:<14}  {event['text']}")
        )
