"""How far an attempt is, by what its members report."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from trainmaster.gang.protocol import Progress


@dataclass
class Work:
    """`saved` is what the last checkpoint holds; NaN: nobody has said. `known` is False until a member has reported."""

    saved: float = math.nan
    done: float = math.nan
    rate: float | None = None
    loss: float | None = None
    total: float | None = None
    """The amount of work in all, if a member has said so."""
    known: bool = False
    checkpoints: bool = False
    """A member says that the job saves and continues from checkpoints."""
    _reporter: str = ""

    def report(self, member: str, progress: Progress, is_alive: Callable[[str], bool]) -> bool:
        """One member speaks for the gang for as long as it lives; False: this was another one.

        Checkpoints may be written by others (servers): a newer one is believed of any member.
        """
        speaks = self._reporter in ("", member) or not is_alive(self._reporter)
        self.checkpoints = self.checkpoints or progress.saved is not None
        self.total = progress.total or self.total
        if progress.saved is not None and (speaks or not progress.saved <= self.saved):
            self.saved = progress.saved
        if speaks:
            self._reporter, self.known = member, True
            self.done, self.rate, self.loss = progress.work_done, progress.rate, progress.loss
        return speaks
