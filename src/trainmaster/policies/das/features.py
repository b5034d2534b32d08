"""What the two agents see: pending jobs, machines, and a job beside a machine. The same for training and decisions.

Everything here could be known to a scheduler: requests, waiting times, what is free and who runs where, relative
speeds of the types, and an expectation of durations (declared, or from jobs that ended before).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from trainmaster.core.arrays import Bools, Floats, Ints
from trainmaster.policies.das.scene_passes import Machines, earliest

JOB_FEATURES = (
    "log_need", "share", "log_time", "log_area", "deviation", "log_waited", "relative_wait", "fits", "fits_one",
    "rank_time", "rank_area", "log_pending", "log_until",
)  # fmt: skip
MACHINE_FEATURES = ("free", "log_free", "speed", "jobs", "log_left", "free_of_type", "free_of_rack")
PAIR_FEATURES = (
    "fits", "left_over", "exact", "free", "use", "speed", "log_time", "log_need", "ends_later", "free_in_all",
    "pressure", "free_of_type", "free_of_rack", "untouched",
)  # fmt: skip
UNTIL_MAX_S = 1e6
N_JOB, N_MACHINE, N_PAIR = len(JOB_FEATURES), len(MACHINE_FEATURES), len(PAIR_FEATURES)


@dataclass(frozen=True)
class Parts:
    """What running jobs hold on each machine, by when it is expected to come free."""

    machine: Ints
    gpus: Ints
    left_s: Floats

    @classmethod
    def sorted(cls, machine: Ints, gpus: Ints, left_s: Floats) -> Parts:
        order = np.argsort(left_s, kind="stable")
        return cls(machine[order].astype(np.int64), gpus[order].astype(np.int64), left_s[order].astype(np.float64))

    def with_jobs(self, started: list[tuple[Ints, Ints, float]]) -> Parts:
        """And these: machines, GPUs on each, time left."""
        left_s = [np.full(len(where), left) for where, _, left in started]
        return Parts.sorted(
            np.concatenate([self.machine, *(where for where, _, _ in started)]),
            np.concatenate([self.gpus, *(gpus for _, gpus, _ in started)]),
            np.concatenate([self.left_s, *left_s]),
        )


@dataclass
class Scene:
    """Machines and pending jobs at one moment, as arrays. `free` changes while jobs are placed."""

    gpus: Ints
    free: Ints
    """Whole GPUs by machine; 0 on machines that are down."""
    type_of: Ints
    rack_of: Ints
    jobs_on: Ints
    """Running jobs by machine."""
    left_s: Floats
    """Mean expected time left of the jobs on a machine; 0: none."""
    parts: Parts
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
    whole_only: Bools
    """Pending jobs that are not split: a machine that takes them whole is there or expected soon enough."""
    kept: Floats = field(default_factory=lambda: np.ones(0))
    """Part of its speed that each pending job keeps on several machines."""
    usable: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    """As `speed`, but 0 also on types on which a job had better not start now."""
    started: list[tuple[Ints, Ints, float]] = field(default_factory=list)
    """Jobs that have started meanwhile and are not in `parts` yet, which few ask for."""

    def __post_init__(self) -> None:
        if not len(self.kept):
            self.kept = np.ones(len(self.need))
        if not len(self.usable):
            self.usable = self.speed

    @property
    def types(self) -> int:
        return self.speed.shape[1]

    def by_type(self, per_machine: Ints) -> Ints:
        return np.bincount(self.type_of, weights=per_machine, minlength=self.types).astype(np.int64)

    def earliest(self, row: int, whole: bool | None = None) -> tuple[float, int, int, int]:
        """When (s from now) a pending job is expected to fit; the machine, -1 for several; their type; and the GPUs
        that will be left over there. 0: it fits now; inf: it never does. `whole`: on one machine only; not said: as
        the job does."""
        if self.started:
            self.parts, self.started = self.parts.with_jobs(self.started), []
        return earliest(
            int(self.need[row]),
            bool(self.whole_only[row]) if whole is None else whole,
            self.usable[row],
            self.free,
            self.type_of,
            self.parts.machine,
            self.parts.gpus,
            self.parts.left_s,
        )

    def note_start(self, row: int, taken: Ints) -> None:
        """A pending job has started on these GPUs; `free` is the caller's to set."""
        where = np.flatnonzero(taken)
        left_s = float(np.exp(self.log_time[row]) / max(self.speed[row][self.type_of[where[0]]], 1e-12))
        self.started.append((where, taken[where], left_s))


