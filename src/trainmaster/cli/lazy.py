"""Sub-commands that are imported when they are called, so that `queue` does not wait for the simulator's kernels."""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from trainmaster.cli.quick import QuickCommand, QuickParameters


class Entry(NamedTuple):
    """One line of `trainmaster --help`: where the command lives and what it does."""

    name: str
    target: str
    """`file:attribute` in this folder: a function, or a `typer.Typer` that holds several commands."""
    panel: str
    help: str
    """The first line of the command's own help; a test holds them together."""
    takes_command: bool = False
    """Everything from the first argument on belongs to the user's program, not to us."""

    @property
    def module(self) -> str:
        return f"trainmaster.cli.{self.target.partition(':')[0]}"


class Deferred(TyperCommand):
    """Stands in the list of commands; gives way to the real command when that is parsed."""

    def __init__(self, entry: Entry) -> None:
        super().__init__(entry.name, help=entry.help, rich_help_panel=entry.panel)
        self.entry = entry

    def load(self) -> Any:
        found = getattr(import_module(self.entry.module), self.entry.target.partition(":")[2])
        if isinstance(found, typer.Typer):
            return typer.main.get_command(found)
        alone = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
        settings: dict[str, Any] = {}
        if self.entry.takes_command:
            settings = {"allow_interspersed_args": False}
        alone.command(self.entry.name, cls=QuickCommand, context_settings=settings)(found)
        return typer.main.get_command(alone)

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        return self.load().make_context(info_name, args, parent=parent, **extra)


def group_of(entries: tuple[Entry, ...]) -> type[TyperGroup]:
    """A class of group (as `typer.Typer(cls=...)` wants it) that offers these commands."""

    class LazyGroup(QuickParameters, TyperGroup):
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            for entry in entries:
                self.add_command(Deferred(entry), entry.name)

    return LazyGroup
