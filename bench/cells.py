"""Cells of a study: each computed once, kept in a file, so that a study that was cut short goes on where it was.

A cell is a key (JSON data) and a function. Results are one JSON line each in `cells.jsonl` beside a digest of
the code they hang on: after a change there the file begins anew.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

import trainmaster

Key = tuple[Any, ...]


def code_digest(*folders: str) -> str:
    """Digest of the modules in these folders of the package."""
    root = Path(trainmaster.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(file for folder in folders for file in (root / folder).rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def run_cells(cells: Iterable[tuple[Key, Callable[[], Any]]], out: Path, digest: str) -> dict[Key, Any]:
    """Every cell's result; those in `out/cells.jsonl` from the same code are not computed again."""
    wanted = dict(cells)
    kept = out / "cells.jsonl"
    known = _read(kept, digest)
    missing = [key for key in wanted if key not in known]
    lines = [json.dumps({"code": digest}), *(json.dumps([key, result]) for key, result in known.items())]
    kept.write_text("\n".join(lines) + "\n")
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TimeRemainingColumn(),
    )  # fmt: skip
    with (
        Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as bar,
        kept.open("a") as end,
    ):
        task = bar.add_task("cells", total=len(wanted), completed=len(wanted) - len(missing))
        for done, key in enumerate(missing):
            bar.update(task, description=" ".join(str(part) for part in key)[:60])
            known[key] = json.loads(json.dumps(wanted[key]()))
            end.write(json.dumps([key, known[key]]) + "\n")
            end.flush()
            bar.advance(task)
            if bar.disable and (done % 50 == 49 or done + 1 == len(missing)):
                print(f"{len(wanted) - len(missing) + done + 1} of {len(wanted)} cells", flush=True)
    return {key: known[key] for key in wanted}


def _read(path: Path, digest: str) -> dict[Key, Any]:
    if not path.exists():
        return {}
    lines = path.read_text().splitlines()
    if not lines or json.loads(lines[0]) != {"code": digest}:
        return {}
    known: dict[Key, Any] = {}
    for line in lines[1:]:
        try:
            key, result = json.loads(line)
        except ValueError:  # the last line of a run that was killed
            break
        known[tuple(key)] = result
    return known
