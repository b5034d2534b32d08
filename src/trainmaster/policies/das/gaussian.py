"""A Gaussian process over machines with a random-walk kernel: how fast a job would really run where.

For a job i the cluster is a graph whose nodes are machines, with phi_k = (speed of i on the type, use by others,
part of the machine that i takes). A walker goes from k to l with weight

    P(i)_kl = A_kl exp(-|phi_k - phi_l|^2 / 2 w^2) / M        A: 1 in a rack, `FAR` across

P is symmetric and sub-stochastic: were its rows to sum to one, the walk would forget where it began and the kernel
would be the same constant for every pair. Between machine k of graph G and machine l of graph G'

    k_RW((G,k), (G',l)) = [ sum_n lambda^n P^n K0 P'^n ]_kl        K0: similarity of phi_k and phi'_l

which is the walk on the product graph with start at k, l. With K0 = Z Z'^T (random Fourier features) it is a scalar
product of psi_k = (lambda^{n/2} P^n Z)_k: symmetric and positive semi-definite by construction, the product graph is
never formed. It is normalised, k / sqrt(k11 k22). The whole kernel adds a term for the machine itself:

    k = a [k = l] + b k_RW (r + (1 - r) [same kind of job])

Targets are logarithms of measured relative speeds (1 / slowdown) of the last tau jobs seen running. What an older job
said of its machines is kept as a mean and a variance of each machine's own term: a machine stays fast or slow for
longer than tau jobs, while the cluster's state is soon another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trainmaster.core.arrays import Floats, Ints
from trainmaster.policies.das.random_walk import Walk, least
from trainmaster.policies.das.random_walk_constants import PHI_STEP

WAVES = 16
LOG_SPEED_MAX = 1.0
MACHINE_VARIANCE_MIN = 0.02**2
"""Of what is remembered of a machine: it is never taken as known for good."""


@dataclass(frozen=True)
class Kernel:
    """Hyperparameters; standard deviations are of log-speed."""

    machine: float = 0.12
    walk: float = 0.06
    noise: float = 0.05
    decay: float = 0.8
    """lambda"""
    width: float = 0.35
    same_kind: float = 0.5
    """r: what remains of the similarity between jobs of different kinds."""
    history: int = 64
    """tau"""

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def _waves() -> tuple[Floats, Floats]:
    rng = np.random.Generator(np.random.PCG64(20230423))
    return rng.normal(size=(3, WAVES)), rng.uniform(0.0, 2.0 * np.pi, WAVES)


_FREQUENCY, _PHASE = _waves()


def walk_features(phi: Floats, rack_of: Ints, kernel: Kernel) -> Floats:
    """psi of every machine: unit vectors whose scalar products are the normalised random-walk kernel."""
    rounded = np.rint(phi / PHI_STEP).astype(np.int64)
    return Walk(rounded, rack_of, kernel.width, _FREQUENCY, _PHASE).features(kernel.decay)


def slowest(mean: Floats, covariance: Floats) -> tuple[float, float]:
    """Mean and variance of the least of several log-speeds: what a gang on several machines is expected to run at."""
    p = np.zeros(len(mean))
    expected = least(mean, np.sqrt(np.maximum(np.diag(covariance), 1e-9)), p)
    return expected, float(p @ covariance @ p)


@dataclass(frozen=True)
class Observation:
    """A job seen running: where, in which state of the cluster, how fast."""

    job: str
    kind: str
    machines: tuple[int, ...]
    share: tuple[float, ...]
    """How much the speed says of each machine: how likely it was the slowest of them, as far as known then."""
    psi: Floats
    log_speed: float
    """Less what is expected to be lost to the slowest of several."""


@dataclass
class SpeedHistory:
    """The last jobs seen running, one observation each (the latest), oldest first."""

    kernel: Kernel
    seen: dict[str, Observation] = field(default_factory=dict)
    machines: dict[int, tuple[float, float]] = field(default_factory=dict)
    """Mean and variance of the own term of machines, from jobs older than those in `seen`."""
    _solved: tuple[Any, ...] | None = None
    _direction: dict[str, Floats] = field(default_factory=dict)
    """By kind of job: the sum of the features of what was seen, weighed by alpha; as old as `_solved`."""

    def add(self, job: str, kind: str, machines: Sequence[int], psi: Floats, speed: float) -> None:
        """`psi`: of all machines, in the graph of this job without itself; `speed`: relative, 1 being undisturbed."""
        if not speed > 0 or not np.isfinite(speed) or not len(machines):
            return
        mean = psi[list(machines)].mean(axis=0)
        mean /= max(float(np.sqrt(mean @ mean)), 1e-12)
        log_speed = float(np.clip(np.log(speed), -LOG_SPEED_MAX, LOG_SPEED_MAX))
        share, lost = (1.0,), 0.0
        if len(machines) > 1:
            share, lost = self._slowest_of(np.asarray(machines, np.int64))
        where = tuple(int(k) for k in machines)
        self.seen[job] = Observation(job, kind, where, share, mean, log_speed + lost)
        while len(self.seen) > self.kernel.history:
            self._condense(self.seen.pop(next(iter(self.seen))))
        self._solved = None
        self._direction.clear()

    def _condense(self, old: Observation) -> None:
        """Keep what an observation says of its machines, the walk's term being noise here."""
        k = self.kernel
        known = [self._own(machine) for machine in old.machines]
        surprise = old.log_speed - self.overall() - sum(p * m for p, (m, _) in zip(old.share, known, strict=True))
        spread = sum(p**2 * v for p, (_, v) in zip(old.share, known, strict=True)) + k.walk**2 + k.noise**2
        for machine, p, (mean, variance) in zip(old.machines, old.share, known, strict=True):
            gain = variance * p / spread
            self.machines[machine] = (mean + gain * surprise, max(variance * (1.0 - gain * p), MACHINE_VARIANCE_MIN))

    def _own(self, machine: int) -> tuple[float, float]:
        return self.machines.get(machine, (0.0, self.kernel.machine**2))

    def _owns(self, m: int) -> tuple[Floats, Floats]:
        """Mean and variance of the own terms of the first m machines, from what is older than `seen`."""
        mean, variance = np.zeros(m), np.full(m, self.kernel.machine**2)
        for machine, known in self.machines.items():
            if machine < m:
                mean[machine], variance[machine] = known
        return mean, variance

    def overall(self) -> float:
        """The mean of all, drawn to 0 while little has been seen."""
        return sum(o.log_speed for o in self.seen.values()) / (len(self.seen) + 2.0)

    def _slowest_of(self, machines: Ints) -> tuple[tuple[float, ...], float]:
        """A gang goes at the pace of the slowest machine. min(x) is taken as linear in the x about what is known:
        E[min] + sum p_i (x_i - E x_i), p_i being how likely i is the slowest; for independent normal x that is the best
        linear estimate (Stein's lemma: Cov(min, x_i) = p_i Var x_i). Returns the p_i and sum p_i E x_i - E[min]."""
        known = [self._own(int(k)) for k in machines]
        mean, variance = np.array([m for m, _ in known]), np.array([v for _, v in known])
        if self.seen:
            _, _, _, share, machine, number, inverse, alpha = self._solve()
            for i, k in enumerate(machines.tolist()):
                here = machine == k
                cross = np.zeros(len(alpha))
                cross[number[here]] = variance[i] * share[here]
                mean[i] += cross @ alpha
                variance[i] = max(variance[i] - float(cross @ inverse @ cross), 1e-6)
        p = np.zeros(len(mean))
        expected = least(mean, np.sqrt(variance), p)
        return tuple(round(float(v), 6) for v in p), float(p @ mean - expected)

    def copy(self) -> SpeedHistory:
        return SpeedHistory(self.kernel, dict(self.seen), dict(self.machines), self._solved)

    def expect(self, kind: str, psi: Floats, of: Ints | None = None) -> tuple[Floats, Floats]:
        """Posterior of the log-speed on every machine for a job of this kind: mean, and its covariance among the
        machines `of` (none: an empty matrix, for those who only want the mean)."""
        k, m = self.kernel, len(psi)
        if of is None:
            return self._mean(kind, psi), np.zeros((0, 0))
        own, own_variance = self._owns(m)
        prior = k.walk**2 * psi[of] @ psi[of].T + np.diag(own_variance[of])
        if not self.seen:
            return own, prior
        mean, seen_psi, kinds, share, machine, number, inverse, alpha = self._solve()
        like = np.where(kinds == kind, k.walk**2, k.walk**2 * k.same_kind)
        cross = (psi @ seen_psi.T) * like
        inside = machine < m
        cross[machine[inside], number[inside]] += own_variance[machine[inside]] * share[inside]
        covariance = prior - cross[of] @ inverse @ cross[of].T
        return mean + own + cross @ alpha, covariance

    def _mean(self, kind: str, psi: Floats) -> Floats:
        """The posterior mean alone, k(S, X) alpha: alpha is taken into the features first, once for a kind of job."""
        k, m = self.kernel, len(psi)
        own, own_variance = self._owns(m)
        if not self.seen:
            return own
        mean, seen_psi, kinds, share, machine, number, _, alpha = self._solve()
        if kind not in self._direction:
            like = np.where(kinds == kind, k.walk**2, k.walk**2 * k.same_kind)
            self._direction[kind] = (like * alpha) @ seen_psi
        here = machine < m
        own += own_variance * np.bincount(machine[here], share[here] * alpha[number[here]], minlength=m)
        return mean + psi @ self._direction[kind] + own

    def _solve(self) -> tuple[Any, ...]:
        """[K + sigma^2 I]^-1 and its product with the centred targets; the same until something new is seen."""
        if self._solved is None:
            k, all_ = self.kernel, list(self.seen.values())
            psi = np.array([o.psi for o in all_])
            kinds = np.array([o.kind for o in all_])
            # What lies on which machine, as triples (observation, machine, share of the observation).
            number = np.repeat(np.arange(len(all_)), [len(o.machines) for o in all_])
            machine = np.concatenate([o.machines for o in all_]).astype(np.int64)
            share = np.concatenate([o.share for o in all_])
            own, own_variance = self._owns(int(machine.max()) + 1)
            on = np.zeros((len(own), len(all_)))
            on[machine, number] = share
            like = np.where(kinds[:, None] == kinds[None, :], 1.0, k.same_kind)
            gram = k.walk**2 * (psi @ psi.T) * like + on.T @ (own_variance[:, None] * on)
            inverse = np.linalg.inv(gram + k.noise**2 * np.eye(len(all_)))
            mean = self.overall()
            y = np.array([o.log_speed for o in all_]) - mean - own @ on
            self._solved = (mean, psi, kinds, share, machine, number, inverse, inverse @ y)
        return self._solved

    def to_json(self) -> dict[str, Any]:
        return {
            "jobs": [
                {
                    "job": o.job,
                    "kind": o.kind,
                    "machines": list(o.machines),
                    "share": list(o.share),
                    "psi": np.round(o.psi, 6).tolist(),
                    "log_speed": o.log_speed,
                }
                for o in self.seen.values()
            ],
            "machines": [[k, mean, variance] for k, (mean, variance) in self.machines.items()],
        }

    @classmethod
    def from_json(cls, kernel: Kernel, data: Mapping[str, Any]) -> SpeedHistory:
        seen = [
            Observation(
                o["job"],
                o["kind"],
                tuple(o["machines"]),
                tuple(o["share"]),
                np.asarray(o["psi"], np.float64),
                o["log_speed"],
            )
            for o in data.get("jobs", ())
        ]
        machines = {int(k): (float(mean), float(variance)) for k, mean, variance in data.get("machines", ())}
        return cls(kernel, {o.job: o for o in seen}, machines)
