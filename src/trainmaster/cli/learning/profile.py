"""`trainmaster profile`: measure a training program at several sizes and write a catalogue entry."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from trainmaster.cli.learning.profile_runs import Measurement, measure
from trainmaster.cli.shared.output import check_output, one_message, progress_bar
from trainmaster.cli.shared.typer_options import Output
from trainmaster.client.client import Client
from trainmaster.estimate.catalogue import Entry, TableCatalogue, with_batch_size
from trainmaster.estimate.catalogue_files import read_catalogue, write_catalogue
from trainmaster.model.errors import InputError


@one_message
def profile(
    command: Annotated[list[str], typer.Argument(help="The program and its arguments, after --.")],
    model: Annotated[str | None, typer.Option(help="Name in the catalogue; default: the script's name.")] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Recorded with the model.")] = None,
    sizes: Annotated[str | None, typer.Option(help="Numbers of workers, e.g. 1,2,4; default: what fits here.")] = None,
    servers: Annotated[int, typer.Option(min=0, help="Parameter servers beside the workers.")] = 0,
    seconds: Annotated[float, typer.Option(min=0.5, help="Measured at each size, after warming up.")] = 10.0,
    start_seconds: Annotated[float, typer.Option(min=1.0, help="How long the program may take to begin.")] = 120.0,
    out: Annotated[Path, typer.Option(help="Catalogue (CSV) to write, or to add to.")] = Path("throughputs.csv"),
    to_service: Annotated[
        bool, typer.Option("--to-service", help="Also tell the service, for jobs of this --model and --batch-size.")
    ] = False,
    output: Output = "table",
) -> None:
    """Measure a program's speed at several sizes on this machine.

    The entry that it writes serves `simulate --throughputs` and estimates.
    """
    check_output(output)
    if to_service:
        _service_answers(model)
    accelerator, devices = devices_here()
    wanted = _parse_sizes(sizes) if sizes is not None else _fitting(devices)
    name = with_batch_size(model or _script_name(command), batch_size)
    known = _check(command, out)
    found: list[Measurement] = []
    with progress_bar(f"profile {name}", 100 * len(wanted)) as advance_to:
        for number, workers in enumerate(wanted):
            label = f"{name}: {workers} worker{'s' if workers > 1 else ''}"
            advance_to(100 * number, text=label)
            found.append(
                measure(
                    command,
                    workers,
                    servers=servers,
                    seconds=seconds,
                    start_s=start_seconds,
                    accelerator=accelerator,
                    gpus=accelerator != "cpu",
                    tick=lambda share, number=number, label=label: advance_to(int(100 * (number + share)), text=label),
                )
            )
    entries = [Entry(name, one.workers, accelerator, False, one.steps_per_s) for one in found]
    _write(TableCatalogue(out.stem, [*known, *entries]), out)
    if to_service:
        _tell(model or "", batch_size, accelerator, servers, found)
    if output == "json":
        rows = [
            {"gpus": m.workers, "steps_per_s": m.steps_per_s, "steps": m.steps, "seconds": m.seconds} for m in found
        ]
        typer.echo(json.dumps({"model": name, "accelerator": accelerator, "file": str(out), "measurements": rows}))
    else:
        _print(name, accelerator, devices, found, out)


def _service_answers(model: str | None) -> None:
    """What keeps the result from being of use is told before minutes are spent."""
    if model is None:
        raise InputError("no model", "the name that jobs give with --model", "Add --model NAME.", column="--to-service")
    with Client.find(None) as client:
        client.get("/service")


def _tell(model: str, batch_size: int | None, accelerator: str, servers: int, found: list[Measurement]) -> None:
    measured = [
        {
            "accelerator": accelerator,
            "workers": one.workers,
            "servers": servers,
            "steps_per_s": one.steps_per_s,
            "seconds": max(one.seconds, 1e-3),
        }
        for one in found
    ]
    gpus = {} if accelerator != "cpu" else {"gpus_per_worker": 0}
    with Client.find(None) as client:
        client.post("/speeds", {"model": model, "batch_size": batch_size, "measured": measured, **gpus}, again=1)


def devices_here() -> tuple[str, int]:
    """(type of accelerator, how many): GPUs if the machine has any, else its cores."""
    try:
        from trainmaster.backends.local.devices import describe  # pyright: ignore[reportMissingImports]
        from trainmaster.estimate.accelerators import find_accelerator
    except ImportError:
        return "cpu", len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    cluster, _, _ = describe(None, find_accelerator)
    node = cluster.nodes[0]
    return node.accelerator, node.gpus


def _fitting(devices: int) -> list[int]:
    """1, 2, 4 ... as far as there are devices, and all of them."""
    powers = [2**n for n in range(devices.bit_length()) if 2**n <= devices]
    return sorted({*powers, devices})


def _parse_sizes(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and 1 <= int(part[:6]) <= 1024 for part in parts):
        raise InputError(f"invalid sizes {text!r}", "whole numbers of workers such as 1,2,4", column="--sizes")
    return sorted({int(part) for part in parts})


def _script_name(command: list[str]) -> str:
    script = next((Path(part).stem for part in command[1:] if part.endswith(".py")), Path(command[0]).stem)
    if not script:
        raise InputError("the program has no name", "a name for the catalogue", "Give one with --model.")
    return script


def _check(command: list[str], out: Path) -> tuple[Entry, ...]:
    """Everything that can be wrong is found before minutes are spent; gives the rows that are there already."""
    if command[0] != "python" and shutil.which(command[0]) is None:
        raise InputError(f"program {command[0]!r} not found", "a command that can be run", "Check the path.")
    for part in command[1:]:
        if part.endswith(".py") and not Path(part).exists():
            raise InputError("no such script", "a Python file", "Check the path.", file=part)
    if not out.parent.is_dir():
        raise InputError(f"folder '{out.parent}' does not exist", "an existing folder", "Create it first.", file=out)
    if not out.exists():
        return ()
    table = read_catalogue(out)
    if table.has_pairs or out.suffix == ".json":
        raise InputError(
            "the table holds pairs, or is JSON", "our CSV of jobs that run alone", "Give another --out.", file=out
        )
    return table.entries


def _write(table: TableCatalogue, out: Path) -> None:
    temporary = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        write_catalogue(table, temporary)
        temporary.replace(out)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise InputError(f"cannot be written ({error.strerror})", "a writable file", "", file=out) from None


def _print(name: str, accelerator: str, devices: int, found: list[Measurement], out: Path) -> None:
    table = Table(title=f"{name} on {accelerator}", title_justify="left")
    for header in ("workers", "steps/s", "speed-up", "efficiency", "measured"):
        table.add_column(header, justify="right")
    base = found[0].steps_per_s / found[0].workers
    for one in found:
        gain = one.steps_per_s / base
        crowded = " (more workers than devices)" if one.workers > devices else ""
        table.add_row(
            str(one.workers),
            f"{one.steps_per_s:.2f}",
            f"{gain:.2f}",
            f"{gain / one.workers:.0%}",
            f"{one.steps:g} steps in {one.seconds:.1f} s{crowded}",
        )
    console = Console()
    console.print(table)
    console.print(f"{out}: {len(found)} rows; use it with `trainmaster simulate --throughputs {out}`", soft_wrap=True)
