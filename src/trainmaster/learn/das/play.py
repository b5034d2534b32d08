"""Episodes played by the two agents: what they see of a world, what they choose, and what is learned from."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from trainmaster.core.arrays import Floats, Ints
from trainmaster.learn.das.world import World, job_name, kind_name
from trainmaster.policies.das.backfill_reservation import Hold, hold_for, startable
from trainmaster.policies.das.features import (
    N_PAIR,
    PAIR_FEATURES,
    Parts,
    Scene,
    job_features,
    machine_features,
    machines_for,
    pair_features,
    phi_of,
    rooms,
)
from trainmaster.policies.das.gaussian import Kernel, SpeedHistory, slowest, walk_features
from trainmaster.policies.das.network import Agents
from trainmaster.policies.das.waiting_rules import settle

NOISE_FLOOR = 0.3
"""Standard deviation that exploration adds to every affinity, beyond what the process is unsure of."""
PACKED = 0.3
"""Log-speed that a machine's worth of GPUs left over weighs for the rule that is imitated; on validation streams 0.3 to
10 made little difference."""
RATE_NEWS = 0.03
"""A running job is looked at again when its speed has changed by this part."""


def scene_of(world: World) -> Scene:
    """What a scheduler could see of a world. Of running jobs: where they are, and when they are expected to end."""
    pending, running = world.pending(), world.running()
    on = world.held[running] > 0
    jobs_on = on.sum(axis=0)
    log_run = world.expected(running)[0] - np.log(world.type_speed[world.held_type[running]])
    elapsed = world.now_s - world.start_s[running]
    left = np.maximum(np.exp(log_run) - elapsed, 0.2 * elapsed + 60.0)
    log_time, deviation = world.expected(pending)
    held = world.held[running]
    job, machine = np.nonzero(held)
    need = world.stream.gpus[pending]
    scene = Scene(
        gpus=world.gpus,
        free=world.free.copy(),
        type_of=world.type_of,
        rack_of=world.rack_of,
        jobs_on=jobs_on,
        left_s=(left @ on) / np.maximum(jobs_on, 1),
        parts=Parts.sorted(machine, held[job, machine], left[job]),
        need=need,
        each=np.ones(len(pending), np.int64),
        speed=np.tile(world.type_speed / world.type_speed.max(), (len(pending), 1)),
        log_time=log_time,
        deviation=deviation,
        waited_s=world.now_s - world.stream.submit_s[pending],
        whole_only=np.zeros(len(pending), np.bool_),
        kept=np.full(len(pending), world.spread_kept),
    )
    return settle(scene, need <= world.gpus.max())


@dataclass
class Choice:
    """One start, or a job that is held for (there are no `pairs` then)."""

    looked: int
    """Which look at the cluster it belongs to (`Record.jobs`, `Record.machines`)."""
    could: Ints
    chosen: int
    pairs: Floats
    log_speed: Floats
    covariance: Floats
    affinity: Floats
    taken: npt.NDArray[np.bool_]
    log_p_order: float
    log_p_place: float
    state: Floats
    """What the central critic sees."""
    at_s: float
    backlog: Floats
    """Jobs in the system, and hours of work left in it for the whole cluster."""
    due: float
    """What the jobs that run are still to cost if their speeds stay as they are, in the units of `cost`."""
    job: int = -1
    """The one that was started; -1: somebody was held for."""
    cost: float = 0.0
    """Until the next start: time spent by all jobs in the system (hours), and what they were charged."""


@dataclass
class Record:
    """An episode as it is learned from."""

    jobs: list[Floats] = field(default_factory=list)
    machines: list[Floats] = field(default_factory=list)
    choices: list[Choice] = field(default_factory=list)


class Player:
    """Plays one world with the agents; with `rng` it samples and keeps a record, without it takes the best."""

    def __init__(
        self,
        world: World,
        agents: Agents,
        kernel: Kernel,
        rng: np.random.Generator | None = None,
        teacher: bool = False,
        fee_weight: float = 0.0,
        calibrates: bool = False,
    ) -> None:
        self.world, self.agents, self.kernel, self.rng, self.teacher = world, agents, kernel, rng, teacher
        self.history = SpeedHistory(kernel)
        self.record = Record()
        self.fee_weight, self.calibrates = fee_weight, calibrates
        self._rate_seen = np.zeros(len(world.stream))
        self.expectations: list[tuple[float, float, int]] = []
        """(mean, variance, job) of the log-speed at each start, for the study of calibration."""
        self.several: set[int] = set()
        """Jobs that were put on several machines."""
        self.traced: list[tuple[int, Ints, Floats]] = []
        """(job, candidates, their affinities) of each start, for pictures."""
        self.held_for = -1
        """The job that was held for in the last decision, for pictures; -1: none."""

    def play(self) -> World:
        world = self.world
        while self._to_decision():
            self.observe()
            self.decide()
        return world

    def _to_decision(self) -> bool:
        """As `World.to_decision`, charging the time that passes to the last choice."""
        world = self.world
        while True:
            before, busy = world.now_s, int((world.state <= 1).sum())
            spend = float((world.price[world.held_type] * world.stream.gpus)[world.state == 1].sum())
            if not world.advance():
                return False
            if self.record.choices:
                hours = (world.now_s - before) / 3600.0
                self.record.choices[-1].cost += hours * (busy + self.fee_weight * spend)
            if len(world.startable()):
                return True

    def observe(self) -> None:
        """Note how fast jobs run that have started, or whose speed has changed, since the last look."""
        if not self.agents.models_speed:
            return
        world = self.world
        running = world.running()
        news = np.abs(world.rate[running] - self._rate_seen[running]) > RATE_NEWS * world.rate[running]
        for job in running[news].tolist():
            self._rate_seen[job] = world.rate[job]
            own = world.held[job]
            psi = walk_features(self._phi(own, int(world.stream.gpus[job])), world.rack_of, self.kernel)
            machines = np.flatnonzero(own)
            speed = float(world.relative_speed(np.array([job]))[0])
            if len(machines) > 1:  # known of any gang on several machines; the process is about the machines
                speed /= world.spread_kept
            self.history.add(job_name(job), kind_name(int(world.stream.kind[job])), machines.tolist(), psi, speed)

    def _phi(self, own: Ints, need: int) -> Floats:
        world = self.world
        return phi_of((world.type_speed / world.type_speed.max())[world.type_of], world.free, own, world.gpus, need)

    def decide(self) -> None:
        """Order the pending jobs once, then go down the order: what fits starts where it has most affinity, the first
        that does not is held for."""
        world, record = self.world, self.record
        scene, pending = scene_of(world), world.pending()
        open_, hold = np.ones(len(pending), np.bool_), None
        self.held_for = -1
        starts = startable(scene, hold)
        if not starts.any():
            return
        x = machines = np.zeros((0, 0))
        if not self.teacher or self.rng is not None:
            x, machines = job_features(scene), machine_features(scene)
        scores = teacher_scores(scene) if self.teacher else self.agents.scores(x, machines)
        if self.rng is not None:
            record.jobs.append(x)
            record.machines.append(machines)
        while starts.any():
            could = np.flatnonzero(starts if hold is not None else open_)
            place, log_p = self._pick(scores[could])
            row = int(could[place])
            open_[row] = False
            if starts[row]:
                self._start(scene, pending, row, hold, could, place, log_p)
            else:
                hold, self.held_for = hold_for(scene, row), int(pending[row])
                if self.rng is not None:
                    nobody = np.zeros((0, N_PAIR)), np.zeros(0), np.zeros((0, 0)), np.zeros(0), np.zeros(0, np.bool_)
                    looked = len(record.jobs) - 1
                    record.choices.append(Choice(looked, could, place, *nobody, log_p, 0.0, *self._state()))
            starts = startable(scene, hold) & open_

    def _pick(self, scores: Floats) -> tuple[int, float]:
        """The highest score; while training, a draw from their softmax (the highest after Gumbel noise)."""
        if self.rng is None or self.teacher or len(scores) == 1:
            return int(np.argmax(scores)), 0.0
        p = np.exp(scores - scores.max())
        p /= p.sum()
        place = min(int(np.searchsorted(np.cumsum(p), self.rng.random())), len(p) - 1)
        return place, float(np.log(max(p[place], 1e-12)))

    def _start(
        self, scene: Scene, pending: Ints, row: int, hold: Hold | None, could: Ints, place: int, log_p: float
    ) -> None:
        world, job = self.world, int(pending[row])
        need, room = int(scene.need[row]), rooms(scene, row)
        if hold is not None:
            room[hold.bars(scene, row)] = 0
        pairs = pair_features(scene, row)
        candidates = candidates_for(room, need, scene.type_of)
        log_speed, covariance = self._expect(job, need, candidates)
        if self.teacher:
            affinity = teacher_affinity(pairs, log_speed)
        else:
            affinity = self.agents.affinities(pairs, log_speed if self.agents.models_speed else None)
        drawn, log_p_place = affinity, 0.0
        if self.rng is not None and not self.teacher and len(candidates) > 1:
            drawn, log_p_place = self._draw(affinity, covariance, candidates)
        found = machines_for(room, need, scene.type_of, drawn, bool(scene.whole_only[row]))
        assert found is not None
        taken = filled(world.free, np.sort(found[1]), need)
        where = np.flatnonzero(taken)
        if len(where) > 1:
            self.several.add(job)
        self.traced.append((job, candidates, affinity[candidates]))
        if self.calibrates:
            inside = np.searchsorted(candidates, where)
            self.expectations.append((*slowest(log_speed[where], covariance[np.ix_(inside, inside)]), job))
        if self.rng is not None:
            self.record.choices.append(
                Choice(
                    len(self.record.jobs) - 1,
                    could,
                    place,
                    pairs[candidates],
                    log_speed[candidates] if len(log_speed) else np.zeros(len(candidates)),
                    covariance,
                    drawn[candidates],
                    taken[candidates] > 0,
                    log_p,
                    log_p_place,
                    *self._state(),
                    job,
                )
            )
        world.start(job, taken)
        scene.free[:] = world.free
        scene.note_start(row, taken)
        if hold is not None:
            hold.note_start(scene, row, taken)

    def _expect(self, job: int, need: int, candidates: Ints) -> tuple[Floats, Floats]:
        if not self.agents.models_speed:
            return np.zeros(0), np.zeros((0, 0))
        world = self.world
        psi = walk_features(self._phi(np.zeros_like(world.free), need), world.rack_of, self.kernel)
        unsure = self.rng is not None or self.calibrates
        return self.history.expect(kind_name(int(world.stream.kind[job])), psi, candidates if unsure else None)

    def _draw(self, affinity: Floats, covariance: Floats, candidates: Ints) -> tuple[Floats, float]:
        """A sample of N(mu, gain^2 Sigma + floor^2 I) among the candidates, and its log-density."""
        assert self.rng is not None
        root = np.linalg.cholesky(noise_covariance(covariance, self.agents, len(candidates)))
        white = self.rng.normal(size=len(candidates))
        drawn = affinity.copy()
        drawn[candidates] += root @ white
        log_p = -0.5 * float(white @ white) - float(np.log(np.diag(root)).sum())
        return drawn, log_p

    def _state(self) -> tuple[Floats, float, Floats, float]:
        """For the critic alone, who may know more than the agents: true work that waits, and jobs still to come; the
        time, the backlog, and what is due."""
        world = self.world
        s, state = world.stream, world.state
        waits, coming = state == 0, state == 3
        area = s.work_s * s.gpus / 3600.0
        total = float(world.gpus.sum())
        runs = state == 1
        each_h = world.left[runs] / world.rate[runs] / 3600.0
        due = float(each_h @ (1.0 + self.fee_weight * world.price[world.held_type[runs]] * s.gpus[runs]))
        running_h = float((world.left[runs] * s.gpus[runs]).sum()) / 3600.0 / total
        backlog = np.array([float((state <= 1).sum()), area[waits].sum() / total + running_h])
        seen = np.array(
            [
                np.log1p(waits.sum()) / 5.0,
                waits.sum() / 100.0,
                area[waits].sum() / total / 10.0,
                np.log1p(area[waits].sum() / total) / 2.0,
                coming.sum() / 100.0,
                area[coming].sum() / total / 10.0,
                running_h / 2.0,
                world.free.sum() / total,
                s.gpus[waits].mean() / 8.0 if waits.any() else 0.0,
                total / 128.0,
                np.log(s.work_s[waits]).mean() / 10.0 if waits.any() else 0.8,
            ]
        )
        return seen, world.now_s, backlog, due


def noise_covariance(covariance: Floats, agents: Agents, n: int) -> Floats:
    floor = NOISE_FLOOR**2 * np.eye(n)
    if not agents.models_speed:
        return floor
    return float(agents.weights["gain"][0]) ** 2 * covariance + floor


def candidates_for(room: Ints, workers: int, type_of: Ints) -> Ints:
    """Machines between which a gang can choose: those that take it whole, else those of types with room."""
    whole = np.flatnonzero(room >= workers)
    if len(whole):
        return whole
    by_type = np.bincount(type_of, weights=room)
    return np.flatnonzero((room > 0) & (by_type[type_of] >= workers))


def filled(free: Ints, machines: Ints, need: int) -> Ints:
    """GPUs taken on each machine, in this order."""
    taken = np.zeros(len(free), np.int64)
    for k in machines.tolist():
        taken[k] = min(need, int(free[k]))
        need -= int(taken[k])
    return taken


def teacher_scores(scene: Scene) -> Floats:
    """Smallest expected area (GPUs times duration) first, whether it fits or not."""
    return -(scene.log_time + np.log(np.maximum(scene.need, 1)))


def teacher_affinity(pairs: Floats, log_speed: Floats) -> Floats:
    """The faster type, there a machine that is expected to be fast and has little left over (much for a gang of
    several)."""
    seen = dict(zip(PAIR_FEATURES, pairs.T, strict=True))
    whole = seen["fits"] > 0
    packed = np.where(whole.any(), -seen["left_over"], seen["free"])
    return 100.0 * seen["speed"] + PACKED * packed + (log_speed if len(log_speed) else 0.0)
