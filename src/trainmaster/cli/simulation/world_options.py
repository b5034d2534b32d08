"""Options of the simulated world that `simulate` and `compare` have in common."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import Signature, signature
from typing import Annotated, Any

import typer


def world_options(
    throughputs: Annotated[
        str | None, typer.Option(help="Throughput table (Gavel's JSON or our own), or 'builtin'.")
    ] = None,
    round: Annotated[  # noqa: A002
        float | None,
        typer.Option(help="Seconds between decisions; default: when something happens (policies may differ)."),
    ] = None,
    restart_cost: Annotated[float, typer.Option(help="Seconds lost when a job is started again.")] = 0.0,
    resize_cost: Annotated[float, typer.Option(help="Seconds lost when a running job is resized.")] = 0.0,
    spread_penalty: Annotated[float, typer.Option(help="Speed lost on several nodes where no figure is known.")] = 0.0,
    interference: Annotated[float, typer.Option(help="Slow-down per unit of use by others on the node.")] = 0.0,
    noise: Annotated[float, typer.Option(help="Standard deviation of log speed between runs.")] = 0.0,
    checkpoint_period: Annotated[float, typer.Option(help="Seconds between checkpoints (0: nothing lost).")] = 0.0,
    node_mtbf: Annotated[float, typer.Option(help="Mean seconds between failures of a node (0: none).")] = 0.0,
    losses: Annotated[
        float, typer.Option(help="Seconds between reports of a job's loss (0: never), for optimus:fitted.")
    ] = 0.0,
    loss_noise: Annotated[float, typer.Option(help="Relative standard deviation of a reported loss.")] = 0.0,
    unfit: Annotated[str, typer.Option(help="Jobs that can never fit: error | reject")] = "error",
) -> dict[str, Any]:
    """What they say, as fields of an `Experiment`."""
    return {
        "throughputs": throughputs,
        "round_s": round,
        "restart_cost_s": restart_cost,
        "resize_cost_s": resize_cost,
        "spread_penalty": spread_penalty,
        "interference": interference,
        "noise": noise,
        "checkpoint_period_s": checkpoint_period,
        "node_mtbf_s": node_mtbf,
        "losses_s": losses,
        "loss_noise": loss_noise,
        "unfit": unfit,
    }


def with_world_options(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command these options, where it has a parameter `world`: what `world_options` makes of them."""
    shared = signature(world_options, eval_str=True).parameters

    @wraps(command)
    def wrapped(**values: Any) -> None:
        world = world_options(**{name: values.pop(name) for name in shared})
        command(**values, world=world)

    parameters: list[Any] = []
    for parameter in signature(command, eval_str=True).parameters.values():
        parameters += shared.values() if parameter.name == "world" else [parameter]
    wrapped.__signature__ = Signature([p.replace(kind=p.KEYWORD_ONLY) for p in parameters])  # type: ignore[attr-defined]
    return wrapped
