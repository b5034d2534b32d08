"""A group of commands that are imported when they are called, so that `queue` does not wait for the simulator."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Any, NamedTuple

import click


class Entry(NamedTuple):
    """One line of `trainmaster --help`: where the command is and what it does."""

    name: str
    target: str
    """`folder.file:attribute` below `cli`: a click command, or a function or app of typer."""
    panel: str
    help: str
    """The first line of the command's own help; a test holds them together."""
    takes_command: bool = False
    """Everything from the first argument on belongs to the user's program, not to us."""

    @property
    def module(self) -> str:
        return f"trainmaster.cli.{self.target.partition(':')[0]}"

    def load(self) -> Any:
        """The command: of click, or of typer, which has a click of its own."""
        found = getattr(import_module(self.module), self.target.partition(":")[2])
        if isinstance(found, click.Command):
            return found
        import typer

        if not isinstance(found, typer.Typer):
            alone = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
            alone.command(self.name, context_settings={"allow_interspersed_args": not self.takes_command})(found)
            found = alone
        return typer.main.get_command(found)


class _OfTyper(click.Command):
    """Passes all arguments on to a command of typer."""

    def __init__(self, entry: Entry) -> None:
        arguments = click.Argument(["arguments"], nargs=-1, type=click.UNPROCESSED)
        settings = {"ignore_unknown_options": True, "allow_interspersed_args": False, "help_option_names": []}
        super().__init__(entry.name, params=[arguments], help=entry.help, context_settings=settings)
        self._entry = entry

    def invoke(self, ctx: click.Context) -> Any:
        return self._entry.load()(args=list(ctx.params["arguments"]), prog_name=ctx.command_path)


class LazyGroup(click.Group):
    """Knows its commands by name, panel and help without importing them."""

    def __init__(self, entries: Sequence[Entry], **settings: Any) -> None:
        super().__init__(**settings)
        self.entries = {entry.name: entry for entry in entries}

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(self.entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        entry = self.entries.get(cmd_name)
        if entry is None:
            return None
        if entry.target.startswith("live."):
            found = entry.load()
            return found if isinstance(found, click.Command) else _OfTyper(entry)
        return _OfTyper(entry)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and not args[0].startswith("-") and args[0] not in self.entries:
            close = get_close_matches(args[0], self.entries)
            hint = f" Did you mean '{close[0]}'?" if close else ""
            ctx.fail(f"No such command '{args[0]}'.{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        panels: dict[str, list[tuple[str, str]]] = {}
        for entry in self.entries.values():
            panels.setdefault(entry.panel, []).append((entry.name, entry.help))
        for panel, rows in panels.items():
            with formatter.section(panel):
                formatter.write_dl(rows)
