"""`trainmaster policy`: which policy decides, or let another one."""

from __future__ import annotations

from typing import Annotated

import typer

from trainmaster.cli.output import HomeOption, Output, check_output, one_message, to_json
from trainmaster.cli.queue import STATES
from trainmaster.client.client import Client
from trainmaster.client.transport import Json


@one_message
def policy(
    name: Annotated[
        str | None, typer.Argument(metavar="[POLICY]", help="The new policy, with options: fifo:backfill=true")
    ] = None,
    home: HomeOption = None,
    output: Output = "table",
) -> None:
    """Show the policy of the service, or change it."""
    check_output(output)
    with Client.find(home) as client:
        if name is not None:
            client.put("/policy", {"policy": name})
        service = client.get("/service")
    if output == "json":
        typer.echo(to_json(service), nl=False)
    else:
        _print(service)


def _print(service: Json) -> None:
    from trainmaster.cli.safe_text import safe_line
    from trainmaster.cli.times import instant

    emulated = " (emulated speeds)" if service["emulated"] else ""
    counts = ", ".join(f"{service['jobs'][state]} {state}" for state in STATES if service["jobs"].get(state))
    refused = f", {service['plans_refused']} plans refused" if service["plans_refused"] else ""
    for label, text in (
        ("policy", service["policy"]),
        ("cluster", f"{service['cluster']}{emulated}, backend {service['backend']}"),
        ("jobs", counts or "none"),
        ("decisions", f"{service['decisions']}{refused}"),
        ("service", f"version {service['version']}, up since {instant(service['started'])}"),
    ):
        typer.echo(safe_line(f"{label:<10} {text}"))
