"""The world in which DAS learns: gangs that run to their end on machines of several kinds, by events, compiled.

It is the project's simulator in little (`trainmaster.sim` with the same `Truth`; a test holds them together): rates
change whenever somebody starts or ends beside a job. An episode of 240 jobs under the agents takes 0.36 s of CPU here
and 1.27 s in the core's simulated loop (a factor of 3.6); under rules written in Python the core is three times faster.
`World` holds the truth; what agents may see of it is computed by `trainmaster.learn.das.play`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from trainmaster.core.arrays import Floats, Ints
from trainmaster.learn.das.jobs import DECLARED_DEVIATION, KINDS, JobStream
from trainmaster.learn.das.stream_passes import StreamWorld
from trainmaster.model.cluster import Cluster, Node, cluster_of
from trainmaster.model.job import JobId, JobSpec
from trainmaster.model.units import ms_from_s
from trainmaster.sim.truth import Truth, TruthOptions

FAST, SLOW = "v100", "p100"
TYPE_SPEED = {FAST: 1.0, SLOW: 0.8}
PRICE_PER_HOUR = {FAST: 7.3, SLOW: 5.84}
"""Proportional to speed, and of the size that makes a job cost what the paper's jobs cost (about 51 dollars)."""
SPREAD_PENALTY = 0.1
TRUTH = TruthOptions(
    spread_penalty=SPREAD_PENALTY, interference=0.2, sensitivity_variation=0.5, node_variation=0.12, noise=0.04
)
PENDING, RUNNING, OVER, COMING = 0, 1, 2, 3


@dataclass(frozen=True)
class Site:
    """A cluster and the truth about it. Four machines to a rack."""

    name: str
    machines: tuple[tuple[str, int], ...]
    """Type and GPUs of each."""
    speed: tuple[tuple[str, float], ...] = tuple(TYPE_SPEED.items())
    price: tuple[tuple[str, float], ...] = tuple(PRICE_PER_HOUR.items())
    truth: TruthOptions = TRUTH

    def cluster(self) -> Cluster:
        return _cluster(self)


@lru_cache(maxsize=256)
def _cluster(site: Site) -> Cluster:
    nodes = [Node(f"m{k:03d}", kind, gpus, rack=f"r{k // 4:02d}") for k, (kind, gpus) in enumerate(site.machines)]
    return cluster_of(nodes, dict(site.price))


def of_four(name: str, machines: int) -> Site:
    """A site of the study: machines of four GPUs, three of eight of the slower type."""
    return Site(name, tuple((FAST if k % 8 < 5 else SLOW, 4) for k in range(machines)))


SITES = {"small": of_four("small", 8), "medium": of_four("medium", 18), "large": of_four("large", 32)}
JOBS, GPUS_ASKED = 240, 70.0
"""Jobs of an episode, and how many GPUs they would keep busy in the mean: the same streams on every site."""


