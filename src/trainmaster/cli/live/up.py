"""`trainmaster up`: the service on this machine, in the foreground, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from trainmaster.cli.shared.command import command
from trainmaster.service.options import ServiceOptions, flags

_TYPES = {"str": str, "int": int, "float": float, "Path": click.Path(path_type=Path)}


def _with_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """An option for each field of `ServiceOptions` that has help."""
    for name, option, flag, default, kind in reversed([*flags()]):
        names = [f"{option}/--no-{option[2:]}" if default is True else option, *([flag.short] if flag.short else [])]
        settings: dict[str, Any] = {"is_flag": True} if kind == "bool" else {"type": _TYPES[kind], "show_default": True}
        function = click.option(*names, name, default=default, help=flag.help, **settings)(function)
    return function


@command(output=False)
@_with_options
def up(home: Path | None, **values: Any) -> None:
    """Start the service on this machine: REST interface, scheduler, store, and processes of jobs."""
    from trainmaster.client.address import home_folder
    from trainmaster.service.local.trust import users_among, warnings
    from trainmaster.service.service import Service

    options = ServiceOptions(home=home_folder(home).absolute(), **values)
    service = Service(options)

    def ready(address: str) -> None:
        if not options.quiet:
            click.echo(f"Trainmaster is up at {address}: {service.platform.describe()}")
            click.echo(f"Home: {options.home}   API: {address}/docs   Stop: Ctrl-C")
        if options.backend == "local":
            users = users_among(who for _, who in service.home.principals())
            for warning in warnings(os.geteuid(), users, service.home.accounts() is not None):
                click.echo(f"Warning: {warning}.", err=True)

    service.run(ready)
