"""`trainmaster learn das`: train DAS; `learn das-evaluate`: the table of its rivals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from trainmaster.cli.learning.learn_options import (
    Out,
    Resume,
    Seed,
    TraceFiles,
    need_torch,
    recorded_command,
    train,
    typed_options,
)
from trainmaster.cli.shared.output import check_output, check_writable, one_message, to_json, write_text
from trainmaster.cli.shared.typer_options import Output
from trainmaster.learn.das.evaluate import BASELINES, evaluate
from trainmaster.learn.das.jobs import pools_of
from trainmaster.learn.das.options import DasOptions
from trainmaster.model.errors import InputError
from trainmaster.policies.das.weights import SHIPPED, load
from trainmaster.report.baseline_table import table


@one_message
def das(
    out: Out,
    trace: TraceFiles = None,
    variant: Annotated[str, typer.Option(help="da, da+mc, da+rwgp or da+mc+rwgp.")] = "da+mc+rwgp",
    iterations: Annotated[int, typer.Option(min=0, help="Of MAPPO; 0: only imitate the rule.")] = 80,
    option: Annotated[
        list[str] | None, typer.Option("--set", help="Any training option, such as heads=8; repeatable.")
    ] = None,
    resume: Resume = False,
    seed: Seed = 0,
) -> None:
    """Train DAS: imitate a rule, then improve both agents by MAPPO. Writes weights.npz for `das:weights=FILE`."""
    need_torch()
    import torch

    from trainmaster.learn.das.trainer import Trainer
    from trainmaster.learn.run_folder import check_folder

    chosen = typed_options(option or [], DasOptions().to_json(), ("variant", "iterations", "seed"))
    options = replace(DasOptions(), **chosen, variant=variant, iterations=iterations, seed=seed)
    check_folder(out)
    pools = pools_of(trace or [])
    torch.set_num_threads(1)  # sums in one order whatever the machine, and small matrices gain nothing
    train(Trainer(options, pools), out, resume, recorded_command(("--out", "--trace")), digits=1)


@one_message
def das_evaluate(
    rivals: Annotated[str, typer.Option(help="Joined by ';'; the first is what the others are compared with.")] = "",
    weights: Annotated[Path, typer.Option(help="Weights of das; default: those that are shipped.")] = SHIPPED,
    trace: TraceFiles = None,
    traces: Annotated[int, typer.Option(min=1, help="Test streams by site; none was used to train or to choose.")] = 30,
    output: Output = "table",
    json_file: Annotated[Path | None, typer.Option("--json", help="Every figure, by stream.")] = None,
) -> None:
    """Completion time (minutes) and fee (dollars) of DAS and its rivals on unseen streams, with 95 % intervals."""
    check_output(output)
    check_writable(json_file)
    names = [name.strip() for name in rivals.split(";") if name.strip()] or ["DRF-LoadBalance", *BASELINES]
    unknown = [name for name in names if name not in BASELINES]
    if unknown:
        raise InputError(f"unknown rival '{unknown[0]}'", "one of " + "; ".join(BASELINES), column="--rivals")
    load(weights)  # refuse it before the rivals have played for minutes
    chosen = {name: name for name in names} | {"DAS": str(weights)}
    scores = evaluate(pools_of(trace or []), chosen, traces)
    rows = table(scores, names[0])
    if json_file is not None:
        write_text(json_file, to_json({"rows": rows, "by_stream": scores}))
    if output == "json":
        typer.echo(to_json({"rows": rows}), nl=False)
        return
    shown = Table(title=f"{traces} streams by site", title_justify="left")
    shown.add_column("rival")
    for header in ("small", "fee", "medium", "fee", "large", "fee", "average", "fee", f"under {names[0]}"):
        shown.add_column(header, justify="right")
    for row in rows:
        cells = [
            f"{row[f'{site}_{unit}']:.1f}"
            for site in ("small", "medium", "large", "average")
            for unit in ("jct_min", "fee")
        ]
        half = row["below_jct_min_half"]
        shown.add_row(row["rival"], *cells, f"{row['below_jct_min']:.1%}" + ("" if half is None else f" ± {half:.1%}"))
    Console().print(shown)
