"""`trainmaster entities`: teams, their weights, quotas and policies."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import click

from trainmaster.cli.shared.command import command
from trainmaster.client.client import Client
from trainmaster.client.errors import Refused
from trainmaster.client.transport import Json
from trainmaster.model.errors import InputError


def _show(found: Any) -> None:
    _print(found if isinstance(found, list) else [found])


@command(_show)
@click.argument("name", metavar="[TEAM]", required=False)
@click.option("--weight", type=float, help="Its share against other teams.")
@click.option("--quota", help="GPUs it may use at once, or `none`.")
@click.option(
    "--policy",
    type=click.Choice(["fairness", "fifo", "none"]),
    help="How its jobs divide what it gets, under gavel-hierarchical; none: as that says.",
)
def entities(client: Client, name: str | None, weight: float | None, quota: str | None, policy: str | None) -> Any:
    """List the teams with weights, quotas and policies, or set one."""
    changes = any(value is not None for value in (weight, quota, policy))
    if name is None and changes:
        raise InputError("no team named", "one, as in: trainmaster entities vision --weight 2")
    if name is not None and (not name or "/" in name):
        raise InputError(f"invalid team '{name}'", "a name; `trainmaster entities` lists them")
    gpus = _quota(quota)
    known: list[Json] = client.get("/entities")
    if name is None:
        return known
    if changes:
        now = next((team for team in known if team["name"] == name), {"weight": 1.0, "quota_gpus": None})
        inside = now.get("policy") if policy is None else policy
        body = {
            "weight": now["weight"] if weight is None else weight,
            "quota_gpus": now["quota_gpus"] if quota is None else gpus,
            "policy": None if inside == "none" else inside,
        }
        client.put(f"/entities/{quote(name, safe='')}", body)
        known = client.get("/entities")
    found = next((team for team in known if team["name"] == name), None)
    if found is None:
        raise Refused(f"team '{name}' not found; `trainmaster entities` lists the teams", 404)
    return found


def _quota(text: str | None) -> float | None:
    if text is None or text.lower() == "none":
        return None
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise InputError(f"invalid quota '{text}'", "a number of GPUs, or none", column="--quota")
    return number


def _print(found: list[Json]) -> None:
    from trainmaster.cli.shared.screen import cell, show_table

    if not found:
        click.echo("no teams yet: `submit --entity NAME` makes one, `entities NAME --weight 2 --quota 4` sets it")
        return
    headers = ("TEAM", "WEIGHT", "QUOTA", "POLICY", "USED", "JOBS")
    rows = []
    for team in found:
        quota = "-" if team["quota_gpus"] is None else f"{team['quota_gpus']:g}"
        inside = team.get("policy") or "-"
        numbers = (f"{team['weight']:g}", quota, inside, f"{team['used_gpus']:g}", team["jobs"])
        rows.append([cell(team["name"], "bold"), *(cell(number) for number in numbers)])
    show_table(headers, rows, right=headers[1:])
