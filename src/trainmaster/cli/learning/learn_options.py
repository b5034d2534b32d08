"""What the commands of `trainmaster learn` share: options by name, the recorded command, the run, the need for
PyTorch."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainmaster.cli.shared.output import progress_bar
from trainmaster.model.errors import InputError

if TYPE_CHECKING:
    from trainmaster.learn.training_run import Row, TrainingRun

Out = Annotated[Path, typer.Option(help="Folder for weights, checkpoint and metrics.")]
Resume = Annotated[bool, typer.Option(help="Continue the run in this folder.")]
Seed = Annotated[int, typer.Option(min=0, help="Same seed, same weights.")]
TraceFiles = Annotated[
    list[Path] | None, typer.Option("--trace", help="Where jobs come from; repeat it. None: made-up jobs.")
]


def need_torch() -> None:
    if find_spec("torch") is None:
        raise InputError("training needs PyTorch", "the extra 'learn'", "pip install 'trainmaster[learn]'")


def train(trainer: TrainingRun, out: Path, resume: bool, command: str, digits: int) -> None:
    """Run it to its end, with weights, checkpoint and metrics in its folder. Figures have so many `digits`."""
    from trainmaster.learn.metrics import MetricsWriter
    from trainmaster.learn.run_folder import WEIGHTS, writing

    if resume:
        trainer.resume(out)
    with writing(out):
        out.mkdir(exist_ok=True)
        metrics = MetricsWriter(out, trainer.columns, trainer.iteration if resume else None)
    with progress_bar("training", max(trainer.options.iterations, 1)) as advance:

        def report(row: Row) -> None:
            with writing(out):
                metrics.write(row)
            score = row.get(f"validation_{trainer.unit}")
            note = None if score is None else f"validation {score:,.{digits}f} {trainer.unit}"
            advance(int(row["iteration"]), text=note)

        trainer.run(report, lambda: trainer.save(out, command))
    if resume:
        trainer.save(out, command)  # a run that had got so far already is told by this command, too
    metrics.close()
    best = f"{trainer.best_score:,.{digits}f} {trainer.unit}"
    typer.echo(f"{out / WEIGHTS}: validation {best} mean completion time")


def recorded_command(left_out: Sequence[str]) -> str:
    return shlex.join(["trainmaster", *documented(sys.argv[1:], left_out)])


def documented(arguments: Sequence[str], left_out: Sequence[str]) -> list[str]:
    """The command as recorded in the weights, without options that name files, which differ from machine to machine,
    and without `--resume`, which changes nothing about them."""
    kept, skip = [], False
    for argument in arguments:
        if skip or argument.startswith(tuple(f"{name}=" for name in left_out)):
            skip = False
        elif argument in left_out:
            skip = True
        elif argument != "--resume":
            kept.append(argument)
    return kept


def typed_options(pairs: Sequence[str], known: Mapping[str, Any], own: Sequence[str]) -> dict[str, Any]:
    """`name=value` pairs, each of the type that its option has. `own`: those that the command has an option for."""
    chosen: dict[str, Any] = {}
    known = {name: value for name, value in known.items() if name not in own}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if name in own:
            raise InputError(f"unknown training option '{pair}'", f"--{name}", column="--set")
        if not equals or name not in known:
            raise InputError(f"no training option '{pair}'", ", ".join(sorted(known)), column="--set")
        if isinstance(known[name], str):
            chosen[name] = value
            continue
        try:
            parsed = json.loads(value)
        except json.JSONDecodeError:
            parsed = None
        if isinstance(known[name], float) and isinstance(parsed, int) and not isinstance(parsed, bool):
            parsed = float(parsed)
        if type(parsed) is not type(known[name]):
            raise InputError(f"'{name}' is '{value}'", f"something like {json.dumps(known[name])}", column="--set")
        chosen[name] = parsed
    return chosen
