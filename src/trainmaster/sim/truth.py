"""How jobs really behave. Drives the simulated backend; policies see only the estimator.

Every option defaults to "nothing happens", so that the default world is free of cost and noise; results
print the options that produced them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from trainmaster.core.arithmetic import lucky, mixed
from trainmaster.estimate.pairs import UNKNOWN_PAIR, PairSlowdowns
from trainmaster.model.cluster import Cluster
from trainmaster.model.errors import InputError
from trainmaster.model.job import JobSpec
from trainmaster.model.stable_hash import stable_hash
from trainmaster.sim.loss_model import measured_loss


@dataclass(frozen=True)
class TruthOptions:
    """Explicit departures from the free, exact, undisturbed world."""

    restart_cost_ms: int = 0
    """Lost each time a job is started again (preemption, move, failure), not at its first start."""
    resize_cost_ms: int = 0
    launch_ms: int = 0
    stop_ms: int = 0
    exit_ms: int = 0
    """From a job's last step until its end is known and its place is free."""
    spread_penalty: float = 0.0
    """Fraction of speed lost on several nodes by jobs for which no spread figure is known."""
    interference: float = 0.0
    """Slow-down per unit of GPU use by others on the same node: 1 / (1 + interference * use)."""
    noise: float = 0.0
    """Standard deviation of the logarithm of an attempt's speed factor."""
    node_variation: float = 0.0
    """The same of a node's speed factor, which stays for the whole run; a gang goes at the pace of its slowest node."""
    sensitivity_variation: float = 0.0
    """The same of how strongly jobs of a model suffer from interference, relative to `interference`."""
    checkpoint_period_ms: int = 0
    """0: nothing is lost at a failure; otherwise what was done since the last checkpoint is."""
    node_mtbf_ms: int = 0
    """Mean time between failures of a node (exponential); 0: nodes do not fail."""
    node_repair_ms: int = 600_000
    report_ms: int = 0
    """How long after it became productive an attempt reports its measured speed for the first time."""
    report_period_ms: int = 0
    """How often it reports from then on; 0 (with `report_ms` 0: no reports): once."""

    loss_period_ms: int = 0
    """How often a job also says its training loss (see `sim.loss_model`); 0: never."""
    loss_noise: float = 0.0
    """Standard deviation of a measured loss, relative to its distance from what it converges to."""
    outages: tuple[tuple[int, int, int], ...] = ()
    """Power cuts that are known in advance: (node, from, for so many milliseconds)."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if name != "outages" and not 0 <= value < float("inf"):
                raise InputError(f"invalid {name} {value}", expected="0 or more")
        if self.spread_penalty >= 1:
            raise InputError(f"invalid spread_penalty {self.spread_penalty}", expected="a fraction below 1")


def job_key(job_id: str, seed: int) -> int:
    """What a job's counter-based random numbers hang on."""
    return mixed(stable_hash(job_id), seed) >> 1


class Truth:
    """What is true of jobs and nodes; `core.sim.world` makes speeds of it. Random factors depend on (seed, job,
    generation) alone."""

    def __init__(self, cluster: Cluster, options: TruthOptions, seed: int, pairs: PairSlowdowns | None = None) -> None:
        self.cluster = cluster
        self.options = options
        self.seed = seed
        self.pairs = pairs
        self._factors: dict[tuple[float, int, int], float] = {}

    def luck(self, job_id: str, generation: int) -> float:
        """Speed factor of one attempt (`noise`), as `core.sim.backend` draws it."""
        return lucky(self.key_of(job_id), generation, self.options.noise) if self.options.noise else 1.0

    def key_of(self, job_id: str) -> int:
        """Of the random numbers of a job's attempts; 0 where none are drawn."""
        return job_key(job_id, self.seed) if self.options.noise else 0

    def node_speed(self, node: int) -> float:
        """Lasting speed factor of a node (`node_variation`)."""
        return self._factor(self.options.node_variation, stable_hash(self.cluster.nodes[node].id), 1 << 32)

    def sensitivity(self, model: str) -> float:
        """How strongly jobs of a model suffer from interference, 1 being usual (`sensitivity_variation`)."""
        return self._factor(self.options.sensitivity_variation, stable_hash(model), 2 << 32)

    def _factor(self, deviation: float, about: int, purpose: int) -> float:
        """Log-normal with median 1, the same whenever it is asked for."""
        if not deviation:
            return 1.0
        key = (deviation, about, purpose)
        if key not in self._factors:
            rng = np.random.Generator(np.random.PCG64([self.seed, about, purpose]))
            self._factors[key] = float(np.exp(rng.normal(0.0, deviation)))
        return self._factors[key]

    def reference_rate(self, spec: JobSpec, gpu_type: str, spread: bool) -> float:
        """Steps per second at the reference size on a type, undisturbed."""
        base = spec.steps_per_s.get(gpu_type, 0.0) if spec.steps_per_s else 1.0
        if spread:
            return spec.steps_per_s_spread.get(gpu_type, base * (1.0 - self.options.spread_penalty))
        return base

    def reference_rates(self, spec: JobSpec) -> list[float]:
        """The same by type on one node, then by type on several."""
        types = self.cluster.types
        return [self.reference_rate(spec, gpu_type, spread) for spread in (False, True) for gpu_type in types]

    def speedup(self, spec: JobSpec, workers: int, servers: int) -> float:
        """Speed at a size relative to the reference size."""
        speed = spec.scaling.speed
        return float(speed(workers, servers)) / float(speed(spec.workers_ref, spec.servers_ref))

    def loss(self, spec: JobSpec, work: float) -> float | None:
        """What a job measures after this much work; None where it says nothing."""
        return measured_loss(spec, work, self.seed, self.options.loss_noise) if self.options.loss_period_ms else None

    def kept_beside(self, spec: JobSpec, other: JobSpec, gpu_type: str) -> float:
        """Part of its speed that a job keeps beside another on the same devices."""
        return UNKNOWN_PAIR if self.pairs is None else self.pairs.kept_beside(spec, other, gpu_type)
