"""`trainmaster learn das`: train DAS; `learn das-evaluate`: the table of its rivals."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from trainmaster.cli.learning.learn_options import documented, need_torch, typed_options
from trainmaster.cli.shared.output import check_output, check_writable, one_message, progress_bar, to_json, write_text
from trainmaster.cli.shared.typer_options import Output
from trainmaster.learn.das.evaluate import BASELINES, evaluate
from trainmaster.learn.das.jobs import pools_of
from trainmaster.learn.das.options import DasOptions
from trainmaster.model.errors import InputError
from trainmaster.policies.das.weights import SHIPPED, load
from trainmaster.report.baseline_table import table


@one_message
def das(
    out: Annotated[Path, typer.Option(help="Folder for weights, checkpoint and metrics.")],
    trace: Annotated[
        list[Path] | None, typer.Option(help="Where jobs come from; repeat it. None: made-up jobs.")
    ] = None,
    variant: Annotated[str, typer.Option(help="da, da+mc, da+rwgp or da+mc+rwgp.")] = "da+mc+rwgp",
    iterations: Annotated[int, typer.Option(min=0, help="Of MAPPO; 0: only imitate the rule.")] = 80,
    option: Annotated[
        list[str] | None, typer.Option("--set", help="Any training option, such as heads=8; repeatable.")
    ] = None,
    resume: Annotated[bool, typer.Option(help="Continue the run in this folder.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same weights.")] = 0,
) -> None:
    """Train DAS: imitate a rule, then improve both agents by MAPPO. Writes weights.npz for `das:weights=FILE`."""
    need_torch()
    import torch

    from trainmaster.learn.das import checkpoints
    from trainmaster.learn.das.trainer import Row, Trainer
    from trainmaster.learn.metrics import MetricsWriter
    from trainmaster.learn.run_folder import WEIGHTS, check_folder, writing

    chosen = typed_options(option or [], DasOptions().to_json(), ("variant", "iterations", "seed"))
    options = replace(DasOptions(), **chosen, variant=variant, iterations=iterations, seed=seed)
    check_folder(out)
    pools = pools_of(trace or [])
    torch.set_num_threads(1)  # sums in one order whatever the machine, and small matrices gain nothing
    trainer = Trainer(options, pools)
    if resume:
        checkpoints.resume(trainer, out)
    with writing(out):
        out.mkdir(exist_ok=True)
        metrics = MetricsWriter(out, trainer.iteration if resume else None, checkpoints.METRICS)
    command = shlex.join(["trainmaster", *documented(sys.argv[1:], ("--out", "--trace"))])
    with progress_bar("training", max(iterations, 1)) as advance:

        def report(row: Row) -> None:
            with writing(out):
                metrics.write(row)
            note = f"validation {row['validation_min']:,.1f} min" if "validation_min" in row else None
            advance(int(row["iteration"]), text=note)

        trainer.run(report, lambda: checkpoints.save(trainer, out, command))
    metrics.close()
    typer.echo(f"{out / WEIGHTS}: validation {trainer.best_min:,.1f} min mean completion time")


@one_message
def das_evaluate(
    rivals: Annotated[str, typer.Option(help="Joined by ';'; the first is what the others are compared with.")] = "",
    weights: Annotated[Path, typer.Option(help="Weights of das; default: those that are shipped.")] = SHIPPED,
    trace: Annotated[
        list[Path] | None, typer.Option(help="Where jobs come from; repeat it. None: made-up jobs.")
    ] = None,
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
        cells = [f"{row[f'{site}_{unit}']:.1f}" for site in ("small", "medium", "large", "average")
                 for unit in ("jct_min", "fee")]  # fmt: skip
        half = row["below_jct_min_half"]
        shown.add_row(row["rival"], *cells, f"{row['below_jct_min']:.1%}" + ("" if half is None else f" ± {half:.1%}"))
    Console().print(shown)
