"""Options of the simulated world that `simulate` and `compare` have in common."""

from __future__ import annotations

from typing import Annotated

import typer

Throughputs = Annotated[str | None, typer.Option(help="Throughput table (Gavel's JSON or our own), or 'builtin'.")]
Round = Annotated[
    float | None,
    typer.Option(help="Seconds between decisions; default: when something happens (policies may differ)."),
]
RestartCost = Annotated[float, typer.Option(help="Seconds lost when a job is started again.")]
ResizeCost = Annotated[float, typer.Option(help="Seconds lost when a running job is resized.")]
SpreadPenalty = Annotated[float, typer.Option(help="Speed lost on several nodes where no figure is known.")]
Interference = Annotated[float, typer.Option(help="Slow-down per unit of use by others on the node.")]
Noise = Annotated[float, typer.Option(help="Standard deviation of log speed between runs.")]
CheckpointPeriod = Annotated[float, typer.Option(help="Seconds between checkpoints (0: nothing lost).")]
NodeMtbf = Annotated[float, typer.Option(help="Mean seconds between failures of a node (0: none).")]
Losses = Annotated[float, typer.Option(help="Seconds between reports of a job's loss (0: never), for optimus:fitted.")]
LossNoise = Annotated[float, typer.Option(help="Relative standard deviation of a reported loss.")]
Unfit = Annotated[str, typer.Option(help="Jobs that can never fit: error | reject")]
