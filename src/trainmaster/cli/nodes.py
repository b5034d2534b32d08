"""`trainmaster nodes`: what the cluster has, what is free, who runs there."""

from __future__ import annotations

import typer

from trainmaster.cli.output import HomeOption, Output, check_output, one_message, to_json
from trainmaster.client.client import Client
from trainmaster.client.transport import Json


@one_message
def nodes(home: HomeOption = None, output: Output = "table") -> None:
    """List the nodes: what they have, what is free, who runs there."""
    check_output(output)
    with Client.find(home) as client:
        found = client.get("/nodes")
    if output == "json":
        typer.echo(to_json(found), nl=False)
    else:
        _print(found)


def _print(found: list[Json]) -> None:
    from trainmaster.cli.screen import cell, show_table

    racks = any(node["rack"] for node in found)
    headers = ["NODE", "TYPE", "GPUS", "FREE", "STATE"] + (["RACK"] if racks else []) + ["JOBS"]
    rows = []
    for node in found:
        row = [
            cell(node["id"], "bold"),
            cell(f"{node['accelerator']}{' (emulated)' if node['emulated'] else ''}"),
            cell(node["gpus"]),
            cell(f"{node['free_gpus']:g}", "green" if node["free_gpus"] else ""),
            cell("up" if node["up"] else "down", "" if node["up"] else "red"),
        ]
        if racks:
            row.append(cell(node["rack"]))
        rows.append([*row, cell(", ".join(node["jobs"]))])
    show_table(headers, rows, right=("GPUS", "FREE"))
