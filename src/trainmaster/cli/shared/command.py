"""`@command`: what every live command has: a client, `--home`, `-o`, JSON output, one message for what goes wrong."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import ExitStack
from functools import wraps
from pathlib import Path
from typing import Any

import click

from trainmaster.cli.shared.output import check_output, one_message, to_json
from trainmaster.client.client import Client

_HOME = click.option(
    "--home",
    type=click.Path(path_type=Path),
    help="Folder of the service; default $TRAINMASTER_HOME, then ~/.trainmaster.",
)
_OUTPUT = click.option("-o", "--output", default="table", metavar="table|json", help="table or json; default table.")


def command(
    show: Callable[[Any], None] | None = None, output: bool = True, **settings: Any
) -> Callable[[Callable[..., Any]], click.Command]:
    """A click command of a function that may take `client`, `home` and `output` beside its own options.

    What it returns is printed as JSON, or by `show`; None: it has printed by itself. Looking for the service is left to
    the client's first request, so that bad options are told first. `settings` are click's.
    """

    def decorate(function: Callable[..., Any]) -> click.Command:
        wanted = inspect.signature(function).parameters

        @wraps(function)
        def run(home: Path | None, output: str = "table", **values: Any) -> None:
            check_output(output)
            values.update({name: value for name, value in (("home", home), ("output", output)) if name in wanted})
            with ExitStack() as stack:
                if "client" in wanted:
                    values["client"] = stack.enter_context(Client.find(home))
                answer = function(**values)
            if answer is None:
                return
            if output == "json" or show is None:
                click.echo(to_json(answer), nl=False)
            else:
                show(answer)

        made = one_message(run)
        return click.command(**settings)(_HOME(_OUTPUT(made) if output else made))

    return decorate


JOB = click.argument("job", metavar="JOB")
