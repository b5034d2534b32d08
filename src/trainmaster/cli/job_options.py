"""The options that describe a job, shared by `submit` and `run`: one for each field of `JobRequest`, and a few more.

Options are read as text; `JobRequest` converts and checks them, as it does a job file's values.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import typer

from trainmaster.jobspec.model import SIZE, WORK, JobRequest, Option, note_of

_REPEATED = ("speeds", "environment", "argument")
_EXTRA: dict[str, Any] = {
    "file": Annotated[
        Path | None, typer.Option("--file", "-f", help="Job in YAML (see --schema); options override it.")
    ],
    "gpus": Annotated[
        str | None, typer.Option(help="GPUs in total: one worker each, or see --gpus-per-worker.", rich_help_panel=SIZE)
    ],
    "bare_env": Annotated[
        bool, typer.Option("--bare-env", help="Do not pass on PATH and the like.", rich_help_panel=WORK)
    ],
}


@dataclass(frozen=True)
class JobOptions:
    """What was typed, unparsed; `request.build` makes the request of it."""

    given: dict[str, Any]
    """Text by field."""
    file: Path | None = None
    gpus: str | None = None
    bare_env: bool = False


def option_of(field: str) -> str:
    """The option that sets a field, such as `--gpu-type`."""
    note: Option = note_of(JobRequest, field, Option)
    return note.metavar or field if note.form == "argument" else (*note.names, f"--{field.replace('_', '-')}")[0]


def _is_list(annotation: Any) -> bool:
    while get_origin(annotation) in (Annotated, Union, UnionType):
        annotation = get_args(annotation)[0]
    return get_origin(annotation) is list


def _parameters() -> dict[str, tuple[Any, Any]]:
    """Annotation and default by name of parameter, as typer takes them."""
    made: dict[str, tuple[Any, Any]] = {}
    for field, info in JobRequest.model_fields.items():
        note: Option = note_of(JobRequest, field, Option)
        if note.hidden:
            continue
        help_text = info.description or ""
        if note.form == "argument":
            made[field] = Annotated[list[str] | None, typer.Argument(metavar=note.metavar, help=help_text)], None
            continue
        names = note.names or (option_of(field),)
        shown = typer.Option(*names, metavar=note.metavar, help=help_text, rich_help_panel=note.panel or None)
        if note.sets is not None:
            made[field] = Annotated[bool, shown], False
        elif note.form in _REPEATED or (not note.form and _is_list(info.annotation)):
            made[field] = Annotated[list[str] | None, shown], None
        else:
            made[field] = Annotated[str | None, shown], None
    made.update({name: (hint, False if name == "bare_env" else None) for name, hint in _EXTRA.items()})
    return made


def with_job_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command's parameter `options` spread out into one option each, as typer wants to see them."""
    own = get_type_hints(command, include_extras=True)
    ours = _parameters()
    parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)
        for name, (hint, default) in ours.items()
    ]
    parameters += [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=own[parameter.name])
        for parameter in inspect.signature(command).parameters.values()
        if parameter.name != "options"
    ]

    @wraps(command)
    def spread(**values: Any) -> None:
        extra = {name: values.pop(name) for name in _EXTRA}
        given = {name: values.pop(name) for name in ours if name not in _EXTRA}
        command(JobOptions({name: value for name, value in given.items() if value}, **extra), **values)

    spread.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    spread.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    del spread.__wrapped__
    return spread