def job_features(scene: Scene) -> Floats:
    """One row per pending job."""
    n = len(scene.need)
    out = np.zeros((n, N_JOB))
    if n == 0:
        return out
    log_need = np.log2(np.maximum(scene.need, 1))
    area = scene.log_time + np.log(np.maximum(scene.need, 1))
    largest = np.zeros(scene.types, np.int64)
    np.maximum.at(largest, scene.type_of, scene.free)
    until_s = _until(scene)
    out[:, 0] = log_need / 4.0
    out[:, 1] = scene.need / max(int(scene.gpus.sum()), 1)
    out[:, 2] = (scene.log_time - 8.0) / 2.0
    out[:, 3] = (area - 9.0) / 2.0
    out[:, 4] = scene.deviation
    out[:, 5] = np.log1p(scene.waited_s / 60.0) / 5.0
    out[:, 6] = np.log1p(scene.waited_s / np.exp(scene.log_time)) / 3.0
    out[:, 7] = until_s == 0
    out[:, 8] = ((scene.usable > 0) & (largest >= scene.need[:, None])).any(axis=1)
    out[:, 9] = _ranks(scene.log_time)
    out[:, 10] = _ranks(area)
    out[:, 11] = np.log1p(n) / 5.0
    out[:, 12] = np.log1p(np.minimum(until_s, UNTIL_MAX_S) / 60.0) / 5.0
    return out


def _until(scene: Scene) -> Floats:
    """When each pending job is expected to fit; jobs that ask for the same are looked at once."""
    asked: dict[tuple[int, bool, bytes], float] = {}
    out = np.zeros(len(scene.need))
    for row in range(len(out)):
        key = (int(scene.need[row]), bool(scene.whole_only[row]), scene.usable[row].tobytes())
        if key not in asked:
            asked[key] = scene.earliest(row)[0]
        out[row] = asked[key]
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
    out[:, 3] = scene.jobs_on / 4.0
    out[:, 4] = np.log1p(scene.left_s / 60.0) / 5.0
    out[:, 5], out[:, 6] = _free_around(scene)
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
    out = np.zeros((len(scene.gpus), N_PAIR))
    machines = Machines(
        scene.gpus, scene.free, scene.type_of, scene.rack_of, scene.jobs_on, np.log1p(scene.left_s), scene.types
    )
    machines.pairs(
        scene.speed[job],
        int(scene.need[job]),
        float(scene.log_time[job]),
        np.log2(max(int(scene.need[job]), 1)) / 4.0,
        np.log1p(len(scene.need)) / 5.0,
        out,
    )
    return out


def rooms(scene: Scene, job: int) -> Ints:
    """Workers of a pending job that each machine could take."""
    each = int(scene.each[job])
    room = scene.free // each if each > 0 else np.full(len(scene.free), 1 << 20)
    return np.where(scene.usable[job][scene.type_of] > 0, room, 0)


def machines_for(
    room: Ints, workers: int, type_of: Ints, affinity: Floats, whole_only: bool = False
) -> tuple[int, Ints] | None:
    """Type and machines for a gang: the machine it likes best among those that take it whole; else, if it may be split,
    on the type of the machine it likes best where the type has room, machines down the affinity until it is whole.
    None: it does not fit."""
    whole = np.flatnonzero(room >= workers)
    if len(whole):
        best = whole[np.argmax(affinity[whole])]
        return int(type_of[best]), np.array([best])
    if whole_only:
        return None
    by_type = np.bincount(type_of, weights=room)
    usable = np.flatnonzero((room > 0) & (by_type[type_of] >= workers))
    if not len(usable):
        return None
    order = usable[np.argsort(-affinity[usable], kind="stable")]
    gpu_type = int(type_of[order[0]])
    order = order[type_of[order] == gpu_type]
    enough = int(np.searchsorted(np.cumsum(room[order]), workers)) + 1
    return gpu_type, order[:enough]


def phi_of(speed: Floats, free: Ints, own: Ints, gpus: Ints, need: int) -> Floats:
    """What the walk compares machines by, for a job that asks for `need` GPUs and holds `own` already: its speed on
    the type, use by others, and the part of the machine that it takes."""
    whole = np.maximum(gpus, 1)
    return np.stack([speed, (gpus - free - own) / whole, np.minimum(need, gpus) / whole], axis=1)
