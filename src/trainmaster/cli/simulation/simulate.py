"""`trainmaster simulate`: one trace, one policy, one cluster; figures as a table or JSON."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from trainmaster.cli.shared.output import check_output, check_writable, one_message, progress_bar, to_json, write_text
from trainmaster.cli.shared.safe_text import as_text
from trainmaster.cli.shared.typer_options import Output
from trainmaster.cli.simulation.world_options import with_world_options
from trainmaster.sim.experiment import Experiment, prepare, run
from trainmaster.traces.jobtrace import write_bytes


@one_message
@with_world_options
def simulate(
    *,
    trace: Annotated[Path, typer.Argument(help="Jobtrace CSV or Parquet (.gz too), or a known public format.")],
    policy: Annotated[str, typer.Option("--policy", "-p", help="Policy, with options: fifo:backfill=true")] = "fifo",
    cluster: Annotated[str, typer.Option("--cluster", "-c", help="v100:2x4,k80:1x8, or a cluster file.")] = "gpu=64",
    placement: Annotated[
        str | None,
        typer.Option(help="pack | spread | first-fit | best-fit | count; default pack, or what the policy says."),
    ] = None,
    world: dict[str, Any],
    estimates: Annotated[
        str, typer.Option(help="Speeds that policies believe: oracle | learned | fingerprint[:FRACTION profiled]")
    ] = "oracle",
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same bytes.")] = 0,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures here.")] = None,
    jobs_file: Annotated[
        Path | None, typer.Option("--jobs", help="Write a row per job here (.csv or .parquet).")
    ] = None,
    output: Output = "table",
) -> None:
    """Run a policy on a trace, event to event, and say how it did."""
    check_output(output)
    check_writable(json_file)
    check_writable(jobs_file)
    wanted = Experiment(
        trace=str(trace), policy=policy, cluster=cluster, placement=placement, seed=seed, estimates=estimates, **world
    )
    prepared = prepare(wanted)
    with progress_bar(f"simulating {policy}", len(prepared.specs)) as progress:
        outcome = run(prepared, progress=progress)
    if jobs_file is not None:
        _write_jobs(outcome.jobs, jobs_file)
    if json_file is not None:
        write_text(json_file, to_json(outcome.summary))
    if output == "json":
        typer.echo(to_json(outcome.summary), nl=False)
    else:
        _print(outcome.summary)


def _write_jobs(jobs: Any, path: Path) -> None:
    if path.suffix == ".parquet":
        data = io.BytesIO()
        jobs.write_parquet(data)
        write_bytes(path, data.getvalue())
    else:
        write_text(path, jobs.write_csv(float_precision=3))


def duration(seconds: float | None) -> str:
    """`1h 12m` and the like."""
    if seconds is None:
        return "-"
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes = seconds / 60
    if minutes < 120:
        return f"{minutes:.1f} min"
    return f"{minutes / 60:.1f} h"


def _print(s: dict[str, Any]) -> None:
    console = Console()
    where = as_text(f"on {s['trace']}, {s['cluster']}, placement {s['placement']}, seed {s['seed']}")
    console.print(f"[bold]{as_text(s['policy'])}[/] {where}")
    if s["generated_fields"]:
        console.print(as_text(f"generated columns in this trace: {', '.join(s['generated_fields'])}"))
    table = Table(show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_row("jobs submitted", f"{s['jobs_submitted']:,}")
    table.add_row(
        "finished / rejected / failed", f"{s['jobs_finished']:,} / {s['jobs_rejected']:,} / {s['jobs_failed']:,}"
    )
    table.add_row("mean completion time", duration(s["average_jct_s"]))
    table.add_row("median / p99", f"{duration(s['median_jct_s'])} / {duration(s['p99_jct_s'])}")
    table.add_row("mean wait", duration(s["average_wait_s"]))
    table.add_row("makespan", duration(s["makespan_s"]))
    table.add_row("utilisation", f"{s['utilization']:.1%}")
    if s["deadline_met_fraction"] is not None:
        table.add_row("deadlines met", f"{s['deadline_met_fraction']:.1%}")
    if s["total_utility"] is not None:
        table.add_row("total utility", f"{s['total_utility']:,.1f}")
    if s["total_cost"] is not None:
        table.add_row("cost", f"$ {s['total_cost']:,.2f}")
    if s["fairness"]["mean"] is not None:
        fairness = s["fairness"]
        table.add_row(
            "finish-time ratio, mean / p99 / max", " / ".join(f"{fairness[k]:.2f}" for k in ("mean", "p99", "max"))
        )
    table.add_row("preemptions / GPU-hours lost", f"{s['preemptions']:,} / {s['lost_gpu_s'] / 3600:,.1f}")
    table.add_row("decisions / CPU time", f"{s['decisions']:,} / {s['cpu_s']:.2f} s")
    console.print(table)
    costs = {k: v for k, v in s["truth"].items() if v and (k != "node_repair_ms" or s["truth"]["node_mtbf_ms"])}
    console.print("world: " + (", ".join(f"{k} {v:g}" for k, v in costs.items()) or "no costs, no noise, no failures"))
    for note in s["notes"]:
        console.print(as_text(f"note: {note}"))
