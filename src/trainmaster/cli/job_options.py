"""The options that describe a job, shared by `submit` and `run`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

_SIZE, _WORK, _WHEN = "Size and place", "Work", "Order and limits"


@dataclass(frozen=True)
class JobOptions:
    """What was typed, unparsed; `request.build` makes the request of it."""

    command: Annotated[
        list[str] | None, typer.Argument(metavar="COMMAND ARGS...", help="Program and arguments; no shell is involved.")
    ] = None
    name: Annotated[str | None, typer.Option("--name", "-n", help="A name to call it by.")] = None
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="Job in YAML (see --schema); options here override it.")
    ] = None
    gpus: Annotated[
        float | None,
        typer.Option(help="GPUs in all: one process for each, or see --gpus-per-worker.", rich_help_panel=_SIZE),
    ] = None
    elastic: Annotated[
        str | None, typer.Option(metavar="A..B", help="Between A and B workers, as GPUs allow.", rich_help_panel=_SIZE)
    ] = None
    servers: Annotated[
        str | None, typer.Option(metavar="A..B", help="Parameter servers beside the workers.", rich_help_panel=_SIZE)
    ] = None
    gpus_per_worker: Annotated[
        float | None, typer.Option(help="GPUs that one process uses (0.5: half of one).", rich_help_panel=_SIZE)
    ] = None
    gpu_type: Annotated[
        list[str] | None, typer.Option(help="Acceptable type; repeatable. Default: any.", rich_help_panel=_SIZE)
    ] = None
    cpus: Annotated[float | None, typer.Option(help="CPUs per worker.", rich_help_panel=_SIZE)] = None
    memory: Annotated[str | None, typer.Option(metavar="8GiB", help="Memory per worker.", rich_help_panel=_SIZE)] = None
    steps: Annotated[float | None, typer.Option(help="Training steps in all.", rich_help_panel=_WORK)] = None
    epochs: Annotated[float | None, typer.Option(help="Epochs in all.", rich_help_panel=_WORK)] = None
    model: Annotated[str | None, typer.Option(help="Model, to look up its speed.", rich_help_panel=_WORK)] = None
    batch_size: Annotated[int | None, typer.Option(help="Batch size.", rich_help_panel=_WORK)] = None
    speed: Annotated[
        list[str] | None,
        typer.Option(metavar="TYPE=STEPS/S", help="Declared speed at full size; repeatable.", rich_help_panel=_WORK),
    ] = None
    env: Annotated[
        list[str] | None,
        typer.Option("--env", "-e", metavar="K=V", help="Variable for it; K alone: as here.", rich_help_panel=_WORK),
    ] = None
    workdir: Annotated[
        Path | None, typer.Option(help="Folder it runs in; default: this one.", rich_help_panel=_WORK)
    ] = None
    image: Annotated[
        str | None, typer.Option(help="On Kubernetes: image that holds the program.", rich_help_panel=_WORK)
    ] = None
    namespace: Annotated[
        str | None,
        typer.Option(help="On Kubernetes: namespace; default: the kubeconfig's.", rich_help_panel=_WORK),
    ] = None
    array: Annotated[
        int | None,
        typer.Option(help="So many copies, told apart by TRAINMASTER_ARRAY_INDEX.", rich_help_panel=_WORK),
    ] = None
    deadline: Annotated[
        str | None,
        typer.Option(metavar="2h|DATE", help="90m, 2h, 3d, or 2026-11-17T18:00.", rich_help_panel=_WHEN),
    ] = None
    soft: Annotated[bool, typer.Option("--soft", help="The deadline is a wish.", rich_help_panel=_WHEN)] = False
    after: Annotated[
        list[str] | None,
        typer.Option(metavar="JOB", help="Start when this job has finished; repeatable.", rich_help_panel=_WHEN),
    ] = None
    weight: Annotated[float | None, typer.Option(help="Share against others; default 1.", rich_help_panel=_WHEN)] = None
    priority: Annotated[int | None, typer.Option(help="Higher goes first; default 0.", rich_help_panel=_WHEN)] = None
    entity: Annotated[str | None, typer.Option(help="Team it counts for.", rich_help_panel=_WHEN)] = None
    budget: Annotated[float | None, typer.Option(help="Most it may cost.", rich_help_panel=_WHEN)] = None
    max_attempts: Annotated[
        int | None, typer.Option(help="Starts before it counts as failed; default 3.", rich_help_panel=_WHEN)
    ] = None
    no_preempt: Annotated[
        bool, typer.Option("--no-preempt", help="Never stop it in favour of others.", rich_help_panel=_WHEN)
    ] = False
    bare_env: Annotated[
        bool, typer.Option("--bare-env", help="Do not pass on PATH and the like from here.", rich_help_panel=_WORK)
    ] = False


def with_job_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command's parameter `options` spread out into one option each, as typer wants to see them."""
    hints = get_type_hints(JobOptions, include_extras=True)
    own = get_type_hints(command, include_extras=True)
    names = [item.name for item in fields(JobOptions)]
    parameters = [
        inspect.Parameter(item.name, inspect.Parameter.KEYWORD_ONLY, default=item.default, annotation=hints[item.name])
        for item in fields(JobOptions)
    ]
    parameters += [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=own[parameter.name])
        for parameter in inspect.signature(command).parameters.values()
        if parameter.name != "options"
    ]

    @wraps(command)
    def spread(**values: Any) -> None:
        options = JobOptions(**{name: values.pop(name) for name in names})
        command(options, **values)

    spread.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    spread.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    del spread.__wrapped__
    return spread
