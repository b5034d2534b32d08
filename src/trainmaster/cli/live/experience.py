"""`trainmaster experience`: what the policy met, did and achieved, a JSON object in a line."""

from __future__ import annotations

import json
from typing import Any

import click

from trainmaster.cli.shared.command import command
from trainmaster.client.client import Client
from trainmaster.client.transport import Json


def _show(rows: list[Json]) -> None:
    for row in rows:
        click.echo(json.dumps(row, separators=(",", ":")))


@command(_show)
@click.option("--after", type=click.IntRange(min=0), default=0, help="Rows from this number on.")
def experience(client: Client, after: int) -> Any:
    """Write states, actions and rewards, to train on (operators)."""
    rows: list[Json] = []
    while (page := client.get(f"/experience?after={after}"))["rows"]:
        rows += page["rows"]
        after = page["next"]
    return rows
