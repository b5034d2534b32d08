"""The report of a comparison: everything on one page, made from the Parquet files alone."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl

from trainmaster.model.errors import InputError
from trainmaster.policies.registry import entry
from trainmaster.report import comparison_figures as figures_of
from trainmaster.report import comparison_time as time_of
from trainmaster.report import page as html
from trainmaster.report.comparison_figures import Picture, policies_of
from trainmaster.report.verdicts import Scenario, Verdict, scenarios, verdicts
from trainmaster.report.wording import amounts, comparison, duration, lead
from trainmaster.sim.comparison_store import ComparisonTables

_RESAMPLING = {
    "windows": (
        "Seed 0 is the trace itself. Every other seed is a variant: the trace is cut into"
        " windows ({windows}) and as many are"
        " drawn with replacement and laid end to end (block bootstrap), so that bursts and"
        " alike jobs stay together."
    ),
    "jobs": (
        "Seed 0 is the trace itself. In every other seed the arrival times stay and each"
        " gets a job of the trace drawn with"
        " replacement."
    ),
    "none": (
        "Every seed runs the trace itself; seeds differ in the world's chance alone (noise, failures), if there is any."
    ),
}


def write_report(tables: ComparisonTables, folder: Path, *, figures: bool = False) -> Path:
    """Write `report.html`; with `figures`, each figure as a file too. Returns the page's path."""
    pictures: list[tuple[str, Picture]] = []
    text = html.page(_title(tables), _parts(tables, pictures))
    target = folder / "report.html"
    try:
        temporary = folder / ".report.html.new"
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(target)
        if figures:
            place = folder / "figures"
            place.mkdir(exist_ok=True)
            for prefix, picture in pictures:
                (place / f"{prefix}{picture.name}.{picture.kind}").write_bytes(picture.data)
    except OSError as error:
        raise InputError(f"cannot write: {error.strerror}", "a writable folder", file=folder) from None
    return target


def _title(tables: ComparisonTables) -> str:
    return "Policies compared on " + ", ".join(trace["name"] for trace in tables.settings["traces"])


def _parts(tables: ComparisonTables, pictures: list[tuple[str, Picture]]) -> Iterator[str]:
    settings = tables.settings
    found = list(scenarios(tables.results))
    yield f"<h1>{html.escape(_title(tables))}</h1>"
    yield html.paragraph(
        f"{len(settings['policies'])} policies, {settings['seeds']} seeds,"
        f" {tables.results.height} simulations,"
        f" trainmaster {settings['trainmaster']}."
    )
    for trace in settings["traces"]:
        if trace["generated_fields"]:
            yield html.paragraph(
                f"Generated columns in {trace['name']}:"
                f" {', '.join(trace['generated_fields'])}. They were invented, not measured;"
                " what depends on them is no result about a real cluster.",
                "note",
            )
    if len(found) > 1:
        links = "".join(f'<li><a href="#s{k}">{html.escape(s.title)}</a></li>' for k, s in enumerate(found))
        yield f"<ul>{links}</ul>"
    for trace, cluster in tables.results.select("trace", "cluster").unique(maintain_order=True).iter_rows():
        if len(settings["loads"]) > 1:
            rows = tables.results.filter((pl.col("trace") == trace) & (pl.col("cluster") == cluster))
            made = figures_of.by_load(rows, policies_of(rows), f"{trace} on {cluster}: load")
            prefix = (
                "" if len(settings["traces"]) * len(settings["clusters"]) == 1 else _slug(f"{trace}-{cluster}") + "-"
            )
            pictures.append((prefix, made))
            yield html.picture(made)
    for index, scenario in enumerate(found):
        prefix = _prefix(settings, scenario)
        yield f'<h2 id="s{index}">{html.escape(scenario.title)}</h2>'
        yield from _scenario(tables, scenario, prefix, pictures)
    yield "<h2>What produced this</h2>"
    yield from _settings(tables)


