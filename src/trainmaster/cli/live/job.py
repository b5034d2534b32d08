"""`trainmaster job`: all about one job."""

from __future__ import annotations

from typing import Any

import click

from trainmaster.cli.shared.command import JOB, command
from trainmaster.client.client import Client, job_path
from trainmaster.client.transport import Json


def _show(view: Json) -> None:
    if "speeds" in view:
        _show_speeds(view)
        return
    from trainmaster.cli.shared.screen import cell, show_facts, state_cell

    show_facts(
        [(cell(label, "bold"), state_cell(text) if label == "state" else cell(text)) for label, text in facts(view)]
    )


def _show_speeds(view: Json) -> None:
    """A row for each size; a band that holds 8 of 10 times."""
    from trainmaster.cli.shared.screen import cell, show_line, show_table

    guess = "what it says or measured itself" if view["known"] else "a guess; only ratios mean something"
    show_line(f"profile {view['profile']}: {view['text'] or guess}")
    heads = ("TYPE", "WORKERS", "SERVERS", "ON", "STEPS/S", "8 OF 10 TIMES", "MEASURED")
    rows = [
        [
            cell(row["accelerator"]), cell(row["workers"]), cell(row["servers"]),
            cell("several nodes" if row["spread"] else "one node"), cell(f"{row['p50']:.4g}"),
            cell(f"{row['p10']:.4g} to {row['p90']:.4g}"),
            cell("" if row["measured"] is None else f"{row['measured']:.4g}"),
        ]
        for row in view["speeds"]
    ]  # fmt: skip
    show_table(heads, rows, right=("WORKERS", "SERVERS", "STEPS/S", "MEASURED"))


@command(_show)
@JOB
@click.option("--speeds", is_flag=True, help="Show how fast it is believed to be at every size.")
def job(client: Client, job: str, speeds: bool) -> Any:
    """Show all about one job."""
    return client.get(job_path(job, "/speeds" if speeds else ""))


def facts(view: Json) -> list[tuple[str, str]]:
    """Labels and texts, most wanted first; what is unknown or was not asked for is left out."""
    from trainmaster.cli.live.queue_table import preemption_text, size_text, state_text, type_text
    from trainmaster.cli.shared.safe_text import shell_words
    from trainmaster.cli.shared.times import instant, short

    request, progress = view["request"], view["progress"]
    known: list[tuple[str, str | None]] = [
        ("job", view["id"]),
        ("name", view["name"] if view["name"] not in ("", view["id"]) else None),
        ("state", state_text(view)),
        ("phase", view["phase"] if view["phase"] not in (view["state"], "") else None),
        ("position", None if view["position"] is None else str(view["position"])),
        ("reason", view["reason"] or None),
        ("command", shell_words(request["command"])),
        ("folder", request["workdir"]),
        ("size", f"{size_text(view)} worker{'' if size_text(view) == '1' else 's'}, type {type_text(view)}"),
        ("runs on", _places(view) or None),
        *(("shares GPUs", _shared(shared)) for shared in view.get("sharing", ())),
        ("preemption", preemption_text(view) or None),
        ("progress", _progress(view)),
        ("loss", None if progress["loss"] is None else f"{progress['loss']:.4g}"),
        ("ends in", _ends_in(view)),
        ("starts in", _with_band("", view.get("starts")) or None),
        ("deadline", _deadline(view)),
        ("submitted", instant(view["submitted"])),
        ("started", None if view["started"] is None else instant(view["started"])),
        ("ended", None if view["ended"] is None else instant(view["ended"])),
        ("exit", view["exit"]),
        *((("output", "")[k > 0], line) for k, line in enumerate(view.get("output", "").splitlines())),
        ("hint", view.get("hint") or None),
        ("attempts", f"{view['attempts']}, {request['max_attempts']} may fail" if view["attempts"] else None),
        ("preemptions", str(view["preemptions"]) if view["preemptions"] else None),
        ("team", request["entity"]),
        ("weight", f"{request['weight']:g}" if request["weight"] != 1 else None),
        ("priority", str(request["priority"]) if request["priority"] else None),
        ("after", ", ".join(request["after"]) or None),
        ("model", request["model"] or None),
        ("time limit", None if request["time_s"] is None else short(request["time_s"])),
        ("budget", None if request["budget"] is None else f"{request['budget']:g}"),
        ("cost", None if round(view["cost"] or 0, 2) == 0 else f"{view['cost']:.2f}"),
        ("note", "speeds on this cluster are emulated" if view["emulated"] else None),
    ]
    return [(label, text) for label, text in known if text is not None]


def _places(view: Json) -> str:
    parts = []
    for place in view["allocation"]:
        text = f"{place['node']} ({place['accelerator']}): {place['workers']} workers"
        if place["servers"]:
            text += f", {place['servers']} servers"
        if place["devices"]:
            text += f", GPUs {','.join(str(device) for device in place['devices'])}"
        parts.append(text.replace(" 1 workers", " 1 worker").replace(" 1 servers", " 1 server"))
    return "; ".join(parts)


def _shared(shared: Json) -> str:
    if shared["kept"] is None:
        return f"with {shared['job_id']}"
    how = "measured" if shared["measured"] else f"expected, {shared['low']:.0%} to {shared['high']:.0%}; being tried"
    return f"with {shared['job_id']}: keeps {shared['kept']:.0%} of its speed ({how})"


def _progress(view: Json) -> str | None:
    from trainmaster.cli.live.queue_table import counts_steps, silence_text
    from trainmaster.cli.shared.screen import bar

    progress = view["progress"]
    rate = "" if progress["rate"] is None else f", {progress['rate']:.4g} steps/s"
    if silence := silence_text(view):
        rate += f", {silence}"
    elif view["state"] == "running" and progress.get("age_s") is None:
        rate += ", no report yet"
    if progress["fraction"] is None:
        return f"{progress['work_done']:,.0f} steps{rate}" if counts_steps(view) else None
    of = "" if progress["work_total"] is None else f" ({progress['work_done']:,.0f} of {progress['work_total']:,.0f})"
    return f"{bar(progress['fraction'], 20)} {progress['fraction']:.1%}{of}{rate}"


def _ends_in(view: Json) -> str | None:
    from trainmaster.cli.shared.times import short

    when = "" if view["eta_s"] is None else _with_band(short(view["eta_s"]), view.get("eta"))
    return ", ".join(filter(None, (when, view.get("eta_note")))) or None


def _with_band(middle: str, band: Json | None) -> str:
    from trainmaster.cli.shared.times import banded

    if band is None:
        return middle
    return banded(band, middle)


def _deadline(view: Json) -> str | None:
    from trainmaster.cli.shared.times import instant, short

    asked = view["request"]["deadline_s"]
    if asked is None:
        return None
    kind = view["request"]["deadline_kind"]
    slack = "" if view["slack_s"] is None else f", slack {short(view['slack_s'])}"
    return f"{instant(view['submitted'] + asked)} ({kind}{slack})"
