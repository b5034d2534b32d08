"""Text from jobs and users for tables and commands of the terminal; see `trainmaster.wire.safe_text`."""

from __future__ import annotations

from trainmaster.wire.safe_text import safe_line


def as_text(text: str) -> str:
    """One line for a table or a printed line: what reads as markup is text."""
    from rich.markup import escape

    return escape(safe_line(text))


def shell_words(words: list[str]) -> str:
    """A command as it could be typed again, harmless to show."""
    from shlex import quote

    return safe_line(" ".join(quote(word) for word in words))
