"""`trainmaster nodes`: what the cluster has, what is free, who runs there."""

from __future__ import annotations

from typing import Any

from trainmaster.cli.shared.command import command
from trainmaster.client.client import Client
from trainmaster.client.transport import Json


def _show(found: list[Json]) -> None:
    from trainmaster.cli.shared.screen import cell, show_table

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


@command(_show)
def nodes(client: Client) -> Any:
    """List the nodes: what they have, what is free, who runs there."""
    return client.get("/nodes")
