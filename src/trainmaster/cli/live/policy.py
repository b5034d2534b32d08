"""`trainmaster policy`: which policy decides, or let another one."""

from __future__ import annotations

from typing import Any

import click

from trainmaster.cli.live.control import preemptions_told
from trainmaster.cli.live.queue import STATES
from trainmaster.cli.shared.command import command
from trainmaster.client.client import Client
from trainmaster.client.transport import Json


def _show(service: Json) -> None:
    from trainmaster.cli.shared.times import instant
    from trainmaster.wire.safe_text import safe_line

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
        click.echo(safe_line(f"{label:<10} {text}"))


@command(_show)
@click.argument("name", metavar="[POLICY]", required=False)
def policy(client: Client, name: str | None) -> Any:
    """Show the policy of the service, or change it.

    POLICY is the new one, with options: fifo:backfill=true
    """
    if name is not None:
        with preemptions_told(client):
            client.put("/policy", {"policy": name})
    return client.get("/service")
