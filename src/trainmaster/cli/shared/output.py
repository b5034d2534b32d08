"""What all commands share at the edge: one message for bad input, output formats, progress, files."""

from __future__ import annotations

import errno
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

from trainmaster.model.errors import InputError, TrainmasterError
from trainmaster.wire.safe_text import safe_block

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
"""A disk that takes nothing more."""


def one_message(command: Callable[..., None]) -> Callable[..., None]:
    """Bad input ends with one message and exit code 2; any other known fault with exit code 1."""

    @wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except TrainmasterError as error:
            fail(error)
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            where = "" if error.filename is None else f"{error.filename}: "
            fail(TrainmasterError(f"{where}cannot write: {error.strerror}; free some room, or choose another place"))
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            raise SystemExit(130) from None

    return wrapped


def fail(error: TrainmasterError) -> None:
    print(f"error: {safe_block(str(error))}", file=sys.stderr)
    raise SystemExit(2 if isinstance(error, InputError) else 1) from None


def check_output(output: str) -> None:
    if output not in ("table", "json"):
        raise InputError(f"invalid output {output!r}", "table or json", column="--output")


def write_text(path: Path, text: str) -> None:
    """Whole or not at all: a temporary file beside it, then a rename."""
    folder = path.parent
    if not folder.is_dir():
        raise InputError(f"folder '{folder}' does not exist", "an existing folder", "Create it first.", file=path)
    name = None
    try:
        handle, name = tempfile.mkstemp(dir=folder, prefix=f".{path.name}.")
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        os.replace(name, path)
    except OSError as error:
        if name is not None:
            Path(name).unlink(missing_ok=True)
        raise InputError(f"cannot write: {error.strerror}", "a writable place", file=path) from None


def check_writable(path: Path | None) -> None:
    """Refuse an output that cannot be written before long work, not after it."""
    if path is None:
        return
    folder = path.parent
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise InputError("cannot write there", "a file name in an existing, writable folder", file=path)


def to_json(data: Any, indent: int | None = 2) -> str:
    """JSON text with a line end; `indent=None` gives one line."""
    return json.dumps(data, indent=indent, allow_nan=False) + "\n"


@contextmanager
def progress_bar(description: str, total: int) -> Iterator[Callable[..., None]]:
    """A bar with time left on a terminal's error stream, shown only when work takes more than a second."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with bar:
        task = bar.add_task(description, total=total)

        def advance_to(done: int, *_: Any, text: str | None = None) -> None:
            bar.update(task, completed=done, description=text or description)

        yield advance_to
