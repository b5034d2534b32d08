"""Tables on a terminal of any width, and plain columns in a pipe."""

from __future__ import annotations

import os
import sys
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from trainmaster.cli.safe_text import safe_line

_PIPE_COLUMNS = 400
"""Nothing is cut in a pipe unless COLUMNS asks for it."""

STATE_STYLES = {
    "running": "green",
    "pending": "yellow",
    "paused": "cyan",
    "finished": "dim",
    "failed": "red",
    "cancelled": "dim",
    "rejected": "red",
}


def screen() -> Console:
    """The standard output; colours, if any, on terminals only."""
    console = Console(highlight=False, soft_wrap=False)
    if not console.is_terminal and not os.environ.get("COLUMNS", "").isdigit():
        console = Console(highlight=False, width=_PIPE_COLUMNS)
    return console


def show(*renderables: RenderableType) -> None:
    """Print; in a pipe without the blanks that fill a line up."""
    console = screen()
    if console.is_terminal:
        console.print(*renderables, sep="\n")
        return
    with console.capture() as kept:
        console.print(*renderables, sep="\n")
    for line in kept.get().splitlines():
        print(line.rstrip())


def show_line(text: str, style: str = "") -> None:
    """One line, cut at the edge of a terminal."""
    screen().print(cell(text, style), no_wrap=True, overflow="ellipsis")


def columns(*headers: str, right: tuple[str, ...] = (), fill: str = "") -> Table:
    """A table without rules: `right` columns hold numbers, `fill` takes the room that is left and is cut to it."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", expand=bool(fill))
    for header in headers:
        side = "right" if header in right else "left"
        table.add_column(header, justify=side, no_wrap=True, overflow="ellipsis", ratio=1 if header == fill else None)
    return table


def cell(value: Any, style: str = "") -> Text:
    """Text of unknown origin: no markup, no control characters."""
    return Text(safe_line("" if value is None else str(value)), style=style)


def one_line(value: str, style: str = "") -> Text:
    """Cut at the edge of the screen, never wrapped."""
    text = cell(value, style)
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def state_cell(state: str) -> Text:
    return cell(state, STATE_STYLES.get(state, ""))


def bar(fraction: float, width: int) -> str:
    """`████▌     ` in eighths, or `####--` where the terminal knows no blocks."""
    fraction = min(1.0, max(0.0, fraction))
    if "utf" not in (sys.stdout.encoding or "").lower():
        full = round(fraction * width)
        return "#" * full + "-" * (width - full)
    eighths = round(fraction * width * 8)
    full, rest = divmod(eighths, 8)
    text = "█" * full + (" ▏▎▍▌▋▊▉"[rest] if rest else "")
    return text.ljust(width, "░" if width > 0 else "")[:width]
