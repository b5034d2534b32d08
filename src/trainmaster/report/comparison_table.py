"""A comparison as a table on a terminal, and as plain data."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import polars as pl
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from trainmaster.report.verdicts import Scenario, Verdict, scenarios, verdicts
from trainmaster.report.wording import amounts, comparison, lead
from trainmaster.sim.comparison_store import ComparisonTables

_SHOWN = ("average_jct_s", "p99_jct_s", "utilization", "deadline_met_fraction", "fairness_mean")


def print_comparison(tables: ComparisonTables, console: Console) -> None:
    for scenario in scenarios(tables.results):
        rows = scenario.rows(tables.results)
        found = verdicts(rows)
        console.print(_table(scenario, rows, found))
        for verdict in found:
            if verdict.metric.column in ("average_jct_s", "p99_jct_s", "deadline_met_fraction", "total_cost"):
                console.print(f"  {verdict.metric.title}: {lead(verdict)}", highlight=False, soft_wrap=True)
    generated = sorted({name for trace in tables.settings["traces"] for name in trace["generated_fields"]})
    if generated:
        console.print(escape(f"generated columns: {', '.join(generated)}"), highlight=False, soft_wrap=True)
    console.print(
        f"{tables.settings['seeds']} seeds; vs first: mean completion time as a ratio, with"
        f" 95 % interval, paired by seed;"
        " ratio: finish time to that of a fair share.",
        highlight=False,
        soft_wrap=True,
    )


def _table(scenario: Scenario, rows: pl.DataFrame, found: list[Verdict]) -> Table:
    shown = [v for v in found if v.metric.column in _SHOWN]
    table = Table(
        title=escape(scenario.title), title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1), collapse_padding=True
    )
    table.add_column("policy", overflow="fold")
    for verdict in shown:
        table.add_column(verdict.metric.short, justify="right", no_wrap=True)
        if verdict.metric.column == "average_jct_s":
            table.add_column("vs first", justify="right", no_wrap=True)
    some_not_done = bool((rows["jobs_finished"] < rows["jobs_submitted"]).any())
    if some_not_done:
        table.add_column("done", justify="right", no_wrap=True)
    columns = [amounts(v.metric, [s.mean.mean for s in v.standings]) for v in shown]
    policies = rows["policy"].unique(maintain_order=True).to_list()
    for index, policy in enumerate(policies):
        cells = [escape(policy)]
        for verdict, column in zip(shown, columns, strict=True):
            standing = verdict.standings[index]
            best = policy == verdict.best and not verdict.tied
            text = column[index]
            cells.append(f"[bold]{text}[/]" if best else text)
            if verdict.metric.column == "average_jct_s":
                cells.append(comparison(verdict.metric, standing.against_first))
        if some_not_done:
            own = rows.filter(pl.col("policy") == policy)
            cells.append(f"{int(own['jobs_finished'].sum()) / max(int(own['jobs_submitted'].sum()), 1):.0%}")
        table.add_row(*cells)
    return table


def comparison_rows(tables: ComparisonTables) -> list[dict[str, Any]]:
    """The verdicts as plain data, for `-o json`."""
    return [
        {
            "trace": scenario.trace,
            "cluster": scenario.cluster,
            "load": scenario.load,
            "metrics": [
                {
                    "metric": v.metric.column,
                    "compared_by": "ratio" if v.metric.by_ratio else "difference",
                    "policies": {
                        s.policy: {
                            "mean": asdict(s.mean),
                            "against_first": None if s.against_first is None else asdict(s.against_first),
                        }
                        for s in v.standings
                    },
                    "best": v.best,
                    "next_best": v.next_best,
                    "lead": None if v.lead is None else asdict(v.lead),
                    "clear": v.clear,
                }
                for v in verdicts(scenario.rows(tables.results))
            ],
        }
        for scenario in scenarios(tables.results)
    ]
