"""Errors a user can cause. Each says what was wrong, where, what was expected and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

MAX_WHAT = 1_000
"""Characters."""


class TrainmasterError(Exception):
    """Root of every error that is shown to a user as one message, without a traceback."""


@dataclass
class InputError(TrainmasterError):
    """Bad input: the command exits with code 2 and has changed nothing.

    `what` states the fault, `expected` what would have been right, `remedy` what to do about it;
    `file`, `line` (1-based) and `column` (a name) say where, when there is a where.
    """

    what: str
    expected: str = ""
    remedy: str = ""
    file: str | Path | None = None
    line: int | None = None
    column: str | None = None

    def __post_init__(self) -> None:
        if len(self.what) > MAX_WHAT:  # it may cite what somebody gave
            self.what = f"{self.what[:MAX_WHAT]}..."

    def __str__(self) -> str:
        where = ""
        if self.file is not None:
            where = str(self.file)
            if self.line is not None:
                where += f":{self.line}"
            if self.column is not None:
                where += f", column '{self.column}'"
            where += ": "
        elif self.column is not None:
            where = f"'{self.column}': "
        text = where + self.what
        if self.expected:
            text += f"; expected {self.expected}"
        if self.remedy:
            text += f". {self.remedy}"
        return text
