"""`trainmaster whatif`: what a change would do to the present queue, without making it."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trainmaster.cli.shared.amounts import range_of
from trainmaster.cli.shared.command import command
from trainmaster.cli.shared.output import check_writable, to_json, write_text
from trainmaster.cli.shared.times import seconds_of, short
from trainmaster.client.client import Client
from trainmaster.model.errors import InputError

if TYPE_CHECKING:
    from trainmaster.forecast.situation import Situation
    from trainmaster.forecast.whatif import Change, Comparison
    from trainmaster.model.job import JobSpec

SHOWN = 12
"""Jobs listed on the screen: those that gain or lose most; `-o json` has all."""
_EVEN_S = 1.0
"""Differences below this are nobody's gain."""


@command()
@click.option("--policy", "-p", help="Another policy, with its options.")
@click.option("--add-nodes", help="More nodes, as for a cluster: v100:2x4 (two nodes of 4).")
@click.option("--remove-node", multiple=True, help="Without this node; repeatable.")
@click.option("--add-job", multiple=True, help="Another job: GPUS:DURATION, such as 4:2h; repeatable.")
@click.option("--remove-job", multiple=True, help="Without this job; repeatable.")
@click.option("--resize", multiple=True, help="Another size: JOB=2..4; repeatable.")
@click.option("--first", multiple=True, help="This job moved up before all others; repeatable.")
@click.option("--file", type=click.Path(path_type=Path), help="A situation saved before, instead of the live one.")
@click.option("--save", type=click.Path(path_type=Path), help="Save the situation here, to look at it again later.")
def whatif(
    client: Client, policy: str | None, add_nodes: str | None, remove_node: tuple[str, ...], add_job: tuple[str, ...],
    remove_job: tuple[str, ...], resize: tuple[str, ...], first: tuple[str, ...], file: Path | None, save: Path | None,
    output: str,
) -> Any:  # fmt: skip
    """Say what another policy, other nodes or jobs would do to the queue.

    Every job and the totals, now and then; nothing is changed.
    """
    check_writable(save)
    situation = _situation(file, client)
    if save is not None:
        from trainmaster.forecast.situation import to_json as situation_json

        write_text(save, to_json(situation_json(situation)))
    options_given = (policy, add_nodes, remove_node, add_job, remove_job, resize, first)
    if not any(options_given):
        if save is not None:
            click.echo(f"saved {len(situation.stored_state.jobs)} jobs to {save}")
            return None
        raise InputError("nothing to change", "--policy, --add-nodes, --remove-node, --add-job, --remove-job, "
                         "--resize or --first", "`trainmaster whatif --help` explains them.")  # fmt: skip
    from trainmaster.forecast.whatif import Change, compare

    change = Change(
        policy=policy,
        add_nodes=_nodes(add_nodes, situation),
        remove_nodes=remove_node,
        add_jobs=tuple(_job(text, k, situation) for k, text in enumerate(add_job)),
        remove_jobs=tuple(_id(situation, name) for name in remove_job),
        resize=dict(_resize(situation, text) for text in resize),
        first=tuple(_id(situation, name) for name in first),
    )
    comparison = compare(situation, change)
    if output == "json":
        return _as_json(comparison)
    _print(situation, change, comparison)
    return None


def _situation(file: Path | None, client: Client) -> Situation:
    from trainmaster.forecast.situation import from_json, load

    return load(file) if file is not None else from_json(client.get("/situation"))


def _id(situation: Situation, name: str) -> str:
    """An id, or a name that only one active job has."""
    if name in situation.stored_state.jobs:
        return name
    named = [key for key, record in situation.stored_state.jobs.items() if record["spec"].get("name") == name]
    if len(named) != 1:
        told = "several active jobs are" if named else "no active job is"
        raise InputError(f"{told} called '{name}'", "an id or a name from `trainmaster queue`")
    return named[0]


def _nodes(text: str | None, situation: Situation) -> tuple[Any, ...]:
    if text is None:
        return ()
    from dataclasses import replace

    from trainmaster.model.cluster import parse_cluster

    taken = {node.id for node in situation.cluster.nodes}
    nodes = []
    for node in parse_cluster(text).nodes:
        name = node.id
        while name in taken:
            name = f"{name}-new"
        taken.add(name)
        nodes.append(replace(node, id=name))
    return tuple(nodes)


def _resize(situation: Situation, text: str) -> tuple[str, tuple[int, int]]:
    name, equals, size = text.partition("=")
    if not equals:
        raise InputError(f"invalid size '{text}'", "JOB=2..4", column="--resize")
    wanted = range_of(size, "--resize")
    return _id(situation, name), (wanted["min"], wanted["max"])


_JOB = re.compile(r"(\d{1,5}):([^:]+)(?::([A-Za-z0-9._-]+))?", re.ASCII)


