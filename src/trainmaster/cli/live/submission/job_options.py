"""The options that describe a job, shared by `submit` and `run`: one for each field of `JobRequest`, and a few more.

Options are read as text; `JobRequest` converts and checks them, as it does a job file's values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import click

from trainmaster.jobspec.model import SIZE, WORK, JobRequest, Option, note_of

_REPEATED = ("speeds", "environment", "argument")


@dataclass(frozen=True)
class JobOptions:
    """What was typed, unparsed; `request.build` makes the request of it."""

    given: dict[str, Any]
    """Text by field."""
    file: Path | None = None
    gpus: str | None = None
    bare_env: bool = False


class PanelOption(click.Option):
    def __init__(self, *args: Any, panel: str = "", **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.panel = panel


class PanelCommand(click.Command):
    """Lists options by panel. What follows the first argument belongs to the user's program."""

    allow_interspersed_args = False

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        panels: dict[str, list[tuple[str, str]]] = {}
        for option in self.get_params(ctx):
            row = option.get_help_record(ctx) if isinstance(option, click.Option) else None
            if row is not None:
                panels.setdefault(getattr(option, "panel", "") or "Options", []).append(row)
        for panel, rows in panels.items():
            with formatter.section(panel):
                formatter.write_dl(rows)


def option_of(field: str) -> str:
    """The option that sets a field, such as `--gpu-type`."""
    note: Option = note_of(JobRequest, field, Option)
    return (
        note.metavar or field
        if note.form == "argument"
        else (*note.names, f"--{field.replace('_', '-')}")[0].partition("/")[0]
    )


def _is_list(annotation: Any) -> bool:
    while get_origin(annotation) in (Annotated, Union, UnionType):
        annotation = get_args(annotation)[0]
    return get_origin(annotation) is list


def _decorator(field: str) -> Callable[[Any], Any]:
    note, info = note_of(JobRequest, field, Option), JobRequest.model_fields[field]
    if note.form == "argument":
        return click.argument(field, nargs=-1, metavar=f"[{note.metavar}]", type=click.UNPROCESSED)
    repeated = note.form in _REPEATED or (not note.form and _is_list(info.annotation))
    settings: dict[str, Any] = {"multiple": repeated, "metavar": note.metavar or "TEXT"}
    if note.sets is not None or note.form == "switch":
        settings = {"is_flag": True, "default": None}
    names = note.names or (option_of(field),)
    return click.option(*names, field, cls=PanelOption, panel=note.panel, help=info.description, **settings)


def with_job_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function's parameter `options` spread out into one option each."""
    fields = [field for field in JobRequest.model_fields if not note_of(JobRequest, field, Option).hidden]

    @wraps(function)
    def spread(file: Path | None, gpus: str | None, bare_env: bool, **values: Any) -> Any:
        typed = {field: values.pop(field) for field in fields}
        given = {
            field: list(text) if isinstance(text, tuple) else text
            for field, text in typed.items()
            if text or text is False
        }
        return function(options=JobOptions(given, file, gpus, bare_env), **values)

    decorators = [
        click.option(
            "--file", "-f", type=click.Path(path_type=Path), help="Job in YAML (see --schema); options override it."
        ),
        click.option(
            "--gpus", cls=PanelOption, panel=SIZE, help="GPUs in total: one worker each, or see --gpus-per-worker."
        ),
        click.option("--bare-env", is_flag=True, cls=PanelOption, panel=WORK, help="Do not pass on PATH and the like."),
        *(_decorator(field) for field in fields),
    ]
    for decorator in reversed(decorators):
        spread = decorator(spread)
    return spread
