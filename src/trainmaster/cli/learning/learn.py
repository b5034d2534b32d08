"""`trainmaster learn`: train DL2, and compare what was learned with the baselines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from trainmaster.cli.learning.learn_das import das, das_evaluate
from trainmaster.cli.learning.learn_options import Out, Resume, Seed, need_torch, recorded_command, train, typed_options
from trainmaster.cli.shared.output import check_output, check_writable, one_message, progress_bar, to_json, write_text
from trainmaster.cli.shared.typer_options import Output
from trainmaster.engine.persistence import readable_ends
from trainmaster.learn.dl2.demonstrations import check_teacher
from trainmaster.learn.dl2.evaluate import BASELINES, LEARNED, Scores, evaluate, sampled_from, scenario
from trainmaster.learn.dl2.options import TrainOptions, paper
from trainmaster.learn.dl2.recorded_decisions import COMMANDS, HISTORY, Lived, lived, lived_from_rows
from trainmaster.learn.sizing.job_types import ANALYTIC, DATA_PARALLEL, LINEAR, MEASURED
from trainmaster.learn.sizing.trace import SizingSpec, draw_trace
from trainmaster.model.errors import InputError
from trainmaster.policies.dl2.weights import shared_weights
from trainmaster.report.statistics import mean_interval, paired_ratio
from trainmaster.service.control.experience import DOCUMENT, in_order, read_rows
from trainmaster.service.local.home import Home
from trainmaster.service.online_learning import REMEMBERED
from trainmaster.stores.sqlite import read_history
from trainmaster.traces import load

learn_app = typer.Typer(help="Train policies that learn, and compare them with the baselines.", no_args_is_help=True)
learn_app.command("das")(das)
learn_app.command("das-evaluate")(das_evaluate)

_FIELDS = {"servers": "servers", "gpus": "gpus_per_server", "cpus": "cpus_per_server", "slot": "slot_s", "jobs": "jobs",
           "arrivals": "arrivals_per_slot_max", "noise": "profile_noise", "variation": "speed_variation",
           "load": "arrival_scale", "speeds": "kinds"}  # fmt: skip
_SPEEDS = {"measured": MEASURED, "analytic": ANALYTIC, "data-parallel": DATA_PARALLEL, "linear": LINEAR}


@learn_app.command()
@one_message
def dl2(
    out: Out,
    teacher: Annotated[
        str, typer.Option(help="Policy to learn from first, 'rule', or 'history:HOME' of a service, or of a FILE.")
    ] = "drf",
    iterations: Annotated[int, typer.Option(min=0, help="Of reinforcement; 0: only learn from the teacher.")] = 100,
    cluster: Annotated[
        list[str] | None,
        typer.Option(help="servers=48,jobs=60,arrivals=3,speeds=measured; repeat it and all feed one learner."),
    ] = None,
    recipe: Annotated[str, typer.Option(help="ours, or paper: the published recipe.")] = "ours",
    option: Annotated[
        list[str] | None, typer.Option("--set", help="Any training option, such as critic=false; repeatable.")
    ] = None,
    processes: Annotated[int, typer.Option(min=1, help="That play episodes; the result is the same.")] = 1,
    resume: Resume = False,
    start: Annotated[
        Path | None, typer.Option(help="Weights of an earlier run to go on from, instead of imitating a teacher.")
    ] = None,
    seed: Seed = 0,
) -> None:
    """Train DL2: imitate a teacher, then improve by reinforcement. Writes weights.npz for `dl2:weights=FILE`."""
    need_torch()
    import torch

    from trainmaster.learn.dl2.trainer import Trainer
    from trainmaster.learn.parallel import collectors
    from trainmaster.learn.run_folder import check_folder

    if recipe not in ("ours", "paper"):
        raise InputError(f"unknown recipe '{recipe}'", "ours or paper", column="--recipe")
    base = TrainOptions() if recipe == "ours" else paper()
    set_by_name = typed_options(option or [], TrainOptions().to_json(), ("teacher", "iterations", "seed"))
    clusters = [_cluster(text) for text in cluster or [""]]
    recorded = None
    if teacher.startswith(f"{HISTORY}:"):
        recorded = _recorded(Path(teacher.partition(":")[2]), clusters)
        teacher, clusters = HISTORY, [recorded.trace.spec]
    else:
        check_teacher(teacher, draw_trace(clusters[0], 0).job_specs())
    options = replace(base, **set_by_name, teacher=teacher, iterations=iterations, seed=seed)
    begun = None
    if start is not None:
        begun = shared_weights(start)
        options = replace(options, network="shared", warm_up=False, hidden=len(begun["u"]), context=len(begun["v"]))
    check_folder(out)
    torch.set_num_threads(1)  # sums in one order whatever the machine, and small matrices gain nothing
    paths = ("--out", "--processes", "--start", *(("--teacher",) if recorded else ()))
    command = recorded_command(paths) + ("" if start is None else f" --start {start.name}")
    with collectors(processes) as collector:
        trainer = Trainer(options, clusters, collector, recorded)
        if begun is not None:
            trainer.start_from(begun)
        train(trainer, out, resume, command, digits=0)


@learn_app.command("evaluate")
@one_message
def evaluate_command(
    policies: Annotated[str, typer.Option(help="Joined by ';'; the first is what the others are compared with.")] = "",
    weights: Annotated[Path | None, typer.Option(help="Weights for dl2; default: those that are shipped.")] = None,
    scenario_name: Annotated[str, typer.Option("--scenario", help="small, large, unseen-kinds...")] = "small",
    trace: Annotated[Path | None, typer.Option(help="Sample lengths and gaps of a real trace instead.")] = None,
    traces: Annotated[int, typer.Option(min=1, help="Test traces; none was used to train or to choose.")] = 50,
    output: Output = "table",
    json_file: Annotated[Path | None, typer.Option("--json", help="Every figure, by trace.")] = None,
) -> None:
    """Mean completion times on unseen traces, in the engine, with 95 % intervals paired by trace."""
    check_output(output)
    check_writable(json_file)
    learned = LEARNED if weights is None else f"{LEARNED},weights={weights}"
    named = list(dict.fromkeys(name.strip() for name in policies.split(";") if name.strip()))
    if named and weights is not None:
        raise InputError(
            "--weights beside --policies", "one of them", f"Name them in the policy: {learned}", column="--weights"
        )
    names = named or ["drf", learned, *BASELINES[1:]]
    spec, label = scenario(scenario_name), scenario_name
    if trace is not None:
        spec, label = sampled_from(load(trace), spec), f"{trace.name} on {scenario_name}"
    with progress_bar("evaluating", traces) as advance:
        scores = evaluate(label, spec, names, traces, advance)
    summary = summarise(scores)
    if json_file is not None:
        by_trace = {name: list(values) for name, values in scores.completion_s.items()}
        write_text(json_file, to_json({**summary, "by_trace_s": by_trace}))
    if output == "json":
        typer.echo(to_json(summary), nl=False)
    else:
        _print(summary)


def summarise(scores: Scores) -> dict[str, Any]:
    """Means with intervals, and how far each policy is below the first, on the same traces."""
    names = list(scores.completion_s)
    base = scores.completion_s[names[0]]
    rows = []
    for name in names:
        values = scores.completion_s[name]
        mean = mean_interval(values)
        # Of the means over all traces, as the paper counts; the interval is that of the paired ratios.
        ratio = paired_ratio(values, base)
        assert ratio is not None
        rows.append(
            {
                "policy": name,
                "mean_s": mean.mean,
                "low_s": mean.low,
                "high_s": mean.high,
                "below": 1.0 - sum(values) / sum(base),
                "below_paired": 1.0 - ratio.mean,
                "below_low": None if ratio.high is None else 1.0 - ratio.high,
                "below_high": None if ratio.low is None else 1.0 - ratio.low,
            }
        )
    return {"scenario": scores.scenario, "traces": len(base), "baseline": names[0], "policies": rows}


def _print(summary: dict[str, Any]) -> None:
    table = Table(title=f"{summary['scenario']}: {summary['traces']} traces", title_justify="left")
    table.add_column("policy")
    for header in ("mean completion, s", "95 %", f"under {summary['baseline']}", "paired, 95 %"):
        table.add_column(header, justify="right")
    for row in summary["policies"]:
        ends = "" if row["low_s"] is None else f"{row['low_s']:,.0f} .. {row['high_s']:,.0f}"
        paired = "" if row["below_low"] is None else f"{row['below_low']:.1%} .. {row['below_high']:.1%}"
        table.add_row(row["policy"], f"{row['mean_s']:,.0f}", ends, f"{row['below']:.1%}", paired)
    Console().print(table)


def _recorded(home: Path, clusters: list[SizingSpec]) -> Lived:
    """What the service of this home folder decided, which may be running; or what `trainmaster experience` wrote."""
    if home.is_file() and len(clusters) == 1:
        return lived_from_rows(read_rows(home), clusters[0])
    database = Home(home).database
    if not database.is_file():
        raise InputError(
            f"{database.name} not found", "the home folder of a service", "Give the folder of `up --home`.", file=home
        )
    if len(clusters) != 1:
        raise InputError(f"{len(clusters)} clusters with a history", "one: the service's machines", column="--cluster")
    found = read_history(database, REMEMBERED, COMMANDS, DOCUMENT)
    return lived(readable_ends(found.ended), found.log, clusters[0], in_order(found.documents))


def _cluster(text: str) -> SizingSpec:
    changes: dict[str, Any] = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = pair.partition("=")
        if not equals or name not in _FIELDS:
            raise InputError(
                f"invalid cluster field '{pair}'", ", ".join(f"{key}=..." for key in _FIELDS), column="--cluster"
            )
        if name == "speeds":
            if value not in _SPEEDS:
                raise InputError(f"unknown speeds '{value}'", " or ".join(_SPEEDS), column="--cluster")
            changes["kinds"] = _SPEEDS[value]
            if _SPEEDS[value] in (DATA_PARALLEL, LINEAR):
                changes["servers_max"] = 0
            continue
        try:
            whole = name in ("servers", "gpus", "cpus", "jobs", "arrivals")
            changes[_FIELDS[name]] = int(value) if whole else float(value)
        except ValueError:
            raise InputError(f"invalid value '{value}' of '{name}'", "a number", column="--cluster") from None
    return SizingSpec(**changes)