def _job(text: str, number: int, situation: Situation) -> JobSpec:
    """`GPUS:DURATION[:TYPE]`: so long at that size; on TYPE alone if it is named."""
    from trainmaster.model.job import JobId, JobSpec

    match = _JOB.fullmatch(text.strip())
    if match is None or int(match[1]) < 1:
        raise InputError(f"invalid job '{text}'", "GPUS:DURATION or GPUS:DURATION:TYPE", column="--add-job")
    gpus, seconds = int(match[1]), seconds_of(match[2], "--add-job")
    types = (match[3],) if match[3] else ()
    if types and types[0] not in situation.cluster.types:
        raise InputError(f"GPU type '{types[0]}' not found", ", ".join(situation.cluster.types), column="--add-job")
    return JobSpec(
        JobId(f"new-{number + 1}"), situation.now_ms, workers_min=gpus, workers_max=gpus, workers_ref=gpus,
        work_total=seconds, gpu_types=types,
    )  # fmt: skip


def _as_json(comparison: Comparison) -> dict[str, Any]:
    return {
        "before": asdict(comparison.total_before),
        "after": asdict(comparison.total_after),
        "jobs": {
            job_id: {
                "before": asdict(comparison.before[job_id]) if job_id in comparison.before else None,
                "after": asdict(comparison.after[job_id]) if job_id in comparison.after else None,
            }
            for job_id in sorted({*comparison.before, *comparison.after})
        },
        "gains_s": dict(comparison.gains_s()),
    }


def _print(situation: Situation, change: Change, comparison: Comparison) -> None:
    from trainmaster.cli.shared.screen import Cell, cell, show_line, show_table

    before, after = comparison.total_before, comparison.total_after
    totals: list[list[Cell]] = []
    for name, old, new, how in (
        ("mean completion time", before.mean_jct_s, after.mean_jct_s, "time"),
        ("mean time to finish, from now", before.mean_finish_s, after.mean_finish_s, "time"),
        ("jobs that finish", before.finished, after.finished, "count"),
        ("deadlines met", before.deadlines_met, after.deadlines_met, "count"),
        ("total utility", before.utility, after.utility, "number"),
        ("total cost, $", before.cost, after.cost, "number"),
        ("worst fairness (finish-time)", before.unfairness, after.unfairness, "number"),
        ("preemptions", before.preemptions, after.preemptions, "count"),
    ):
        absent = name == "deadlines met" and not (before.deadlines or after.deadlines)
        if not absent and (old is not None or new is not None):
            totals.append([cell(name), *map(cell, (_shown(old, how), _shown(new, how), _difference(old, new, how)))])
    show_table(("", "NOW", "THEN", "CHANGE"), totals, right=("NOW", "THEN", "CHANGE"))
    gains = comparison.gains_s()
    better, worse = sum(gain > _EVEN_S for _, gain in gains), sum(gain < -_EVEN_S for _, gain in gains)
    show_line("")
    finish = "job finishes" if better == 1 else "jobs finish"
    show_line(f"{better} {finish} sooner, {worse} later, {len(gains) - better - worse} as before.")
    _print_jobs(situation, change, comparison)


def _print_jobs(situation: Situation, change: Change, comparison: Comparison) -> None:
    """Newcomers, then those that gain or lose most."""
    from trainmaster.cli.shared.screen import cell, show_line, show_table

    gain_of = dict(comparison.gains_s())
    largest = sorted(gain_of, key=lambda job_id: (-abs(gain_of[job_id]), job_id))[:SHOWN]
    shown = [*(spec.id for spec in change.add_jobs), *(key for key in largest if abs(gain_of[key]) > _EVEN_S)]
    rows = []
    for job_id in shown:
        old, new, gain = comparison.before.get(job_id), comparison.after.get(job_id), gain_of.get(job_id)
        times = (old and old.start_s, new and new.start_s, old and old.finish_s, new and new.finish_s)
        style = "" if gain is None else "green" if gain > 0 else "red"
        last = cell(
            _signed(gain) if gain is not None else "new" if new and new.start_s is not None else "never starts", style
        )
        limit = new.limit if new is not None else ""
        name = f"{_name(situation, job_id)} (stopped at {limit})" if limit else _name(situation, job_id)
        rows.append([cell(name), *(cell(short(at_s)) for at_s in times), last])
    if rows:
        show_line("")
        heads = ("JOB", "STARTS NOW", "THEN", "ENDS NOW", "THEN ", "GAIN")
        show_table(heads, rows, right=heads[1:])


def _name(situation: Situation, job_id: str) -> str:
    record = situation.stored_state.jobs.get(job_id)
    name = record["spec"].get("name", "") if record else ""
    return f"{job_id} {name}".strip()


def _signed(seconds: float) -> str:
    return f"{'+' if seconds > 0 else ''}{short(seconds)}"


def _shown(value: float | None, how: str) -> str:
    if value is None:
        return "-"
    return short(value) if how == "time" else f"{value:,.0f}" if how == "count" else f"{value:,.2f}"


def _difference(old: float | None, new: float | None, how: str) -> str:
    if old is None or new is None or old == new:
        return "" if old is None or new is None else "="
    if how == "count":
        return f"{new - old:+,.0f}"
    return f"{100 * (new / old - 1):+.1f} %" if old else ""
