"""Plain tables: as wide as the terminal, coloured on terminals only, whole lines in a pipe.

Written out by hand: drawing a hundred rows with a library takes longer than all else that `trainmaster queue` does.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple
from unicodedata import combining, east_asian_width

from trainmaster.wire.safe_text import safe_line

_PIPE_COLUMNS = 10_000
"""Nothing is cut in a pipe unless COLUMNS asks for it."""
_GAP = "  "
_LEAST = 10
"""The last column keeps so many letters, whatever the others want."""
_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
STATE_STYLES = {
    "running": "green",
    "pending": "yellow",
    "paused": "cyan",
    "finished": "dim",
    "failed": "red",
    "stalled": "red",
    "cancelled": "dim",
    "rejected": "red",
}


class Cell(NamedTuple):
    """Harmless text and how it is shown."""

    text: str
    style: str = ""


def cell(value: Any, style: str = "") -> Cell:
    """Text of unknown origin without its control characters."""
    return Cell(safe_line("" if value is None else str(value)), style)


def state_cell(state: str) -> Cell:
    return cell(state, STATE_STYLES.get(state, ""))


def screen_width() -> int:
    if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit():
        return shutil.get_terminal_size().columns
    return _PIPE_COLUMNS


def coloured() -> bool:
    """On terminals that can, unless https://no-color.org says no."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "") != "dumb"


def paint(text: str, style: str, colours: bool) -> str:
    return f"\x1b[{_CODES[style]}m{text}\x1b[0m" if style and colours and text else text


def text_width(text: str) -> int:
    """Columns that a text takes on a terminal."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(letter) else 2 if east_asian_width(letter) in "WF" else 1 for letter in text)


def cut(text: str, width: int) -> str:
    """At most so many columns, with an ellipsis where something is missing."""
    if text_width(text) <= width:
        return text
    kept = ""
    for letter in text[:width]:
        if text_width(kept + letter) > width - 1:
            break
        kept += letter
    return f"{kept}…"


def table_lines(
    headers: Sequence[str], rows: Sequence[Sequence[Cell]], width: int, right: Iterable[str] = (), colours: bool = False
) -> list[str]:
    """A line per row, none wrapped: the last column gives way first, then the widest of the others."""
    texts = [[Cell(header, "bold") for header in headers], *rows]
    widths = [max(text_width(row[k].text) for row in texts) for k in range(len(headers))]
    room = width - len(_GAP) * (len(widths) - 1)
    widths[-1] = max(min(widths[-1], room - sum(widths[:-1])), min(widths[-1], _LEAST))
    while sum(widths) > room and max(widths) > _LEAST:
        widest = max(range(len(widths)), key=lambda k: widths[k])
        widths[widest] -= 1
    sides = [header in set(right) for header in headers]
    lines = []
    for row in texts:
        parts = []
        for at, (text, style) in enumerate(row):
            shown = cut(text, widths[at])
            fill = " " * (widths[at] - text_width(shown))
            last = at == len(widths) - 1 and not sides[at]
            painted = paint(shown, style, colours)
            parts.append(f"{fill}{painted}" if sides[at] else painted if last else f"{painted}{fill}")
        lines.append(_GAP.join(parts).rstrip())
    return lines


def show_table(headers: Sequence[str], rows: Sequence[Sequence[Cell]], right: Iterable[str] = ()) -> None:
    write_lines(table_lines(headers, rows, screen_width(), right, coloured()))


def show_facts(facts: Sequence[tuple[Cell, Cell]]) -> None:
    """Labels and texts; long texts go on below themselves."""
    from textwrap import wrap

    indent = max(text_width(label.text) for label, _ in facts) + len(_GAP)
    room = max(20, screen_width() - indent)
    lines = []
    for label, (text, style) in facts:
        pieces = wrap(text, room, break_on_hyphens=False) if text_width(text) > room else [text]
        for number, piece in enumerate(pieces):
            head = "" if number else label.text
            fill = " " * (indent - text_width(head))
            lines.append(f"{paint(head, label.style, coloured())}{fill}{paint(piece, style, coloured())}".rstrip())
    write_lines(lines)


def show_line(text: str, style: str = "") -> None:
    """One line, cut at the edge of a terminal."""
    write_lines([paint(cut(safe_line(text), screen_width()), style, coloured())])


def write_lines(lines: Sequence[str]) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


def bar(fraction: float, width: int) -> str:
    """`████▌░░░` in eighths, or `####----` where the output knows no blocks."""
    fraction = min(1.0, max(0.0, fraction))
    if "utf" not in (sys.stdout.encoding or "").lower():
        full = round(fraction * width)
        return "#" * full + "-" * (width - full)
    full, rest = divmod(round(fraction * width * 8), 8)
    return ("█" * full + (" ▏▎▍▌▋▊▉"[rest] if rest else "")).ljust(width, "░")
