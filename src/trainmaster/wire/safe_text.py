"""Text from jobs and users made harmless to a terminal: no control sequence reaches it."""

from __future__ import annotations

import re

_COLOURS = re.compile(r"\x1b\[[0-9;:]*m")
"""Select-graphic-rendition sequences: harmless, but noise where they are not wanted."""
_BIDI = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
"""Marks that reorder what is shown, so that a name reads as another one."""
_UNSAFE = re.compile(f"[\x00-\x1f\x7f-\x9f\u2028\u2029\ufeff{_BIDI}\ud800-\udfff]")
_UNSAFE_IN_TEXT = re.compile(f"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ufeff{_BIDI}\ud800-\udfff]")


def _visible(match: re.Match[str]) -> str:
    code = ord(match.group())
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def safe_line(text: str) -> str:
    """One line: control characters, line ends too, become visible escapes such as `\\x1b`."""
    return _UNSAFE.sub(_visible, text)


def safe_block(text: str) -> str:
    """Lines of a log: line ends and tabs stay, colours go, a progress bar's `\\r` starts a line."""
    plain = _COLOURS.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    return _UNSAFE_IN_TEXT.sub(_visible, plain)
