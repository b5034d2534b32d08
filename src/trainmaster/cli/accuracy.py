"""`trainmaster accuracy`: how good the predicted finish times were."""

from __future__ import annotations

import typer

from trainmaster.cli.address import HomeOption
from trainmaster.cli.client import Client
from trainmaster.cli.output import Output, check_output, one_message, to_json


@one_message
def accuracy(home: HomeOption = None, output: Output = "table") -> None:
    """Compare predicted with actual finish times, by how much of a job's life had passed."""
    check_output(output)
    with Client.find(home) as client:
        rows = client.get("/accuracy")
    if output == "json":
        typer.echo(to_json(rows), nl=False)
        return
    if not rows:
        typer.echo("no prediction has been put to the test yet: a job must finish first")
        return
    from trainmaster.cli.screen import columns, show

    heads = ("life passed", "jobs", "median error", "of what was left", "within 90 % band", "by p90")
    table = columns(*heads, right=heads)
    for row in rows:
        table.add_row(
            f"{row['at_fraction_of_life']:.0%}", str(row["jobs"]), f"{row['median_error']:.1%}",
            f"{row['median_error_of_remaining']:.1%}", f"{row['inside_90_fraction']:.0%}",
            f"{row['below_p90_fraction']:.0%}",
        )  # fmt: skip
    show(table)
