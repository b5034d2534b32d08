"""`trainmaster doctor`: is this installation in order, and what to do where it is not."""

from __future__ import annotations

import time
from pathlib import Path

import click

from trainmaster import __version__
from trainmaster.cli.live.diagnosis import Finding, examine, guarded
from trainmaster.cli.shared.command import command
from trainmaster.cli.shared.output import to_json
from trainmaster.client.address import find_address, home_folder
from trainmaster.client.client import Client
from trainmaster.client.errors import NoService, Refused
from trainmaster.model.errors import InputError

DEFAULT_PORT = 8642
_SKEW_S = 5.0


@command()
@click.option("--confirm-clock", is_flag=True, help="Say that the service's clock is right after a jump.")
def doctor(home: Path | None, output: str, confirm_clock: bool) -> None:
    """Check the installation and say how to mend it."""
    if confirm_clock:
        with Client.find(home) as client:
            client.put("/clock", {"confirmed": True})
    findings = [
        *examine(home_folder(home)),
        guarded("service", lambda: service(home)),
        guarded("clock", lambda: clock(home)),
    ]
    failed = any(finding.status == "error" for finding in findings)
    if output == "json":
        click.echo(to_json({"ok": not failed, "checks": [finding.as_json() for finding in findings]}), nl=False)
    else:
        _print(findings)
    if failed:
        raise SystemExit(1)


def service(home: Path | None) -> Finding:
    """Reachable, healthy, of our version, and willing to accept our token."""
    try:
        address = find_address(home)
    except NoService as error:
        return _port(str(error))
    except InputError as error:
        return Finding("service", "error", str(error), "Remove the file, then: trainmaster up")
    try:
        with Client(address, timeout_s=5.0) as client:
            client.healthy()
            view = client.get("/service")
    except NoService as error:
        told = str(error).partition("; start one")[0]
        return Finding("service", "note", told, "Start it with `trainmaster up`; its log is in the home's logs folder.")
    except Refused as error:
        return Finding("service", "error", str(error), "Take address and token from the same home.")
    told = f"{view['policy']} at {address.url}, version {view['version']}, role {view['role']}"
    if view["version"] != __version__:
        return Finding(
            "service", "note", f"{told}; this command is {__version__}", "Restart the service: trainmaster up"
        )
    if aside := view.get("quarantined"):
        told = f"{told}; {len(aside)} stored jobs cannot be read and were set aside: {', '.join(aside[:10])}"
        return Finding("service", "note", told, "Submit them again; logs and checkpoints are kept.")
    if jump_s := view.get("clock_jump_s"):
        told = f"{told}; its clock jumped by {jump_s / 3600:+.1f} h: no history is deleted for its age"
        return Finding("service", "note", told, "When the clock is right: trainmaster doctor --confirm-clock")
    return Finding("service", "ok", told)


def _port(told: str) -> Finding:
    """No service yet: would the usual port be free for one?"""
    import socket

    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", DEFAULT_PORT))
        except OSError as error:
            busy = f"no service, and port {DEFAULT_PORT} is taken ({(error.strerror or '').lower()})"
            return Finding("service", "note", busy, "`trainmaster up` takes another; --port chooses one.")
    return Finding("service", "ok", told.partition("; start one")[0] + f"; port {DEFAULT_PORT} is free for one")


def clock(home: Path | None) -> Finding:
    """Deadlines given as dates need a clock that agrees with the service's."""
    from email.utils import parsedate_to_datetime
    from http.client import HTTPConnection, HTTPException, HTTPSConnection
    from urllib.parse import urlsplit

    here = time.strftime("%Y-%m-%d %H:%M:%S %Z")
    if time.time() < 1_700_000_000:
        return Finding("clock", "error", f"it is {here} here", "Set the clock, for example with NTP.")
    try:
        parts = urlsplit(find_address(home).url)
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=5.0)
        connection.request("GET", "/healthz")
        stated = connection.getresponse().getheader("Date")
        connection.close()
    except (OSError, HTTPException, NoService, InputError):
        stated = None
    if stated is None:
        return Finding("clock", "ok", here)
    skew_s = parsedate_to_datetime(stated).timestamp() - time.time()
    if abs(skew_s) > _SKEW_S:
        told = f"{here}; the service's clock differs by {skew_s:+.0f} s"
        return Finding("clock", "note", told, "Synchronise the clocks (NTP): deadlines given as dates are off by that.")
    return Finding("clock", "ok", f"{here}, as the service's")


def _print(findings: list[Finding]) -> None:
    from trainmaster.cli.shared.screen import cell, show_facts

    styles = {"ok": "green", "note": "yellow", "error": "red"}
    facts = []
    for finding in findings:
        facts.append((cell(f"{finding.status:<5}  {finding.name}", styles[finding.status]), cell(finding.detail)))
        if finding.remedy:
            facts.append((cell(""), cell(f"-> {finding.remedy}")))
    show_facts(facts)
    errors = sum(finding.status == "error" for finding in findings)
    notes = sum(finding.status == "note" for finding in findings)
    click.echo(f"{errors} error{'' if errors == 1 else 's'}, {notes} note{'' if notes == 1 else 's'}")
