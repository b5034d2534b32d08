"""`trainmaster report`: the HTML page of a finished comparison, made again from its Parquet files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from trainmaster.cli.output import one_message
from trainmaster.sim.comparison_store import read_comparison


@one_message
def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder written by `trainmaster compare`.")],
    figures: Annotated[
        bool, typer.Option("--figures", help="Also write every figure as a file to DIR/figures.")
    ] = False,
) -> None:
    """Rebuild report.html, and print the table."""
    from trainmaster.report.comparison import write_report
    from trainmaster.report.comparison_table import print_comparison

    tables = read_comparison(folder)
    page = write_report(tables, folder, figures=figures)
    print_comparison(tables, Console())
    Console(soft_wrap=True).print(f"report: {page}", markup=False, highlight=False)
