"""`trainmaster events`: what happened, in order."""

from __future__ import annotations

from typing import Any

import click

from trainmaster.cli.shared.command import command
from trainmaster.cli.shared.output import to_json
from trainmaster.client.client import Client, job_path, patiently
from trainmaster.client.transport import Json

_PAGE = 500
_LONG_POLL_S = 10.0


@command()
@click.option("--follow", "-f", is_flag=True, help="Go on until Ctrl-C.")
@click.option("--job", help="Only of this job (id or name).")
@click.option("--limit", "-n", type=click.IntRange(1), default=50, help="The last so many; default 50.")
@click.option("--after", type=click.IntRange(0), help="Those after this number, from the first on.")
def events(client: Client, follow: bool, job: str | None, limit: int, after: int | None, output: str) -> Any:
    """What happened, in order; -f follows."""
    wanted = client.get(job_path(job))["id"] if job is not None else None
    page = read(client, wanted, after, limit)
    if output == "json" and not follow:
        return page
    _print(page["events"], output)
    try:
        while follow:
            page = _next(client, wanted, page["next"])
            _print(page["events"], output)
    except KeyboardInterrupt:
        pass
    return None


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
        lambda told: click.echo(f"trainmaster: {told}; waiting for it", err=True),
    )


def _print(found: list[Json], output: str) -> None:
    from trainmaster.cli.shared.times import instant
    from trainmaster.wire.safe_text import safe_line

    for event in found:
        if output == "json":
            click.echo(to_json(event, indent=None), nl=False)
            continue
        about = f"{event['job'] or '-':<12}"
        click.echo(
            safe_line(f"{event['number']:>6}  {instant(event['at'])}  {about}  {event['kind']:<14}  {event['text']}")
        )
