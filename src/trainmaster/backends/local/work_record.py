"""How far a job is: what its members report, kept in work.json for its next incarnation."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from trainmaster.backends.local.layout import read_json, replace_json
from trainmaster.gang.protocol import Progress


class WorkRecord:
    """`known` is False until a member has reported: a plain command never does."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.saved = self.at_start = self.done = saved_work(path)
        self.rate: float | None = None
        self.loss: float | None = None
        self.known = False
        self._reporter = ""

    def report(self, member: str, progress: Progress, is_alive: Callable[[str], bool]) -> bool:
        """One member speaks for the gang for as long as it lives; False when this was another one.

        A checkpoint may be the affair of others (servers): that there is a newer one is believed of anybody.
        """
        speaks = self._reporter in ("", member) or not is_alive(self._reporter)
        if progress.saved is not None and (progress.saved != self.saved if speaks else progress.saved > self.saved):
            self.saved = progress.saved
            with contextlib.suppress(OSError):  # a full disk: the checkpoint may be there, our note of it is not
                replace_json(self._path, {"saved": self.saved})
        if speaks:
            self._reporter, self.known = member, True
            self.done, self.rate, self.loss = progress.work_done, progress.rate, progress.loss
        return speaks


def saved_work(path: Path) -> float:
    """What the last checkpoint of the job holds; 0 when nobody has said."""
    saved = (read_json(path) or {}).get("saved", 0.0)
    return float(saved) if isinstance(saved, int | float) else 0.0
