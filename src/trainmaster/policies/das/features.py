"""What the two agents see: pending jobs, machines, and a job beside a machine. The same for training and decisions.

Everything here could be known to a scheduler: requests, waiting times, what is free and who runs where, relative
speeds of the types, and an expectation of durations (declared, or from jobs that ended before).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numba import njit

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

JOB_FEATURES = (
    "log_need", "share", "log_time", "log_area", "deviation", "log_waited", "relative_wait", "fits", "fits_one",
    "rank_time", "rank_area", "log_pending",
)  # fmt: skip
MACHINE_FEATURES = ("free", "log_free", "speed", "price", "jobs", "log_left", "free_of_type", "free_of_rack")
PAIR_FEATURES = (
    "fits", "left_over", "exact", "free", "use", "speed", "price", "log_time", "log_need", "ends_later", "free_in_all",
    "pressure", "free_of_type", "free_of_rack", "untouched",
)  # fmt: skip
N_JOB, N_MACHINE, N_PAIR = len(JOB_FEATURES), len(MACHINE_FEATURES), len(PAIR_FEATURES)


@dataclass
class Scene:
    """Machines and pending jobs at one moment, as arrays. `free` changes while jobs are placed."""

    gpus: Ints
    free: Ints
    """Whole GPUs by machine; 0 on machines that are down."""
    type_of: Ints
    rack_of: Ints
    price: Floats
    """By type, relative to the mean; 1 where nobody said."""
    jobs_on: Ints
    """Running jobs by machine."""
    left_s: Floats
    """Mean expected time left of the jobs on a machine; 0: none."""
    need: Ints
    """GPUs of each pending job, in order of arrival."""
    each: Ints
    """GPUs of one of its workers, which must lie on one machine."""
    speed: Floats
    """By pending job and type, relative to its fastest; 0: it cannot run there."""
    log_time: Floats
    """Logarithm of the expected duration (s) on its fastest type."""
    deviation: Floats
    """How far off that logarithm usually is."""
    waited_s: Floats

    @property
    def types(self) -> int:
        return len(self.price)

    def by_type(self, per_machine: Ints) -> Ints:
        return np.bincount(self.type_of, weights=per_machine, minlength=self.types).astype(np.int64)


def job_features(scene: Scene) -> Floats:
    """One row per pending job."""
    n = len(scene.need)
    out = np.zeros((n, N_JOB))
    if n == 0:
        return out
    log_need = np.log2(np.maximum(scene.need, 1))
    area = scene.log_time + np.log(np.maximum(scene.need, 1))
    free_by_type = scene.by_type(scene.free)
    largest = np.zeros(scene.types, np.int64)
    np.maximum.at(largest, scene.type_of, scene.free)
    can = scene.speed > 0
    out[:, 0] = log_need / 4.0
    out[:, 1] = scene.need / max(int(scene.gpus.sum()), 1)
    out[:, 2] = (scene.log_time - 8.0) / 2.0
    out[:, 3] = (area - 9.0) / 2.0
    out[:, 4] = scene.deviation
    out[:, 5] = np.log1p(scene.waited_s / 60.0) / 5.0
    out[:, 6] = np.log1p(scene.waited_s / np.exp(scene.log_time)) / 3.0
    out[:, 7] = (can & (free_by_type >= scene.need[:, None])).any(axis=1)
    out[:, 8] = (can & (largest >= scene.need[:, None])).any(axis=1)
    out[:, 9] = _ranks(scene.log_time)
    out[:, 10] = _ranks(area)
    out[:, 11] = np.log1p(n) / 5.0
    return out


def _ranks(values: Floats) -> Floats:
    """0 for the smallest to 1 for the largest; equal values rank alike."""
    ordered = np.sort(values)
    return np.searchsorted(ordered, values) / max(len(values) - 1, 1)


def machine_features(scene: Scene) -> Floats:
    """One row per machine."""
    out = np.zeros((len(scene.gpus), N_MACHINE))
    gpus = np.maximum(scene.gpus, 1)
    mean_speed = scene.speed.mean(axis=0) if len(scene.speed) else np.ones(scene.types)
    out[:, 0] = scene.free / gpus
    out[:, 1] = np.log2(1.0 + scene.free) / 3.0
    out[:, 2] = mean_speed[scene.type_of]
    out[:, 3] = scene.price[scene.type_of]
    out[:, 4] = scene.jobs_on / 4.0
    out[:, 5] = np.log1p(scene.left_s / 60.0) / 5.0
    out[:, 6], out[:, 7] = _free_around(scene)
    return out


def _free_around(scene: Scene) -> tuple[Floats, Floats]:
    """Free part of the GPUs of a machine's type, and of its rack."""
    of_type = scene.by_type(scene.free) / np.maximum(scene.by_type(scene.gpus), 1)
    in_rack = np.bincount(scene.rack_of, weights=scene.free) / np.maximum(
        np.bincount(scene.rack_of, weights=scene.gpus), 1
    )
    return of_type[scene.type_of], in_rack[scene.rack_of]


