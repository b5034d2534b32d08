"""`trainmaster policies`: which policies there are, and what one of them does."""

from __future__ import annotations

import inspect
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from trainmaster.cli.shared.output import check_output, one_message, to_json
from trainmaster.cli.shared.typer_options import Output
from trainmaster.policies.registry import Entry, entries, entry


@one_message
def policies(
    name: Annotated[str | None, typer.Argument(help="A policy to describe; all are listed without it.")] = None,
    output: Output = "table",
) -> None:
    """List the policies, or describe one with its options."""
    check_output(output)
    found = [entry(name.partition(":")[0])] if name else list(entries())
    if output == "json":
        described = [_describe(item) for item in found]
        typer.echo(to_json(described[0] if name else described), nl=False)
    elif name:
        _print_one(found[0])
    else:
        table = Table("policy", "what it does", "options")
        for item in found:
            table.add_row(item.name, item.summary, ", ".join(o.name for o in item.options))
        Console().print(table)


def _describe(item: Entry) -> dict[str, Any]:
    return {
        "name": item.name,
        "summary": item.summary,
        "fair": item.fair,
        "options": [
            {"name": o.name, "type": getattr(o.type, "__name__", str(o.type)), "default": o.default, "help": o.help}
            for o in item.options
        ],
    }


def _print_one(item: Entry) -> None:
    console = Console()
    console.print(f"[bold]{item.name}[/]")
    console.print(inspect.cleandoc(item.build.__doc__ or ""), markup=False, highlight=False)
    if item.options:
        table = Table("option", "default", "meaning")
        for o in item.options:
            table.add_row(o.name, str(o.default), o.help)
        console.print(table)
