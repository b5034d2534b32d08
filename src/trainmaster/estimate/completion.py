"""When a job will finish: iteration time as a function of size, fitted online, with an uncertainty band.

The model is g(c) = alpha + beta/c seconds per step with c workers (a serial part and one that divides).
`IterationFit` is a Bayesian linear regression on (1, 1/c): its prior is centred on what the catalogue, the
job's declaration or similar jobs say, measured progress moves it, and the posterior covariance gives the
band. Without any prior, one measured size gives beta = c g and alpha = 0; a second size separates the two.
Type and placement enter as known ratios to a reference: a measurement on another type is restated there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import NormalDist

from trainmaster.model.scaling import Scaling
from trainmaster.model.units import MS_PER_S

DECLARED_SIGMA = 0.25
"""Relative standard deviation of a declared or catalogued speed, before anything is measured."""
MEASURED_SIGMA = 0.1
"""Relative standard deviation of one measurement, until residuals say otherwise."""
_NOISE_WEIGHT = 3.0
"""Measurements that the assumed noise is worth against measured residuals."""
_MIN_SIGMA = 1e-6


def quantile_z(probability: float) -> float:
    """Standard normal quantile; `probability` strictly between 0 and 1."""
    return NormalDist().inv_cdf(probability)


@dataclass(frozen=True)
class IterationFit:
    """Posterior over (alpha, beta) as information sums; every update returns a new fit.

    `prior` and `data` hold (p11, p12, p22, s1, s2): the inverse covariance and the precision-weighted mean.
    The data's are in units of the measurement noise, so that a better figure for it re-weighs all of them.
    `sizes` are the distinct sizes measured, `count` and `residuals` the noise statistics.
    """

    prior: tuple[float, float, float, float, float] = (0.0, 0.0, 0.0, 0.0, 0.0)
    data: tuple[float, float, float, float, float] = (0.0, 0.0, 0.0, 0.0, 0.0)
    sizes: tuple[int, ...] = ()
    count: float = 0.0
    residuals: float = 0.0
    prior_step_s: tuple[float, float] | None = None

    @classmethod
    def from_prior(cls, alpha_s: float, beta_s: float, sigma: float = DECLARED_SIGMA, size: int = 1) -> IterationFit:
        """Believe g(c) = alpha + beta/c with relative error `sigma` at `size` workers.

        The common factor is uncertain by sigma; how it divides into alpha and beta by half as much again.
        """
        sigma = max(sigma, _MIN_SIGMA)
        total = alpha_s + beta_s / size
        # Covariance: a shared factor along (alpha, beta), plus a trade-off that nearly keeps g(size).
        trade = 0.5 * sigma * total
        along = (sigma * alpha_s, sigma * beta_s)
        across = (trade, -trade * size)
        v11 = along[0] ** 2 + across[0] ** 2
        v12 = along[0] * along[1] + across[0] * across[1]
        v22 = along[1] ** 2 + across[1] ** 2
        det = max(v11 * v22 - v12 * v12, 1e-300)
        p11, p12, p22 = v22 / det, -v12 / det, v11 / det
        prior = (p11, p12, p22, p11 * alpha_s + p12 * beta_s, p12 * alpha_s + p22 * beta_s)
        return cls(prior, prior_step_s=(alpha_s, beta_s))

    @property
    def noise(self) -> float:
        """Relative standard deviation of one measurement, from residuals so far."""
        return math.sqrt((_NOISE_WEIGHT * MEASURED_SIGMA**2 + self.residuals) / (_NOISE_WEIGHT + self.count))

    def observe(self, size: int, step_s: float) -> IterationFit:
        """One measured step time at a size; implausible figures (not positive, not finite) are left out."""
        if not (0.0 < step_s < math.inf) or size < 1:
            return self
        known = bool(self.sizes) or self.prior_step_s is not None
        error = step_s / self.step_s(size)[0] - 1.0 if known and size in self.sizes else 0.0
        # Errors are relative: weigh by the step time as believed (as measured, when nothing is).
        weight = 1.0 / (self.step_s(size)[0] if known else step_s) ** 2
        x = 1.0 / size
        more = (weight, weight * x, weight * x * x, weight * step_s, weight * x * step_s)
        d = self.data
        return replace(
            self,
            data=(d[0] + more[0], d[1] + more[1], d[2] + more[2], d[3] + more[3], d[4] + more[4]),
            sizes=tuple(sorted({*self.sizes, size})),
            count=self.count + (1.0 if size in self.sizes else 0.0),
            residuals=self.residuals + min(error * error, 1.0),
        )

    def _sums(self) -> tuple[float, float, float, float, float]:
        scale = 1.0 / self.noise**2
        p, d = self.prior, self.data
        return (p[0] + scale * d[0], p[1] + scale * d[1], p[2] + scale * d[2], p[3] + scale * d[3], p[4] + scale * d[4])

    def coefficients(self) -> tuple[float, float]:
        """(alpha, beta), neither negative."""
        p11, p12, p22, s1, s2 = self._sums()
        if self.prior_step_s is None and len(self.sizes) < 2:
            # One size cannot tell the parts apart: all of it divides (beta = c g, alpha = 0).
            return 0.0, s2 / p22 if p22 > 0 else math.nan
        det = p11 * p22 - p12 * p12
        alpha, beta = (p22 * s1 - p12 * s2) / det, (p11 * s2 - p12 * s1) / det
        if alpha < 0.0:
            return 0.0, s2 / p22
        if beta < 0.0:
            return s1 / p11, 0.0
        return alpha, beta

    def step_s(self, size: int) -> tuple[float, float]:
        """Seconds per step at a size, and its relative standard deviation."""
        alpha, beta = self.coefficients()
        x = 1.0 / size
        mean = alpha + beta * x
        p11, p12, p22, _, _ = self._sums()
        if self.prior_step_s is None and len(self.sizes) < 2:
            if not self.sizes or p22 <= 0.0 or not mean > 0.0:
                return math.nan, math.inf
            # Known at one size; each doubling away from it adds the doubt of a declared figure.
            away = abs(math.log2(size / min(self.sizes)))
            return mean, math.hypot(math.sqrt(x * x / p22) / mean, DECLARED_SIGMA * away)
        det = p11 * p22 - p12 * p12
        variance = (p22 - 2.0 * x * p12 + x * x * p11) / det
        return mean, math.sqrt(max(variance, 0.0)) / mean


def prior_of_scaling(
    steps_per_s: float, size: int, scaling: Scaling, sigma: float = DECLARED_SIGMA, servers: int = 0
) -> IterationFit:
    """The prior that a declared speed at a reference size and a scaling curve amount to.

    alpha and beta go through the curve at the reference size and at twice it.
    """
    here = 1.0 / steps_per_s
    there = here * float(scaling.speed(size, servers)) / float(scaling.speed(2 * size, servers))
    beta = max(0.0, 2.0 * size * (here - there))
    return IterationFit.from_prior(max(0.0, here - beta / size), beta, sigma, size)


@dataclass(frozen=True)
class RatioPool:
    """How measured speed compares with the declared one, over similar jobs: mean and spread of the log ratio.

    Serves as the prior of a job of which nothing has been measured. Sums fit into a memo as plain numbers.
    """

    count: float = 0.0
    total: float = 0.0
    squares: float = 0.0

    def record(self, ratio: float) -> RatioPool:
        """One job's measured speed over its declared speed."""
        value = math.log(ratio)
        return RatioPool(self.count + 1.0, self.total + value, self.squares + value * value)

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else 0.0

    @property
    def sigma(self) -> float:
        """0 while nothing has been measured: declared speeds are then taken at their word."""
        if self.count == 0.0:
            return 0.0
        # One pseudo-observation at the declared figure keeps a first lucky measurement from closing the band.
        return math.sqrt(max(self.squares / self.count - self.mean**2, self.squares / (self.count + 1.0) ** 2))

    def factor(self, probability: float) -> float:
        """Speed relative to the declared one that is exceeded with this probability."""
        return math.exp(self.mean - quantile_z(probability) * self.sigma) if self.count else 1.0

    def prior(self, fit: IterationFit, size: int) -> IterationFit:
        """A declared prior moved and narrowed (or widened) by what similar jobs did."""
        if self.count == 0.0 or fit.prior_step_s is None:
            return fit
        alpha, beta = fit.prior_step_s
        slower = math.exp(-self.mean)
        weight = self.count / (self.count + 4.0)
        sigma = math.sqrt((1.0 - weight) * DECLARED_SIGMA**2 + weight * self.sigma**2)
        return IterationFit.from_prior(alpha * slower, beta * slower, sigma, size)


