"""`trainmaster traces`: describe, convert, generate, fit and slice traces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from trainmaster.cli.shared.output import check_output, one_message
from trainmaster.cli.shared.safe_text import as_text
from trainmaster.cli.shared.typer_options import Output
from trainmaster.model.errors import InputError
from trainmaster.traces import JobTrace, load, write
from trainmaster.traces.assign import DEFAULT_MODELS, Assignment, assign
from trainmaster.traces.describe import TOP
from trainmaster.traces.describe import describe as describe_trace
from trainmaster.traces.fit import fit as fit_trace
from trainmaster.traces.fit import from_json, sample, to_json
from trainmaster.traces.generator import GeneratorSpec
from trainmaster.traces.generator import generate as generate_trace
from trainmaster.traces.jobtrace import write_bytes
from trainmaster.traces.slice import scale_load, slice_trace

app = typer.Typer(help="Describe, convert, generate, fit and slice job traces.", no_args_is_help=True)

TracePath = Annotated[Path, typer.Argument(help="Jobtrace file or folder, or a known public format.")]
OutPath = Annotated[Path, typer.Argument(help=".csv, .csv.gz or .parquet; without a suffix: a folder.")]
Plots = Annotated[Path | None, typer.Option("--plot", help="Folder for plots.")]
Seed = Annotated[int, typer.Option(min=0, help="Same seed, same bytes.")]


@app.command()
@one_message
def describe(trace: TracePath, output: Output = "table", plot: Plots = None) -> None:
    """What a trace holds: counts, quantiles, sizes, what is unknown, what was invented."""
    check_output(output)
    loaded = load(trace)
    summary = describe_trace(loaded)
    if plot is not None:
        from trainmaster.report.trace_plots import plot_trace

        summary["plots"] = [str(path) for path in plot_trace(loaded, plot)]
    if output == "json":
        typer.echo(json.dumps(summary, indent=1, sort_keys=True, default=str))
    else:
        _print_summary(summary)


@app.command()
@one_message
def convert(
    trace: TracePath,
    out: OutPath,
    sort: Annotated[bool, typer.Option(help="Put an unordered jobtrace in order.")] = False,
) -> None:
    """Read any known format, write a jobtrace."""
    _write(load(trace, sort=sort), out)


@app.command("slice")
@one_message
def cut(
    trace: TracePath,
    out: OutPath,
    from_day: Annotated[float | None, typer.Option(help="First day of the trace, from 0.")] = None,
    to_day: Annotated[float | None, typer.Option(help="End, exclusive.")] = None,
    first: Annotated[int, typer.Option(min=0, help="Jobs to skip.")] = 0,
    jobs: Annotated[int | None, typer.Option(min=1, help="Jobs to keep.")] = None,
    vc: Annotated[list[str] | None, typer.Option(help="Virtual cluster; repeatable.")] = None,
    min_gpus: Annotated[float | None, typer.Option()] = None,
    max_gpus: Annotated[float | None, typer.Option()] = None,
    load_to: Annotated[float | None, typer.Option("--load", help="Stretch arrivals to this load.")] = None,
    cluster_gpus: Annotated[float | None, typer.Option(help="Size of the cluster --load refers to.")] = None,
) -> None:
    """Cut a trace by time, jobs, virtual cluster or size, and set its load."""
    cut_trace = slice_trace(
        load(trace),
        from_s=None if from_day is None else from_day * 86_400,
        to_s=None if to_day is None else to_day * 86_400,
        first=first,
        jobs=jobs,
        vc=tuple(vc or ()),
        min_gpus=min_gpus,
        max_gpus=max_gpus,
    )
    if load_to is not None:
        if cluster_gpus is None:
            raise InputError("--load without --cluster-gpus", "both", "Say how large the cluster is.")
        cut_trace = scale_load(cut_trace, load_to, cluster_gpus)
    _write(cut_trace, out)


@app.command()
@one_message
def fit(
    trace: TracePath,
    out: Annotated[Path, typer.Argument(help="JSON file for the model.")],
    window_s: Annotated[float, typer.Option(help="Finest time scale that is kept.")] = 3 * 3600.0,
) -> None:
    """Fit the generator to a trace: a small model without any of its jobs, to share instead of it."""
    model = fit_trace(load(trace), window_s=window_s)
    write_bytes(out, to_json(model).encode())
    typer.echo(f"{out}: {len(model.cells)} cells, {model.windows} windows of {model.window_s:g} s")


@app.command()
@one_message
def generate(
    out: OutPath,
    model: Annotated[Path | None, typer.Option(help="Sample a model made by `fit`.")] = None,
    jobs: Annotated[int, typer.Option(min=1)] = 1000,
    arrivals: Annotated[str, typer.Option(help="poisson, bursty or diurnal.")] = "poisson",
    load_to: Annotated[float, typer.Option("--load", help="Offered load on --cluster-gpus.")] = 0.9,
    cluster_gpus: Annotated[int, typer.Option(min=1)] = 64,
    gpu_mix: Annotated[str, typer.Option(help="size:share, joined by commas.")] = "1:0.7,2:0.1,4:0.15,8:0.05",
    median_s: Annotated[float, typer.Option(help="Median duration.")] = 1800.0,
    sigma: Annotated[float, typer.Option(help="Log-normal spread of durations.")] = 1.6,
    max_s: Annotated[float, typer.Option(help="Longest duration.")] = 14 * 86_400.0,
    models: Annotated[bool, typer.Option(help="Assign models.")] = False,
    elastic: Annotated[float, typer.Option(help="Share of elastic jobs.")] = 0.0,
    deadlines: Annotated[float, typer.Option(help="Share of jobs with a deadline.")] = 0.0,
    soft: Annotated[float, typer.Option(help="Share of soft deadlines among them.")] = 0.0,
    utilities: Annotated[float, typer.Option(help="Share of jobs with a sigmoid utility.")] = 0.0,
    name: Annotated[str, typer.Option()] = "generated",
    seed: Seed = 0,
) -> None:
    """A synthetic trace, from parameters or from a fitted model."""
    if model is not None:
        made = sample(from_json(model), seed)
    else:
        spec = GeneratorSpec(
            jobs=jobs,
            arrivals=arrivals,
            load=load_to,
            cluster_gpus=cluster_gpus,
            gpu_mix=_parse_mix(gpu_mix),
            median_s=median_s,
            sigma=sigma,
            duration_max_s=max_s,
            name=name,
        )
        made = generate_trace(spec, seed)
    what = Assignment(DEFAULT_MODELS if models else (), elastic, 2, deadlines, soft, utility_fraction=utilities)
    _write(assign(made, what, seed + 1), out)


def _parse_mix(text: str) -> dict[int, float]:
    try:
        return {int(size): float(share) for size, share in (pair.split(":") for pair in text.split(","))}
    except ValueError:
        raise InputError(
            f"invalid GPU mix {text!r}", "size:share pairs such as 1:0.7,8:0.3", column="--gpu-mix"
        ) from None


def _write(trace: JobTrace, out: Path) -> None:
    write(trace, out)
    note = ""
    if out.suffix and any(getattr(trace, kind) is not None for kind in ("nodes", "quotas", "attempts")):
        note = "; nodes, quotas and attempts need a folder: give a name without a suffix to keep them"
    typer.echo(f"{out}: {len(trace)} jobs{note}")


def _print_summary(summary: dict[str, Any]) -> None:
    console = Console()
    if summary["generated_fields"]:
        console.print(f"[bold]Generated columns:[/] {as_text(', '.join(summary['generated_fields']))}: not measured.")
    facts = Table(title=as_text(f"{summary['name']} ({summary['source']})"), show_header=False, title_justify="left")
    facts.add_column()
    facts.add_column(justify="right")
    facts.add_row("jobs", f"{summary['jobs']:,}")
    facts.add_row("span", f"{summary['span_s'] / 86_400:.1f} days")
    if summary["jobs_without_duration"]:
        facts.add_row("of unknown duration (--throughputs tells it)", f"{summary['jobs_without_duration']:,}")
    if summary["gpu_hours"] is not None:
        facts.add_row("GPU-hours", f"{summary['gpu_hours']:,.0f}")
    if summary["mean_gpus_in_demand"] is not None:
        facts.add_row("mean GPUs in demand", f"{summary['mean_gpus_in_demand']:,.1f}")
    for key, label in (("duration_s", "duration"), ("interarrival_s", "gap between arrivals")):
        spread = summary[key]
        if spread["mean"] is not None:
            facts.add_row(
                f"{label}: mean / median / p99",
                " / ".join(f"{spread[at]:,.0f} s" for at in ("mean", "p50", "p99")),
            )
    if summary["interarrival_s"]["cv"] is not None:
        facts.add_row("burstiness (CV of gaps; Poisson is 1)", f"{summary['interarrival_s']['cv']:.2f}")
    facts.add_row("with a deadline / elastic", f"{summary['deadlines']:,} / {summary['elastic']:,}")
    if summary["nodes"] is not None:
        facts.add_row("nodes / their GPUs", f"{summary['nodes']:,} / {summary['node_gpus']:,.0f}")
    console.print(facts)
    sizes = Table(title="Sizes", title_justify="left")
    for header in ("GPUs", "jobs", "share of jobs", "share of GPU-hours"):
        sizes.add_column(header, justify="right")
    for row in summary["sizes"]:
        share = "-" if row["gpu_hour_share"] is None else f"{row['gpu_hour_share']:.1%}"
        sizes.add_row(row["gpus"], f"{row['jobs']:,}", f"{row['job_share']:.1%}", share)
    console.print(sizes)
    for key in ("status", "top_vc", "top_model"):
        if summary[key]:
            most = f" (the {TOP} largest)" if key.startswith("top_") and len(summary[key]) == TOP else ""
            values = ", ".join(f"{r['value']} {r['jobs']:,}" for r in summary[key])
            console.print(as_text(f"{key.removeprefix('top_')}{most}: {values}"))
    for reason, count in summary["meta"].get("left_out", {}).items():
        console.print(as_text(f"left out: {count:,} {reason}"))
    for path in summary.get("plots", ()):
        console.print(as_text(f"plot: {path}"), soft_wrap=True)


if __name__ == "__main__":
    app()
