"""Episodes played by the two agents: what they see of a world, what they choose, and what is learned from."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from trainmaster.learn.das import heuristics
from trainmaster.learn.das.world import World, job_name, kind_name
from trainmaster.policies.das.features import (
    Scene,
    job_features,
    machine_features,
    machines_for,
    pair_features,
    phi_of,
    rooms,
)
from trainmaster.policies.das.gaussian import Kernel, SpeedHistory, walk_features
from trainmaster.policies.das.network import Agents

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

NOISE_FLOOR = 0.3
"""Standard deviation that exploration adds to every affinity, beyond what the process is unsure of."""
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
    return Scene(
        gpus=world.gpus, free=world.free.copy(), type_of=world.type_of, rack_of=world.rack_of,
        price=world.price / world.price.mean(), jobs_on=jobs_on, left_s=(left @ on) / np.maximum(jobs_on, 1),
        need=world.stream.gpus[pending], each=np.ones(len(pending), np.int64),
        speed=np.tile(world.type_speed / world.type_speed.max(), (len(pending), 1)),
        log_time=log_time, deviation=deviation, waited_s=world.now_s - world.stream.submit_s[pending],
    )  # fmt: skip


@dataclass
class Choice:
    """One start, as far as it was a choice. `order_*` is empty when only one job could start, `pair_*` when there was
    one machine."""

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
        self, world: World, agents: Agents, kernel: Kernel, rng: np.random.Generator | None = None,
        teacher: bool = False, fee_weight: float = 0.0,
    ) -> None:  # fmt: skip
        self.world, self.agents, self.kernel, self.rng, self.teacher = world, agents, kernel, rng, teacher
        self.history = SpeedHistory(kernel)
        self.record = Record()
        self.fee_weight = fee_weight
        self._rate_seen = np.zeros(len(world.stream))
        self._as_of_s = 0.0
        self._system = 0
        self.expectations: list[tuple[float, float, int]] = []
        """(mean, variance, job) of the log-speed at each start, for the study of calibration."""
        self.several: set[int] = set()
        """Jobs that were put on several machines."""
        self.traced: list[tuple[int, Ints, Floats]] = []
        """(job, candidates, their affinities) of each start, for pictures."""

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
        """Order the pending jobs once, then start down the order what fits, each where it has most affinity."""
        world, record = self.world, self.record
        scene, pending = scene_of(world), world.pending()
        x, machines = job_features(scene), machine_features(scene)
        scores = self.agents.scores(x, machines)
        if self.teacher:
            scores = -scene.log_time
        open_ = np.ones(len(pending), np.bool_)
        if self.rng is not None:
            record.jobs.append(x)
            record.machines.append(machines)
        while True:
            room = world.free_by_type().max()
            could = np.flatnonzero(open_ & (scene.need <= room))
            if not len(could):
                return
            place, log_p = self._pick(scores[could])
            row = int(could[place])
            open_[row] = False
            scene.free[:] = world.free
            self._start(scene, pending, row, could, place, log_p)

    def _pick(self, scores: Floats) -> tuple[int, float]:
        """The highest score; while training, a draw from their softmax (the highest after Gumbel noise)."""
        if self.rng is None or self.teacher or len(scores) == 1:
            return int(np.argmax(scores)), 0.0
        p = np.exp(scores - scores.max())
        p /= p.sum()
        place = min(int(np.searchsorted(np.cumsum(p), self.rng.random())), len(p) - 1)
        return place, float(np.log(max(p[place], 1e-12)))

    def _start(self, scene: Scene, pending: Ints, row: int, could: Ints, place: int, log_p: float) -> None:
        world, job = self.world, int(pending[row])
        need, room = int(scene.need[row]), rooms(scene, row)
        pairs = pair_features(scene, row)
        candidates = candidates_for(room, need, scene.type_of)
        log_speed, covariance = self._expect(job, need, candidates)
        affinity = self.agents.affinities(pairs, log_speed if self.agents.models_speed else None)
        drawn, log_p_place = affinity, 0.0
        if self.rng is not None and not self.teacher and len(candidates) > 1:
            drawn, log_p_place = self._draw(affinity, covariance, candidates)
        if self.teacher:
            taken = teacher_placement(world, job)
        else:
            found = machines_for(room, need, scene.type_of, drawn)
            assert found is not None
            taken = filled(world.free, np.sort(found[1]), need)
        where = np.flatnonzero(taken)
        if len(where) > 1:
            self.several.add(job)
        self.traced.append((job, candidates, affinity[candidates]))
        if len(log_speed):
            inside = np.searchsorted(candidates, where)
            spread = covariance[np.ix_(inside, inside)].mean() if len(covariance) else 0.0
            self.expectations.append((float(log_speed[where].mean()), float(spread), job))
        if self.rng is not None:
            self.record.choices.append(
                Choice(
                    len(self.record.jobs) - 1, could, place, pairs[candidates],
                    log_speed[candidates] if len(log_speed) else np.zeros(len(candidates)),
                    covariance, drawn[candidates], taken[candidates] > 0, log_p, log_p_place, self._state(),
                )
            )  # fmt: skip
        world.start(job, taken)

    def _expect(self, job: int, need: int, candidates: Ints) -> tuple[Floats, Floats]:
        if not self.agents.models_speed:
            return np.zeros(0), np.zeros((0, 0))
        world = self.world
        psi = walk_features(self._phi(np.zeros_like(world.free), need), world.rack_of, self.kernel)
        return self.history.expect(kind_name(int(world.stream.kind[job])), psi, candidates)

    def _draw(self, affinity: Floats, covariance: Floats, candidates: Ints) -> tuple[Floats, float]:
        """A sample of N(mu, gain^2 Sigma + floor^2 I) among the candidates, and its log-density."""
        assert self.rng is not None
        root = np.linalg.cholesky(noise_covariance(covariance, self.agents, len(candidates)))
        white = self.rng.normal(size=len(candidates))
        drawn = affinity.copy()
        drawn[candidates] += root @ white
        log_p = -0.5 * float(white @ white) - float(np.log(np.diag(root)).sum())
        return drawn, log_p

    def _state(self) -> Floats:
        """For the critic alone, who may know more than the agents: true work that waits, and jobs still to come."""
        world = self.world
        s, state = world.stream, world.state
        waits, coming = state == 0, state == 3
        area = s.work_s * s.gpus / 3600.0
        total = float(world.gpus.sum())
        return np.array([
            np.log1p(waits.sum()) / 5.0, waits.sum() / 100.0, area[waits].sum() / total / 10.0,
            np.log1p(area[waits].sum() / total) / 2.0, coming.sum() / 100.0, area[coming].sum() / total / 10.0,
            (world.left[state == 1] * s.gpus[state == 1]).sum() / 3600.0 / total / 2.0, world.free.sum() / total,
            s.gpus[waits].mean() / 8.0 if waits.any() else 0.0, total / 128.0,
            np.log(s.work_s[waits]).mean() / 10.0 if waits.any() else 0.8,
        ])  # fmt: skip


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


def teacher_placement(world: World, job: int) -> Ints:
    """Pack while others wait, keep away from others while nobody does."""
    crowded = len(world.pending()) > 1
    taken = (heuristics.best_fit if crowded else heuristics.quiet_fit)(world, job)
    assert taken is not None
    return taken
