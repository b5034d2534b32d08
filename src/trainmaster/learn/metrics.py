"""Progress of a training run as files: a CSV always, TensorBoard events where its package is installed."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


class MetricsWriter:
    """Appends rows to `metrics.csv` in a folder, and to TensorBoard's events beside it.

    `resumed_at`: the iteration at which a run goes on, None for a new one. What an interrupted run wrote of later
    iterations is dropped: they are played again.
    """

    def __init__(self, folder: Path, columns: Sequence[str], resumed_at: int | None = None) -> None:
        self.path = folder / "metrics.csv"
        new = resumed_at is None or not self.path.exists()
        if resumed_at is not None and not new:
            _cut(self.path, resumed_at)
        self._stream = self.path.open("w" if new else "a", newline="", encoding="utf-8")
        self._csv = csv.DictWriter(self._stream, columns, extrasaction="ignore", lineterminator="\n")
        if new:
            self._csv.writeheader()
        self._board: Any = None
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            return
        purged = None if resumed_at is None else resumed_at + 1
        self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=purged)

    def write(self, row: Mapping[str, float]) -> None:
        self._csv.writerow({key: f"{value:.6g}" for key, value in row.items()})
        self._stream.flush()
        if self._board is not None:
            for key, value in sorted(row.items()):
                if key != "iteration" and value == value:
                    self._board.add_scalar(key, value, int(row["iteration"]))

    def close(self) -> None:
        self._stream.close()
        if self._board is not None:
            self._board.close()


def _cut(path: Path, iteration: int) -> None:
    """Keep the heading and the rows up to an iteration; also drops a line that was cut off."""
    heading, *rows = path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True) or ["\n"]
    kept = [row for row in rows if row.endswith("\n") and _iteration(row) <= iteration]
    shorter = path.with_name(f".{path.name}")
    shorter.write_text("".join([heading, *kept]), encoding="utf-8")
    shorter.replace(path)


def _iteration(row: str) -> float:
    try:
        return float(row.partition(",")[0])
    except ValueError:
        return math.inf
