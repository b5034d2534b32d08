"""Whether waiting pays: for a faster type rather than a slow one now, for one machine rather than several now.

Faster type. Pending jobs are laid on the types in order of expected area, each where it is expected to end first, GPUs
coming free as running jobs are expected to end (earliest completion time; Ibarra and Kim, 1977). A job may start on a
type now only if it would not end there much later than where it is laid. With a long queue that is everywhere, with a
short one a job does not take five times as long for want of a few minutes' patience.

One machine. A gang on several machines loses part of its speed. It is not split while a machine that takes it whole is
expected soon enough, as measured by what it would lose.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trainmaster.core.arrays import Bools
from trainmaster.policies.das.features import Scene
from trainmaster.policies.das.scene_passes import open_types

LATER = 2.0
"""A job starts on a type now if it ends there no later than this many times the earliest."""
PATIENCE = 3.0
"""Waiting for a whole machine may take this many times what splitting would cost the gang itself: others gain too."""


def settle(scene: Scene, could_whole: Bools) -> Scene:
    """Set where each pending job may start and whether it may be split; `could_whole`: an empty machine would do."""
    if not len(scene.need):
        return scene
    if scene.types > 1:
        scene.usable = np.where(_open_types(scene), scene.speed, 0.0)
    scene.whole_only = could_whole & _whole_soon(scene)
    return scene


def _open_types(scene: Scene) -> Bools:
    free_at, count = _free_at(scene)
    time_s = np.exp(scene.log_time)
    order = np.argsort(scene.log_time + np.log(np.maximum(scene.need, 1)), kind="stable")
    out = np.zeros(scene.speed.shape, np.bool_)
    open_types(order, scene.need, time_s, scene.speed, free_at, count, LATER, out)
    return out


def _free_at(scene: Scene) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """When each GPU of a type is expected to come free, sorted, and how many there are."""
    parts, gpu_types = scene.parts, scene.types
    free = scene.by_type(scene.free)
    held = np.bincount(scene.type_of[parts.machine], weights=parts.gpus, minlength=gpu_types).astype(np.int64)
    count = free + held
    out = np.full((gpu_types, max(int(count.max()), 1)), np.inf)
    for gpu_type in range(gpu_types):
        here = scene.type_of[parts.machine] == gpu_type
        out[gpu_type, : free[gpu_type]] = 0.0
        out[gpu_type, free[gpu_type] : count[gpu_type]] = np.repeat(parts.left_s[here], parts.gpus[here])
    return out, count


def _whole_soon(scene: Scene) -> Bools:
    """Whether a machine that takes a pending job whole is expected while waiting for it pays."""
    known: dict[tuple[int, bytes], float] = {}
    out = np.zeros(len(scene.need), np.bool_)
    lost_s = PATIENCE * (1.0 / scene.kept - 1.0) * np.exp(scene.log_time)
    for row in range(len(out)):
        key = (int(scene.need[row]), scene.usable[row].tobytes())
        if key not in known:
            known[key] = scene.earliest(row, whole=True)[0]
        out[row] = known[key] <= lost_s[row]
    return out