def _scenario(
    tables: ComparisonTables, scenario: Scenario, prefix: str, pictures: list[tuple[str, Picture]]
) -> Iterator[str]:
    rows = scenario.rows(tables.results)
    policies = policies_of(rows)
    found = verdicts(rows)
    yield from _facts(rows)
    if not found:
        yield html.paragraph("No job finished under some policy: there is nothing to compare.", "note")
        return
    yield "<h3>Who wins by how much</h3>"
    yield html.table(("", "best, and its lead over the next"), [(v.metric.title, lead(v)) for v in found], "words")
    yield html.paragraph(
        "In brackets: 95 % confidence interval over seeds, paired by seed (both policies met"
        " the same workloads). “Could be"
        " chance”: the interval includes no difference. The best was picked after the fact"
        " and intervals are not widened"
        " for that; with few seeds take narrow leads with caution."
    )
    yield "<h3>Every policy</h3>"
    yield _figures_table(found, policies)
    yield html.paragraph(
        "JCT: completion time of a job. Ratio: finish time to that of a fair share. Averages"
        " over seeds: geometric for times, costs and ratios, arithmetic for shares and where one is zero."
    )
    by_column = {v.metric.column: v for v in found}
    jobs = scenario.rows(tables.jobs)
    timeline = scenario.rows(tables.timeline).filter(pl.col("seed") == 0)
    made: list[Picture | None] = []
    if "average_jct_s" in by_column:
        made.append(figures_of.leads(rows, by_column["average_jct_s"]))
        made.append(figures_of.completion_times(jobs, policies))
    made.append(figures_of.slowdown_by_size(jobs, policies))
    made.append(time_of.over_time(timeline, policies, int(rows["cluster_gpus"][0])))
    if "fairness_mean" in by_column:
        made.append(figures_of.fairness(jobs, policies))
    for column, name, axis, caption in (
        (
            "deadline_met_fraction",
            "deadlines",
            "share of jobs with a deadline",
            "Jobs that were rejected count as missed.",
        ),
        ("total_utility", "utility", "sum over jobs", "What the jobs were worth at the time they finished."),
        ("total_cost", "cost", "dollars", "GPU-hours held, at the price of their type."),
    ):
        if column in by_column:
            made.append(figures_of.bars(by_column[column], name, axis, f"{caption} Line: 95 % interval over seeds."))
    for picture in made:
        if picture is not None:
            pictures.append((prefix, picture))
            yield html.picture(picture)
    yield from _gantts(scenario.rows(tables.allocations), policies, by_column, prefix, pictures)
    if tables.timing is not None:
        yield from _timing(scenario.rows(tables.timing), policies)


def _facts(rows: pl.DataFrame) -> Iterator[str]:
    loads = rows.filter(pl.col("policy") == rows["policy"][0])["offered_load"].drop_nulls()
    counts = rows.filter(pl.col("policy") == rows["policy"][0])["jobs_submitted"]
    if len(loads):
        yield html.paragraph(
            f"{int(counts.min() or 0):,} to {int(counts.max() or 0):,} jobs a seed; offered"  # type: ignore[arg-type]
            f" load (work at the size and speed asked for,"
            f" over what {int(rows['cluster_gpus'][0]):,} GPUs can do while jobs arrive):"
            f" {loads.min():.2f} to {loads.max():.2f}."
        )
    finished = rows.group_by("policy", maintain_order=True).agg(
        (pl.col("jobs_finished").sum() / pl.col("jobs_submitted").sum()).alias("share")
    )
    if finished["share"].min() != finished["share"].max():
        told = ", ".join(f"{p} {s:.1%}" for p, s in finished.iter_rows())
        yield html.paragraph(
            f"Policies finish different shares of the jobs ({told}): completion times are of"
            f" those that finished, and"
            " turning jobs away makes them look better.",
            "note",
        )


