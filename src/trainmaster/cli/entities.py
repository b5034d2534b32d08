"""`trainmaster entities`: teams, their weights and quotas."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import typer

from trainmaster.cli.output import HomeOption, Output, check_output, one_message, to_json
from trainmaster.client.client import Client
from trainmaster.client.errors import Refused
from trainmaster.client.transport import Json
from trainmaster.model.errors import InputError


@one_message
def entities(
    name: Annotated[str | None, typer.Argument(metavar="[TEAM]", help="One team.")] = None,
    weight: Annotated[float | None, typer.Option(help="Its share against other teams.")] = None,
    quota: Annotated[str | None, typer.Option(help="GPUs it may use at once, or `none`.")] = None,
    home: HomeOption = None,
    output: Output = "table",
) -> None:
    """List the teams with weights and quotas, or set one."""
    check_output(output)
    if name is None and (weight is not None or quota is not None):
        raise InputError("no team named", "one, as in: trainmaster entities vision --weight 2")
    if name is not None and (not name or "/" in name):
        raise InputError(f"'{name}' is no team", "a name; `trainmaster entities` lists them")
    gpus = _quota(quota)
    with Client.find(home) as client:
        known: list[Json] = client.get("/entities")
        if name is not None and (weight is not None or quota is not None):
            now = next((team for team in known if team["name"] == name), {"weight": 1.0, "quota_gpus": None})
            body = {
                "weight": now["weight"] if weight is None else weight,
                "quota_gpus": now["quota_gpus"] if quota is None else gpus,
            }
            client.put(f"/entities/{quote(name, safe='')}", body)
            known = client.get("/entities")
    if name is not None:
        known = [team for team in known if team["name"] == name]
        if not known:
            raise Refused(f"there is no team '{name}'; `trainmaster entities` lists them", 404)
    if output == "json":
        typer.echo(to_json(known[0] if name is not None else known), nl=False)
    else:
        _print(known)


def _quota(text: str | None) -> float | None:
    if text is None or text.lower() == "none":
        return None
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise InputError(f"'{text}' is no quota", "a number of GPUs, or none", column="--quota")
    return number


def _print(found: list[Json]) -> None:
    from trainmaster.cli.screen import cell, show_table

    if not found:
        typer.echo("no teams yet: `submit --entity NAME` makes one, `entities NAME --weight 2 --quota 4` sets it")
        return
    headers = ("TEAM", "WEIGHT", "QUOTA", "USED", "JOBS")
    rows = []
    for team in found:
        quota = "-" if team["quota_gpus"] is None else f"{team['quota_gpus']:g}"
        numbers = (f"{team['weight']:g}", quota, f"{team['used_gpus']:g}", team["jobs"])
        rows.append([cell(team["name"], "bold"), *(cell(number) for number in numbers)])
    show_table(headers, rows, right=headers[1:])
