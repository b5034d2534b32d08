"""Traces for learning to size jobs: drawn by seed, as columns for the slot simulator and as jobs for the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from trainmaster.core.arithmetic import lucky
from trainmaster.core.arrays import Floats, Ints
from trainmaster.learn.sizing.job_types import MEASURED, REFERENCE_SIZE, Kind
from trainmaster.model.cluster import Cluster, Node, cluster_of
from trainmaster.model.errors import InputError
from trainmaster.model.job import Demand, JobId, JobSpec
from trainmaster.model.scaling import Scaling
from trainmaster.model.units import GPU_MILLI, MS_PER_S
from trainmaster.policies.dl2.speed_profiles import Draws, profile_draws
from trainmaster.sim.truth import job_key

TERMS = ("a", "b", "c", "d", "e", "f", "g")
ACCELERATOR = "gpu"
EPOCHS = 50
PROFILE_POINTS = 8
"""Sizes at which a new job is profiled: the policy's default."""
COUNT_MAX, SLOT_MAX_S, VARIATION_MAX = 100_000, 1e7, 5.0
"""Beyond these a trace cannot be drawn or played in any useful time, or times leave the range of milliseconds."""
_COUNT = f"a whole number from 1 to {COUNT_MAX}"


@dataclass(frozen=True)
class SizingSpec:
    """What traces are drawn from. The defaults are the paper's small configuration.

    A server process takes `server_cpus` of a node's CPU slots, a worker one GPU (its data loading runs on slots
    that are not counted), so that workers and servers together can always be placed if they fit by number.
    """

    servers: int = 48
    gpus_per_server: int = 2
    cpus_per_server: int = 8
    server_cpus: int = 4
    jobs: int = 60
    slot_s: float = 1200.0
    arrivals_per_slot_max: int = 3
    arrival_scale: float = 1.0
    """Jobs arrive this many times as often; 2 doubles the load."""
    workers_max: int = 32
    servers_max: int = 32
    mean_length_s: float = 147.0 * 60.0
    length_sigma: float = 1.3
    """Spread of the log-normal lengths: 1.3 puts the median just over an hour when the mean is 147 minutes."""
    length_min_s: float = 600.0
    length_max_s: float = 48 * 3600.0
    kinds: tuple[Kind, ...] = MEASURED
    lengths_s: tuple[float, ...] = field(default=(), repr=False)
    """Lengths to sample instead of the log-normal, such as those of a real trace."""
    gaps_s: tuple[float, ...] = field(default=(), repr=False)
    """Times between arrivals to sample instead of the slot pattern."""
    profile_noise: float = 0.1
    """Relative error of each profiled point from which speeds are believed; negative: speeds are known exactly."""
    speed_variation: float = 0.0
    """Standard deviation of the logarithm of a job's true speed against what its kind says; nobody sees it."""

    def __post_init__(self) -> None:
        for name, good, expected in (
            ("servers", 1 <= self.servers <= COUNT_MAX, _COUNT),
            ("gpus_per_server", 1 <= self.gpus_per_server <= COUNT_MAX, _COUNT),
            (
                "cpus_per_server",
                self.server_cpus <= self.cpus_per_server <= COUNT_MAX,
                f"from {self.server_cpus} (those of a server process) to {COUNT_MAX}",
            ),
            ("server_cpus", self.server_cpus >= 1, _COUNT),
            ("jobs", 1 <= self.jobs <= COUNT_MAX, _COUNT),
            ("slot_s", 1.0 / MS_PER_S <= self.slot_s <= SLOT_MAX_S, f"seconds, from a millisecond to {SLOT_MAX_S:g}"),
            ("arrivals_per_slot_max", 1 <= self.arrivals_per_slot_max <= COUNT_MAX, _COUNT),
            ("arrival_scale", 0 < self.arrival_scale < np.inf, "a positive number"),
            ("workers_max", self.workers_max >= 1, _COUNT),
            ("servers_max", self.servers_max >= 0, "0 or more"),
            ("profile_noise", np.isfinite(self.profile_noise), "a fraction, or below 0: none, speeds are known"),
            ("speed_variation", 0 <= self.speed_variation <= VARIATION_MAX, f"0 to {VARIATION_MAX:g}"),
        ):
            if not good:
                raise InputError(f"'{name}' of the trace is {getattr(self, name)}", expected)
        if not self.kinds:
            raise InputError("the trace has no kinds of job", "at least one")

    @property
    def gpus(self) -> int:
        return self.servers * self.gpus_per_server

    @property
    def cpus(self) -> int:
        """CPU slots that server processes can use: whole ones on each machine."""
        return self.servers * (self.cpus_per_server // self.server_cpus) * self.server_cpus

    @property
    def reference_size(self) -> int:
        """Workers, and as many servers, that a user would ask of a policy that does not size: at most a quarter of the
        cluster, so that such policies can run (and teach) on small ones too."""
        most = [REFERENCE_SIZE, self.workers_max, self.gpus // 4]
        if self.servers_max > 0:
            most += [self.servers_max, self.cpus // self.server_cpus // 4]
        return max(1, min(most))

    def cluster(self) -> Cluster:
        cpu_milli = self.cpus_per_server * 1000
        return cluster_of(Node(f"n{k}", ACCELERATOR, self.gpus_per_server, cpu_milli) for k in range(self.servers))


@dataclass(frozen=True)
class SizingTrace:
    """Jobs of one trace in order of arrival. `curve` is what is true, `believed` what those who decide see:
    both hold the seven coefficients of `Scaling`, in seconds per step. With `profiles` they do not see `believed` but
    what they learn by measuring, as `policies.dl2.speed_profiles` does."""

    spec: SizingSpec
    submit_ms: Ints
    kind: Ints
    work: Floats
    curve: Floats
    believed: Floats
    speed_factor: Floats
    ids: tuple[str, ...]
    profiles: Draws | None = None
    """Chances of the jobs' profiles, one row per job."""

    def __len__(self) -> int:
        return len(self.submit_ms)

    def job_specs(self) -> list[JobSpec]:
        """The same jobs for the engine; they declare the speed of their kind, not the hidden factor."""
        spec, out = self.spec, []
        asked = spec.reference_size
        asked_servers = min(asked, spec.servers_max)
        for k, job_id in enumerate(self.ids):
            scaling = Scaling(**dict(zip(TERMS, self.curve[k].tolist(), strict=True)))
            speed = float(scaling.speed(asked, asked_servers))
            out.append(
                JobSpec(
                    id=JobId(job_id),
                    submit_ms=int(self.submit_ms[k]),
                    workers_min=1,
                    workers_max=spec.workers_max,
                    servers_min=min(1, spec.servers_max),
                    servers_max=spec.servers_max,
                    worker=Demand(GPU_MILLI),
                    server=Demand(0, spec.server_cpus * 1000),
                    workers_ref=asked,
                    servers_ref=asked_servers,
                    work_total=float(self.work[k]),
                    steps_per_s={ACCELERATOR: speed},
                    scaling=scaling,
                    epochs_total=EPOCHS,
                    model=spec.kinds[int(self.kind[k])].name,
                )
            )
        return out


def draw_trace(spec: SizingSpec, seed: int, beliefs_seed: int = 0) -> SizingTrace:
    """A trace that depends on (spec, seed) alone. `beliefs_seed` is the engine's seed in a run on this trace:
    the profiled points are those that the policy `dl2:fitted=true` would see there."""
    rng = np.random.Generator(np.random.PCG64([seed, 2019]))
    n = spec.jobs
    submit_ms = _arrivals(spec, rng)
    kind = rng.integers(0, len(spec.kinds), size=n)
    if spec.lengths_s:
        length_s = rng.choice(np.asarray(spec.lengths_s), size=n)
    else:
        median_s = spec.mean_length_s / np.exp(spec.length_sigma**2 / 2)
        length_s = median_s * np.exp(spec.length_sigma * rng.standard_normal(n))
    length_s = np.clip(length_s, spec.length_min_s, spec.length_max_s)
    ids = tuple(f"t{seed}-{k:04d}" for k in range(n))
    scalings = [kind_.scaling() for kind_ in spec.kinds]
    curve = np.array([[getattr(s, term) for term in TERMS] for s in scalings])[kind]
    sizes = [kind_.length_size(spec.workers_max, max(spec.servers_max, 1)) for kind_ in spec.kinds]
    speed = np.array([float(s.speed(*size)) for s, size in zip(scalings, sizes, strict=True)])[kind]
    factor = np.ones(n)
    if spec.speed_variation:
        factor = np.array([_hidden_factor(job_id, spec.speed_variation, beliefs_seed) for job_id in ids])
    profiles = _profiles(spec, ids, beliefs_seed) if spec.profile_noise >= 0 else None
    return SizingTrace(spec, submit_ms, kind.astype(np.int64), length_s * speed, curve, curve, factor, ids, profiles)


def draw_traces(spec: SizingSpec, seeds: Sequence[int]) -> list[SizingTrace]:
    return [draw_trace(spec, seed) for seed in seeds]


def _profiles(spec: SizingSpec, ids: Sequence[str], seed: int) -> Draws:
    """The very chances that the policy `dl2:fitted=true` draws for these jobs."""
    ranges = ((1, spec.workers_max), (min(1, spec.servers_max), spec.servers_max))
    drawn = [profile_draws(*ranges, PROFILE_POINTS, seed, job_id) for job_id in ids]
    return Draws(*(np.stack(column) for column in zip(*drawn, strict=True)))


def _hidden_factor(job_id: str, variation: float, seed: int) -> float:
    """As the simulator draws it for the first attempt of a job (`sim.truth`)."""
    return lucky(job_key(job_id, seed), 1, variation)


def _arrivals(spec: SizingSpec, rng: np.random.Generator) -> Ints:
    """At most `arrivals_per_slot_max` jobs in a slot, more by day than by night, each at some moment of it."""
    n = spec.jobs
    if spec.gaps_s:
        at_s = np.cumsum(rng.choice(np.asarray(spec.gaps_s), size=n)) / spec.arrival_scale
        return np.rint((at_s - at_s[0]) * MS_PER_S).astype(np.int64)
    slot_s = spec.slot_s / spec.arrival_scale
    slots_per_day = 86_400.0 / slot_s
    phase = rng.uniform(0.0, 2.0 * np.pi)
    times: list[float] = []
    slot = 0
    while len(times) < n:
        wave = 0.5 + 0.35 * np.sin(2.0 * np.pi * slot / slots_per_day + phase)
        count = int(rng.binomial(spec.arrivals_per_slot_max, wave))
        times += ((slot + np.sort(rng.random(count))) * slot_s).tolist()
        slot += 1
    first = times[0]
    return np.array([round((t - first) * MS_PER_S) for t in times[:n]], np.int64)
