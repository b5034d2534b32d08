"""`trainmaster compare`: many policies, traces, clusters, loads, seeds; a table, Parquet, an HTML page."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from trainmaster.cli.shared.output import check_output, one_message, progress_bar, to_json
from trainmaster.cli.shared.typer_options import Output
from trainmaster.cli.simulation.world_options import with_world_options
from trainmaster.model.errors import InputError, TrainmasterError
from trainmaster.sim.comparison import Cell, CellFault, Comparison, execute, plan, split_policies
from trainmaster.sim.comparison_store import ComparisonStore, read_comparison
from trainmaster.sim.experiment import Experiment


@one_message
@with_world_options
def compare(
    *,
    traces: Annotated[list[str], typer.Argument(metavar="TRACE...", help="Traces; 'demo' is the bundled one.")],
    policies: Annotated[
        list[str],
        typer.Option("--policies", "-p", help="fifo,las:quantum_s=300,srtf; repeatable. Ratios are to the first."),
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder of the result; run again to go on where it stopped.")],
    cluster: Annotated[
        list[str] | None,
        typer.Option("--cluster", "-c", help="v100:2x4,k80:1x8, or a cluster file; repeatable."),
    ] = None,
    loads: Annotated[str, typer.Option(help="How many times as densely jobs arrive: 0.7,1.0")] = "1",
    seeds: Annotated[int, typer.Option(help="Variants of the workload and the world's chance: 0 to N-1.")] = 3,
    resample: Annotated[
        str,
        typer.Option(help="How seeds above 0 vary a trace: windows | jobs | none (seed 0 is the trace itself)."),
    ] = "windows",
    placement: Annotated[str, typer.Option(help="pack | spread | first-fit | best-fit | count")] = "pack",
    world: dict[str, Any],
    processes: Annotated[int | None, typer.Option(min=1, help="Simulations at a time; default: the cores.")] = None,
    figures: Annotated[
        bool, typer.Option("--figures", help="Also write every figure as a file to OUT/figures.")
    ] = False,
    output: Output = "table",
) -> None:
    """Run every policy on every trace, cluster, load and seed, and say who wins by how much."""
    check_output(output)
    base = Experiment(trace="", policy="", cluster="", placement=placement, resample=resample, **world)
    wanted = Comparison(
        tuple(traces), tuple(cluster or ("gpu=64",)), _loads(loads), split_policies(policies), seeds, base
    )
    settings, cells = plan(wanted)
    store = ComparisonStore(out)
    store.open(settings)
    with progress_bar("comparing", len(cells)) as progress:

        def done(finished: int, total: int, cell: Cell) -> None:
            this = cell.experiment
            progress(finished, total, text=f"{this.policy}, {cell.trace_label}, seed {this.seed}")

        faults = execute(store, cells, processes or len(os.sched_getaffinity(0)), done)
    if faults:
        raise TrainmasterError(_told(faults, len(cells)))
    store.assemble([cell.key for cell in cells], settings)
    finish(out, figures, output)


def finish(out: Path, figures: bool, output: str) -> None:
    from trainmaster.report.comparison import write_report
    from trainmaster.report.comparison_table import comparison_rows, print_comparison

    tables = read_comparison(out)
    page = write_report(tables, out, figures=figures)
    if output == "json":
        typer.echo(to_json({"out": str(out), "report": str(page), "groups": comparison_rows(tables)}), nl=False)
    else:
        print_comparison(tables, Console())
        Console(soft_wrap=True).print(f"report: {page}", markup=False, highlight=False)


def _loads(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise InputError(f"invalid list of loads '{text}'", "numbers such as 0.7,1.0", column="--loads") from None


def _told(faults: list[CellFault], total: int) -> str:
    lines = []
    for fault in faults:
        this = fault.cell.experiment
        name = f"{fault.cell.trace_label}, {this.policy}, load {this.load:g}, seed {this.seed}"
        lines.append(f"{name}: {fault.message}")
    shown = "\n  ".join(lines[:10])
    return f"{len(faults)} of {total} simulations failed; the others are stored.\n  {shown}"
