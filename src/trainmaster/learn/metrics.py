"""Progress of a training run as files: a CSV always, TensorBoard events where its package is installed."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

COLUMNS: tuple[str, ...] = (
    "iteration", "completion_s", "validation_s", "teacher_s", "entropy", "value_error", "decisions", "lessons", "loss",
)  # fmt: skip


class MetricsWriter:
    """Appends rows to `metrics.csv` in a folder, and to TensorBoard's events beside it."""

    def __init__(self, folder: Path, resume: bool = False, columns: Sequence[str] = COLUMNS) -> None:
        self.path = folder / "metrics.csv"
        new = not (resume and self.path.exists())
        self._stream = self.path.open("w" if new else "a", newline="", encoding="utf-8")
        self._csv = csv.DictWriter(self._stream, columns, extrasaction="ignore", lineterminator="\n")
        if new:
            self._csv.writeheader()
        self._board: Any = None
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            return
        self._board = SummaryWriter(str(folder / "tensorboard"))

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
