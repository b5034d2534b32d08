"""`trainmaster accuracy`: how good the predicted finish times were."""

from __future__ import annotations

from typing import Any

import click

from trainmaster.cli.shared.command import command
from trainmaster.client.client import Client
from trainmaster.client.transport import Json


def _show(rows: list[Json]) -> None:
    if not rows:
        click.echo("no prediction has been put to the test yet: a job must finish first")
        return
    from trainmaster.cli.shared.screen import cell, show_table

    heads = ("LIFE PASSED", "JOBS", "MEDIAN ERROR", "OF WHAT WAS LEFT", "WITHIN 90 % BAND", "BY P90")
    names = ("median_error", "median_error_of_remaining", "inside_90_fraction", "below_p90_fraction")
    shown = [
        [cell(f"{row['at_fraction_of_life']:.0%}"), cell(row["jobs"]), *(cell(f"{row[name]:.1%}") for name in names)]
        for row in rows
    ]
    show_table(heads, shown, right=heads)


@command(_show)
def accuracy(client: Client) -> Any:
    """Say how good the predicted finish times were."""
    return client.get("/accuracy")