def pair_features(scene: Scene, job: int) -> Floats:
    """One row per machine, for one pending job. Compiled: it is asked for every job that starts."""
    return _pairs(
        scene.gpus, scene.free, scene.type_of, scene.rack_of, scene.speed[job], scene.price, scene.jobs_on,
        np.log1p(scene.left_s), int(scene.need[job]), float(scene.log_time[job]),
        np.log2(max(int(scene.need[job]), 1)) / 4.0, np.log1p(len(scene.need)) / 5.0,
    )  # fmt: skip


@njit(cache=True)
def _pairs(gpus, free, type_of, rack_of, speed, price, jobs_on, log_left, need, log_time, log_need, pressure):
    m = gpus.size
    free_of_type, all_of_type = np.zeros(price.size), np.zeros(price.size)
    racks = rack_of.max() + 1 if m else 0
    free_of_rack, all_of_rack = np.zeros(racks), np.zeros(racks)
    for k in range(m):
        free_of_type[type_of[k]] += free[k]
        all_of_type[type_of[k]] += gpus[k]
        free_of_rack[rack_of[k]] += free[k]
        all_of_rack[rack_of[k]] += gpus[k]
    free_in_all = free_of_type.sum() / max(all_of_type.sum(), 1.0)
    out = np.zeros((m, N_PAIR))
    for k in range(m):
        whole = max(gpus[k], 1)
        over = free[k] - need
        out[k, 0] = over >= 0
        out[k, 1] = min(max(over / whole, -1.0), 1.0)
        out[k, 2] = over == 0
        out[k, 3] = free[k] / whole
        out[k, 4] = 1.0 - out[k, 3]
        out[k, 5] = speed[type_of[k]]
        out[k, 6] = price[type_of[k]]
        out[k, 7] = (log_time - 8.0) / 2.0
        out[k, 8] = log_need
        if jobs_on[k] > 0:
            # Whether the others on the machine end long after this job would: those beside it stay.
            out[k, 9] = min(max(log_left[k] - log_time, -3.0), 3.0) / 3.0
        out[k, 10] = free_in_all
        out[k, 11] = pressure
        out[k, 12] = free_of_type[type_of[k]] / max(all_of_type[type_of[k]], 1.0)
        out[k, 13] = free_of_rack[rack_of[k]] / max(all_of_rack[rack_of[k]], 1.0)
        out[k, 14] = free[k] == gpus[k]
    return out


def rooms(scene: Scene, job: int) -> Ints:
    """Workers of a pending job that each machine could take."""
    each = int(scene.each[job])
    room = scene.free // each if each > 0 else np.full(len(scene.free), 1 << 20)
    return np.where(scene.speed[job][scene.type_of] > 0, room, 0)


def machines_for(room: Ints, workers: int, type_of: Ints, affinity: Floats) -> tuple[int, Ints] | None:
    """Type and machines for a gang: the machine it likes best among those that take it whole; else, on the type of the
    machine it likes best where the type has room, machines down the affinity until it is whole. None: it does not fit.
    """
    whole = np.flatnonzero(room >= workers)
    if len(whole):
        best = whole[np.argmax(affinity[whole])]
        return int(type_of[best]), np.array([best])
    by_type = np.bincount(type_of, weights=room)
    usable = np.flatnonzero((room > 0) & (by_type[type_of] >= workers))
    if not len(usable):
        return None
    order = usable[np.argsort(-affinity[usable], kind="stable")]
    kind = int(type_of[order[0]])
    order = order[type_of[order] == kind]
    enough = int(np.searchsorted(np.cumsum(room[order]), workers)) + 1
    return kind, order[:enough]


def phi_of(speed: Floats, free: Ints, own: Ints, gpus: Ints, need: int) -> Floats:
    """What the walk compares machines by, for a job that asks for `need` GPUs and holds `own` already: its speed on
    the type, use by others, and the part of the machine that it takes."""
    whole = np.maximum(gpus, 1)
    return np.stack([speed, (gpus - free - own) / whole, np.minimum(need, gpus) / whole], axis=1)
