"""The `trainmaster` command: sub-commands, and nothing else."""

from __future__ import annotations

import typer

from trainmaster import __version__
from trainmaster.cli import compare, demo, policies, report, simulate, solve, traces

app = typer.Typer(
    help="Schedule deep-learning training on GPU clusters: choose a policy in the simulator, then run it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command("simulate")(simulate.simulate)
app.command("compare")(compare.compare)
app.command("report")(report.report)
app.command("solve")(solve.solve)
app.command("policies")(policies.policies)
app.command("demo")(demo.demo)
app.add_typer(traces.app, name="traces")


def _version(value: bool) -> None:
    if value:
        typer.echo(f"trainmaster {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """Trainmaster."""


def main() -> None:
    app()
