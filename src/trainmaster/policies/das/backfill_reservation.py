"""Waiting for room: when a job that cannot start now is expected to, and who may start meanwhile.

A gang that some machine could take whole waits for such a machine while others run; it is not split over several.
Down the scores, the first job that cannot start is held for: a job below it starts on the machines that it waits
for only if it is expected to be gone by then, or takes what will be left over. This is EASY backfilling (Lifka,
1995) with the agent's order in place of that of arrival; an agent that wants nobody held for scores those that do not
fit below those that do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainmaster.core.arrays import Bools, Ints
from trainmaster.policies.das import scene_passes
from trainmaster.policies.das.features import Scene

BACKFILL_COUNTED = 0.5
"""Part of its expected duration for which a job is taken to stand in the way of one that is held for: expectations
of when room comes free are as unsure, and strictness leaves GPUs idle. Chosen on validation streams."""


@dataclass
class Hold:
    """What a job waits for."""

    machines: Bools
    until_s: float
    """From now, as expected."""
    spare: int
    """GPUs on these machines that will be left over when it starts."""

    def bars(self, scene: Scene, row: int) -> Bools:
        """Machines on which a pending job may not start because of this."""
        if scene.need[row] <= self.spare:
            return np.zeros(len(scene.free), np.bool_)
        return self.machines & ~self._gone_by_then(scene, row)[scene.type_of]

    def note_start(self, scene: Scene, row: int, taken: Ints) -> None:
        """Somebody has started beside; if he stays, less is left over."""
        gpu_type = int(scene.type_of[np.argmax(taken)])
        if not self._gone_by_then(scene, row)[gpu_type]:
            self.spare -= int(taken[self.machines].sum())

    def _gone_by_then(self, scene: Scene, row: int) -> Bools:
        """By type of machine."""
        counted_s = BACKFILL_COUNTED * np.exp(scene.log_time[row]) / np.maximum(scene.speed[row], 1e-12)
        return counted_s <= self.until_s


def hold_for(scene: Scene, row: int) -> Hold | None:
    """Where the first room for a pending job is expected; None: it could start now, or nobody's end would help."""
    until_s, machine, gpu_type, spare = scene.earliest(row)
    if not 0.0 < until_s < np.inf:
        return None
    machines = scene.type_of == gpu_type
    if machine >= 0:
        machines = np.arange(len(scene.free)) == machine
    return Hold(machines, until_s, spare)


def startable(scene: Scene, hold: Hold | None) -> Bools:
    """Pending jobs of which each, alone, could start now."""
    nowhere = np.zeros(len(scene.free), np.bool_)
    held, until_s, spare = (hold.machines, hold.until_s, hold.spare) if hold is not None else (nowhere, 0.0, 0)
    counted_s = BACKFILL_COUNTED * np.exp(scene.log_time)
    out = np.zeros(len(scene.need), np.bool_)
    scene_passes.startable(
        scene.need, scene.whole_only, scene.usable, counted_s, scene.free, scene.type_of, held, until_s, spare, out
    )
    return out