class World:
    """One episode. Times in seconds; `state` of a job is one of COMING, PENDING, RUNNING, OVER."""

    def __init__(self, site: Site, stream: JobStream) -> None:
        cluster, truth = site.cluster(), site.truth
        self.site, self.stream, self.cluster = site, stream, cluster
        hidden = Truth(cluster, truth, stream.seed)
        n, m = len(stream), len(cluster.nodes)
        self.now_s = 0.0
        self.gpus = cluster.gpus.astype(np.int64)
        self.free = self.gpus.copy()
        self.type_of, self.rack_of = cluster.type_of, cluster.rack_of
        self.type_speed = np.array([dict(site.speed)[name] for name in cluster.types])
        self.price = cluster.prices
        self.node_speed = np.array([hidden.node_speed(k) for k in range(m)])
        self.sensitivity = np.array([hidden.sensitivity(kind_name(k)) for k in range(KINDS)])
        self.luck = np.array([hidden.luck(job_name(j), 1) for j in range(n)])
        self.interference, self.spread_kept = truth.interference, 1.0 - truth.spread_penalty
        self.state = np.full(n, COMING, np.int64)
        self.held = np.zeros((n, m), np.int64)
        """GPUs of each job on each machine."""
        self.held_type = np.full(n, -1, np.int64)
        self.rate = np.zeros(n)
        self.left = stream.work_s.copy()
        self.start_s, self.end_s = np.full(n, np.nan), np.full(n, np.nan)
        self.known = stream.known.copy()

    def pending(self) -> Ints:
        return np.flatnonzero(self.state == PENDING)

    def running(self) -> Ints:
        return np.flatnonzero(self.state == RUNNING)

    @property
    def over(self) -> bool:
        return bool((self.state == OVER).all())

    def free_by_type(self) -> Ints:
        return np.bincount(self.type_of, weights=self.free, minlength=len(self.type_speed)).astype(np.int64)

    def startable(self) -> Ints:
        """Pending jobs for which enough is free on machines of one type."""
        pending = self.pending()
        return pending[self.stream.gpus[pending] <= self.free_by_type().max()]

    def start(self, job: int, taken: Ints) -> None:
        """Start a job on these GPUs, by machine; they must be free, of one type, and as many as it asks for."""
        nodes = np.flatnonzero(taken)
        kinds = np.unique(self.type_of[nodes])
        if self.state[job] != PENDING or taken.sum() != self.stream.gpus[job] or len(kinds) != 1:
            raise ValueError(f"job {job} cannot start on {taken.tolist()}")
        if (taken > self.free).any() or (taken < 0).any():
            raise ValueError(f"job {job} asks for more than is free: {taken.tolist()} of {self.free.tolist()}")
        self.free -= taken
        self.held[job] = taken
        self.held_type[job] = kinds[0]
        self.state[job] = RUNNING
        self.start_s[job] = self.now_s
        self._update_rates(taken)

    def advance(self) -> bool:
        """Go on to the next time at which jobs come or end; False when all is over."""
        if self.over:
            return False
        touched = np.zeros(len(self.free), np.int64)
        self.now_s = self._passes().next_event(self.now_s, touched)
        if touched.any():
            self._update_rates(touched)
            for job in np.flatnonzero(self.end_s == self.now_s).tolist():
                took_s = (self.now_s - self.start_s[job]) * self.type_speed[self.held_type[job]]
                self.known.add(int(self.stream.group[job]), float(np.log(took_s)))
        return True

    def to_decision(self) -> bool:
        """Go on until a pending job could start; False when all is over."""
        while self.advance():
            if len(self.startable()):
                return True
        return False

    def _update_rates(self, touched: Ints) -> None:
        self._passes().update_rates(
            touched, self.sensitivity, self.stream.kind, self.luck, self.interference, self.spread_kept
        )

    def _passes(self) -> StreamWorld:
        return StreamWorld(
            self.state,
            self.stream.submit_s,
            self.rate,
            self.left,
            self.end_s,
            self.held,
            self.held_type,
            self.gpus,
            self.free,
            self.type_speed,
            self.node_speed,
        )

    def expected(self, jobs: Ints) -> tuple[Floats, Floats]:
        """Logarithm of the duration (s) on the fast type and its deviation: what users declare, tempered by what jobs
        of the same group took, each weighed by how reliable it is."""
        group = self.stream.group[jobs]
        by_group = 1.0 / np.maximum(self.known.square[group], 0.05)
        total = by_group + 1.0 / DECLARED_DEVIATION**2
        mean = (self.stream.declared[jobs] / DECLARED_DEVIATION**2 + self.known.mean[group] * by_group) / total
        return mean, 1.0 / np.sqrt(total)

    # -- figures ---------------------------------------------------------------------------------------------

    def completion_s(self) -> Floats:
        return self.end_s - self.stream.submit_s

    def fee(self) -> Floats:
        """Dollars: price by GPU, GPUs, run time; waiting is free."""
        hours = (self.end_s - self.start_s) / 3600.0
        return self.price[self.held_type] * self.stream.gpus * hours

    def relative_speed(self, jobs: Ints) -> Floats:
        """Measured speed over that of the type undisturbed: all that agents ever learn of the truth."""
        return self.rate[jobs] / self.type_speed[self.held_type[jobs]]

    # -- the same jobs for the engine ------------------------------------------------------------------------

    def job_specs(self) -> list[JobSpec]:
        s = self.stream
        return [
            JobSpec(
                JobId(job_name(j)),
                ms_from_s(float(s.submit_s[j])),
                workers_min=int(s.gpus[j]),
                workers_max=int(s.gpus[j]),
                workers_ref=int(s.gpus[j]),
                work_total=float(s.work_s[j]),
                steps_per_s=dict(self.site.speed),
                model=kind_name(int(s.kind[j])),
                entity=f"team-{s.team[j]}",
            )
            for j in range(len(s))
        ]


def job_name(job: int) -> str:
    return f"j{job:04d}"


def kind_name(kind: int) -> str:
    return f"kind-{kind}"
