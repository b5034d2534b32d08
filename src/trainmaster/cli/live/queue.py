"""`trainmaster queue`: what waits and runs, once or while one watches."""

from __future__ import annotations

import sys
import time
from typing import Any

import click

from trainmaster.cli.shared.command import command
from trainmaster.cli.shared.output import to_json
from trainmaster.client.client import Client, patiently
from trainmaster.client.errors import NoService
from trainmaster.model.errors import InputError
from trainmaster.wire.safe_text import safe_line

STATES = ("running", "pending", "paused", "finished", "failed", "cancelled", "rejected")
_LIVE = ("running", "pending", "paused")
_PAGE = 500
_ORDER = {"running": 0, "pending": 1, "paused": 2, "finished": 3, "failed": 3, "cancelled": 3, "rejected": 3}


@command()
@click.option("--all", "-a", "all_states", is_flag=True, help="Ended jobs too.")
@click.option("--state", multiple=True, help="Only these states; repeatable.")
@click.option("--entity", help="Only jobs of this team.")
@click.option("--limit", type=click.IntRange(1), default=100, help="At most so many jobs; default 100.")
@click.option("--watch", "-w", is_flag=True, help="Show it anew until Ctrl-C.")
@click.option("--interval", type=click.FloatRange(0.1), default=1.0, help="Seconds between looks with --watch.")
def queue(
    client: Client,
    all_states: bool,
    state: tuple[str, ...],
    entity: str | None,
    limit: int,
    watch: bool,
    interval: float,
    output: str,
) -> Any:
    """List the jobs that wait and run, with reason, slack and ETA."""
    for name in state:
        if name not in STATES:
            raise InputError(f"invalid state '{name}'", ", ".join(STATES), column="--state")
    states = state or (() if all_states else _LIVE)
    if watch:
        _watch(client, states, entity, limit, interval, output)
    elif output == "json":
        return read(client, states, entity, limit)
    else:
        _print_once(client, states, entity, limit)
    return None


def read(client: Client, states: tuple[str, ...], entity: str | None, limit: int) -> dict[str, Any]:
    """A `JobPage` of at most `limit` jobs in the order of the queue.

    The service lists the oldest first. When not all fit, each state is asked for by itself, so that what runs is
    shown before the thousands that wait.
    """
    page = _pages(client, states, entity, limit)
    if page["cursor"] is not None and len(states) != 1:
        jobs: list[dict[str, Any]] = []
        for state in sorted(states or STATES, key=lambda name: (_ORDER[name], STATES.index(name))):
            if len(jobs) < limit:
                jobs += _pages(client, (state,), entity, limit - len(jobs))["jobs"]
        page["jobs"] = jobs
    return {**page, "jobs": in_order(page["jobs"])}


def _pages(client: Client, states: tuple[str, ...], entity: str | None, limit: int) -> dict[str, Any]:
    jobs: list[dict[str, Any]] = []
    cursor: str | None = None
    while True:
        wanted = min(_PAGE, limit - len(jobs))
        page = client.get("/jobs", {"state": list(states) or None, "entity": entity, "limit": wanted, "cursor": cursor})
        jobs += page["jobs"]
        cursor = page["cursor"]
        if cursor is None or len(jobs) >= limit:
            return {"jobs": jobs, "cursor": cursor, "total": page["total"]}


def in_order(jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Running first, then the queue by position, then paused, then ended; submission breaks ties."""

    def key(job: dict[str, Any]) -> tuple[int, int, float, int, str]:
        at = job["position"] or 0  # none: it has its devices and starts
        return (_ORDER.get(job["state"], 4), at, job["submitted"], len(job["id"]), job["id"])

    return sorted(jobs, key=key)


def _print_once(client: Client, states: tuple[str, ...], entity: str | None, limit: int) -> None:
    page = read(client, states, entity, limit)
    service = client.get("/service")
    from trainmaster.cli.live.queue_table import show_queue

    show_queue(page["jobs"], service, page["total"])


def _watch(
    client: Client, states: tuple[str, ...], entity: str | None, limit: int, interval_s: float, output: str
) -> None:
    """On a terminal one screen redrawn in place; else one page (or one line of JSON) after the other."""
    try:
        if output == "json":
            while True:
                page = patiently(lambda: read(client, states, entity, limit), _away)
                click.echo(to_json(page, indent=None), nl=False)
                time.sleep(interval_s)
        elif not sys.stdout.isatty():
            while True:
                patiently(lambda: _print_once(client, states, entity, limit), _away)
                click.echo()
                time.sleep(interval_s)
        else:
            _watch_screen(client, states, entity, limit, interval_s)
    except KeyboardInterrupt:
        return


def _away(told: str) -> None:
    from trainmaster.cli.live.following import remark

    remark(f"{told}; waiting for it")


def _watch_screen(client: Client, states: tuple[str, ...], entity: str | None, limit: int, interval_s: float) -> None:
    """Each look overwrites the one before in a single write, so nothing flickers; a restart is waited for."""
    from shutil import get_terminal_size

    from trainmaster.cli.live.queue_table import head_line, queue_lines
    from trainmaster.cli.shared.screen import coloured, cut, paint
    from trainmaster.cli.shared.times import clock

    page: dict[str, Any] = {"jobs": [], "total": 0}
    service: dict[str, Any] = {}
    sys.stdout.write("\x1b[?1049h\x1b[?25l")  # another screen, no cursor
    try:
        while True:
            away = ""
            try:
                page, service = read(client, states, entity, limit), client.get("/service")
            except NoService as error:
                away = str(error)
            size = get_terminal_size()
            jobs = page["jobs"][: max(1, size.lines - 3)]
            head = away or head_line(service, page["total"], len(jobs))
            title = cut(safe_line(f"{clock(time.time())}  {head}"), size.columns)
            lines = [paint(title, "red" if away else "dim", coloured()), *queue_lines(jobs, size.columns, coloured())]
            sys.stdout.write("\x1b[H" + "".join(f"{line}\x1b[K\n" for line in lines) + "\x1b[J")
            sys.stdout.flush()
            time.sleep(interval_s)
    finally:
        sys.stdout.write("\x1b[?25h\x1b[?1049l")
        sys.stdout.flush()