def _figures_table(found: list[Verdict], policies: list[str]) -> str:
    headers = ["policy"]
    for verdict in found:
        headers.append(verdict.metric.short)
        if verdict.metric.column == "average_jct_s":
            headers.append(f"x {policies[0]}")
    columns = [amounts(v.metric, [s.mean.mean for s in v.standings]) for v in found]
    rows: list[list[str | tuple[str, str]]] = []
    for index, policy in enumerate(policies):
        row: list[str | tuple[str, str]] = [policy]
        for verdict, column in zip(found, columns, strict=True):
            standing = verdict.standings[index]
            text = column[index]
            row.append((text, "best") if policy == verdict.best and not verdict.tied else text)
            if verdict.metric.column == "average_jct_s":
                row.append(comparison(verdict.metric, standing.against_first))
        rows.append(row)
    return html.table(headers, rows)


def _gantts(
    allocations: pl.DataFrame,
    policies: list[str],
    by_column: dict[str, Verdict],
    prefix: str,
    pictures: list[tuple[str, Picture]],
) -> Iterator[str]:
    best = by_column["average_jct_s"].best if "average_jct_s" in by_column else policies[0]
    yield "<h3>Who held which GPU</h3>"
    yield html.paragraph(f"Open: {policies[0]} (named first) and {best} (shortest mean completion time).")
    for policy in policies:
        made = time_of.gantt(allocations, policy, f"gantt-{_slug(policy)}")
        if made is not None:
            pictures.append((prefix, made))
            shown = html.picture(made)
            yield shown if policy in (policies[0], best) else html.details(policy, shown)


def _timing(timing: pl.DataFrame, policies: list[str]) -> Iterator[str]:
    means = timing.group_by("policy").agg(pl.col("cpu_s").mean(), pl.col("decide_cpu_s").mean())
    by_policy = {p: (cpu, decide) for p, cpu, decide in means.iter_rows()}
    yield "<h3>Computing time</h3>"
    yield html.table(
        ("policy", "CPU time a simulation", "of it in decisions"),
        [(p, f"{by_policy[p][0]:.2f} s", f"{by_policy[p][1]:.2f} s") for p in policies],
    )


def _settings(tables: ComparisonTables) -> Iterator[str]:
    settings = tables.settings
    windows = ", ".join(f"{duration(t['resample_window_s'])} in {t['name']}" for t in settings["traces"])
    yield html.paragraph(_RESAMPLING[settings["resample"]].format(windows=windows))
    yield "<h3>Policies</h3>"
    yield html.table(("policy", "what it does"), [(p, _summary(p)) for p in settings["policies"]], "words")
    yield "<h3>Traces</h3>"
    for trace in settings["traces"]:
        yield html.table(("", ""), [(k, _shown(v)) for k, v in trace.items()], "facts")
    yield "<h3>Settings</h3>"
    rest = {k: v for k, v in settings.items() if k not in ("traces", "policies")}
    yield html.table(("", ""), [(k, _shown(v)) for k, v in rest.items()], "facts")
    notes = sorted({n for text in tables.results["notes"].to_list() for n in (text or "").split(" | ") if n})
    if notes:
        yield "<h3>Notes of the runs</h3>"
        yield "<ul>" + "".join(f"<li>{html.escape(note)}</li>" for note in notes[:50]) + "</ul>"


def _summary(policy: str) -> str:
    try:
        return entry(policy.partition(":")[0]).summary
    except InputError:
        return "not installed here"


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _prefix(settings: dict[str, Any], scenario: Scenario) -> str:
    """Of the files of a scenario's figures: what tells it from the others."""
    parts = []
    if len(settings["traces"]) > 1:
        parts.append(scenario.trace)
    if len(settings["clusters"]) > 1:
        parts.append(scenario.cluster)
    if len(settings["loads"]) > 1:
        parts.append(f"load {scenario.load:g}".replace(".", "_"))
    return "".join(f"{_slug(part)}-" for part in parts)


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9_]+", "-", text.lower()).strip("-")
