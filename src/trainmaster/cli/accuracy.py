"""`trainmaster accuracy`: how good the predicted finish times were."""

from __future__ import annotations

import typer

from trainmaster.cli.output import HomeOption, Output, check_output, one_message, to_json
from trainmaster.client.client import Client


@one_message
def accuracy(home: HomeOption = None, output: Output = "table") -> None:
    """Say how good the predicted finish times were."""
    check_output(output)
    with Client.find(home) as client:
        rows = client.get("/accuracy")
    if output == "json":
        typer.echo(to_json(rows), nl=False)
        return
    if not rows:
        typer.echo("no prediction has been put to the test yet: a job must finish first")
        return
    from trainmaster.cli.screen import cell, show_table

    heads = ("LIFE PASSED", "JOBS", "MEDIAN ERROR", "OF WHAT WAS LEFT", "WITHIN 90 % BAND", "BY P90")
    names = ("median_error", "median_error_of_remaining", "inside_90_fraction", "below_p90_fraction")
    shown = [
        [cell(f"{row['at_fraction_of_life']:.0%}"), cell(row["jobs"]), *(cell(f"{row[name]:.1%}") for name in names)]
        for row in rows
    ]
    show_table(heads, shown, right=heads)
