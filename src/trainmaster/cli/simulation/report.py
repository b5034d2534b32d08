"""`trainmaster report`: the HTML page of a finished comparison, made again from its Parquet files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainmaster.cli.shared.output import check_output, one_message
from trainmaster.cli.shared.typer_options import Output
from trainmaster.cli.simulation.compare import finish


@one_message
def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder written by `trainmaster compare`.")],
    figures: Annotated[
        bool, typer.Option("--figures", help="Also write every figure as a file to DIR/figures.")
    ] = False,
    output: Output = "table",
) -> None:
    """Rebuild report.html, and print the table."""
    check_output(output)
    finish(folder, figures, output)
