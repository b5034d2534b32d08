"""`trainmaster why`: what a job waits for, who holds it, and the smallest change that would start it."""

from __future__ import annotations

from typing import Any

import click

from trainmaster.cli.shared.command import JOB, command
from trainmaster.client.client import Client, job_path
from trainmaster.client.transport import Json
from trainmaster.model.reason_text import summary


@command()
@JOB
def why(client: Client, job: str, output: str) -> Any:
    """Say why a job waits, who holds what it needs, and what would start it."""
    answer = client.get(job_path(job, "/why"))
    if output == "json":
        return answer
    from trainmaster.wire.safe_text import safe_line

    for line in lines(answer, client.get(job_path(job))):
        click.echo(safe_line(line))
    return None


def lines(answer: Json, view: Json) -> list[str]:
    """The answer in sentences: the state, what is short, who holds it, what to do."""
    state = view["state"]
    name = f"{view['id']} ({view['name']})" if view["name"] not in ("", view["id"]) else view["id"]
    verb = {"pending": "waits", "running": "runs", "paused": "is paused"}.get(state, f"is {state}")
    text = summary(answer["why"]) or answer["text"]
    told = [f"{name} {verb}{': ' if text else '.'}{text}"]
    if state != "pending" or answer["why"] == "starting":  # it has what it needs, and is among those who hold it
        return told + _advice(answer)
    if answer["needs_gpus"]:
        told.append(f"  needs    {_gpus(answer['needs_gpus'])}")
        told.append(f"  free     {_amounts(answer['free'])}")
    if answer["missing_gpus"]:
        of = f" of {answer['missing_type']}" if answer["missing_type"] else ""
        told.append(f"  short    {_gpus(answer['missing_gpus'])}{of}")
    if answer["holders"]:
        told.append(f"  held by  {', '.join(_holder(job, amount, answer) for job, amount in answer['holders'])}")
    if answer["behind"]:
        told.append(f"  behind   {answer['behind']}")
    if view["position"] is not None:
        told.append(f"  position {view['position']}")
    for key, value in sorted(answer["details"].items()):
        told.append(f"  {key.removesuffix('_s').replace('_', ' ')}: {_fact(key, value)}")
    return told + _advice(answer)


def _advice(answer: Json) -> list[str]:
    return ["What would start it:"] + [f"  - {line}" for line in answer["advice"]] if answer["advice"] else []


def _holder(job: str, amount: float, answer: Json) -> str:
    from trainmaster.cli.shared.times import short

    left_s = answer.get("notices", {}).get(job)
    return f"{job} ({amount:g})" if left_s is None else f"{job} ({amount:g}, preempted in {short(left_s)})"


def _gpus(amount: float) -> str:
    return f"{amount:g} GPU{'' if amount == 1 else 's'}"


def _amounts(free: dict[str, float]) -> str:
    return ", ".join(f"{amount:g} {kind}" for kind, amount in sorted(free.items())) or "none"


def _fact(key: str, value: object) -> str:
    from trainmaster.cli.shared.times import short

    if key.endswith("_s") and isinstance(value, int | float):
        return short(value)
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list):
        return ", ".join(str(item) for item in value)
    return str(value)