@dataclass(frozen=True)
class Eta:
    """A predicted finish. `p10_ms` <= `p50_ms` <= `p90_ms`; `sigma`: relative spread of what is left."""

    p10_ms: int
    p50_ms: int
    p90_ms: int
    sigma: float


@dataclass(frozen=True)
class CompletionModel:
    """One job's predictor. `type_factor` and `spread_factor` are step times relative to the reference type on
    one node (the catalogue's figures), so that one fit serves all types and placements."""

    fit: IterationFit
    type_factor: Mapping[str, float] = field(default_factory=dict)
    spread_factor: float = 1.0

    def measured(self, size: int, steps_per_s: float, accelerator: str = "", spread: bool = False) -> CompletionModel:
        """Measured progress: speed at a size, on a type, spread over nodes or not."""
        if not steps_per_s > 0.0:
            return self
        return replace(self, fit=self.fit.observe(size, 1.0 / steps_per_s / self._factor(accelerator, spread)))

    def _factor(self, accelerator: str, spread: bool) -> float:
        return self.type_factor.get(accelerator, 1.0) * (self.spread_factor if spread else 1.0)

    def step_s(self, size: int, accelerator: str = "", spread: bool = False) -> tuple[float, float]:
        """Seconds per step and relative standard deviation there."""
        mean, sigma = self.fit.step_s(size)
        return mean * self._factor(accelerator, spread), sigma

    def remaining_s(
        self,
        steps_left: float,
        size: int,
        accelerator: str = "",
        spread: bool = False,
        probability: float = 0.5,
    ) -> float:
        """R(c) = steps left x g(c), not exceeded with this probability (log-normal band)."""
        mean, sigma = self.step_s(size, accelerator, spread)
        log_sigma = math.sqrt(math.log1p(sigma * sigma)) if sigma < math.inf else math.inf
        return max(steps_left, 0.0) * mean * math.exp(quantile_z(probability) * log_sigma)

    def eta(
        self,
        now_ms: int,
        steps_left: float,
        size: int,
        accelerator: str = "",
        spread: bool = False,
        delay_ms: int = 0,
    ) -> Eta:
        """When it finishes at this size, if it becomes productive after `delay_ms`."""
        low, middle, high = (
            now_ms + delay_ms + math.ceil(self.remaining_s(steps_left, size, accelerator, spread, p) * MS_PER_S)
            for p in (0.1, 0.5, 0.9)
        )
        return Eta(low, middle, high, self.step_s(size, accelerator, spread)[1])
