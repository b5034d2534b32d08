"""Dual prices p = L (U/L)^(used/capacity), in log space, and the constants L and U they rest on.

Two rules give the constants from a population of jobs:

`paper`    U1^r = max_i f_i(best) / w_i^r: one worker-slot on a full server costs more than any job is
           worth. L1 = min_i f_i(T - a_i) / (ceil(W_i) sum_r w_i^r) / (4 eta1), one value for all resources,
           with 1/eta1 = min_i ceil(W_i) sum_r w_i^r / (T sum_h sum_r c_h^r); L2, U2 likewise with s and the
           PS servers.
`density`  (default) In utility per unit of resource and slot, density_i^r = f_i(best) / (slots_i w_i^r),
           slots_i being the worker-slots (PS-slots) of the whole job: U^r = `scale` * max_i density_i^r,
           about where the best job breaks even, and L^r = `low` / K * min_i density_i^r with K the number
           of priced resources of both roles, so that the least dense job seen keeps 1 - `low` of its
           utility in an idle cluster. Capacity is checked by the placement itself, so U need not keep jobs
           off full servers by price; U/L loses the factor W, and L no longer rests on f_i(T - a_i), which
           underflows. In the engine max is a `quantile`, so that one outlier does not price out everyone.

A server of both roles takes the lower L and the higher U of the two. Under either rule the floor keeps ln(U/L) at
most `spread_max`: with a vanishing L prices stay near zero until a server is full, and the algorithm degenerates into
"admit what fits". f_i(best) is the utility with all N workers throughout. Resources a job does not demand are skipped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainmaster.model.utility import FloatArray

PriceRule = Literal["density", "paper"]
HISTORY_MIN = 20
"""Jobs from which on the top of the densities is a quantile and no longer their maximum."""


@dataclass(frozen=True)
class PriceSettings:
    """How constants follow from a population. `spread_max` is the floor on L, as the largest ln(U/L)."""

    rule: PriceRule = "density"
    scale: float = 1.0
    low: float = 0.5
    spread_max: float = 5.5
    quantile: float = 1.0


PAPER_SETTINGS = PriceSettings(rule="paper", scale=1.0, low=1.0, spread_max=math.inf)
Densities = list[float | None]
"""ln of utility per unit and slot of each resource, of workers, then of PS; None: not demanded."""


def densities(ln_best: float, amounts: Sequence[float]) -> Densities:
    """`amounts`: unit-slots of each resource that the whole job takes."""
    return [ln_best - math.log(amount) if amount > 0 else None for amount in amounts]


class Extent(NamedTuple):
    """What the paper's rule needs of a job beside its densities; both roles."""

    ln_worst: float
    ln_slots: tuple[float, float]
    ln_total: tuple[float, float]
    """ln sum_r of a member's demand; -inf: no demand."""

    @staticmethod
    def of(ln_worst: float, slots: Sequence[float], totals: Sequence[float]) -> Extent:
        """`slots` that the whole job takes, and the sum of a member's demand, by role."""
        (workers, servers), (worker, server) = map(_log, slots), map(_log, totals)
        return Extent(ln_worst, (workers, servers), (worker, server))

    def to_json(self) -> list[float | None]:
        flat = [self.ln_worst, *self.ln_slots, *self.ln_total]
        return [number if math.isfinite(number) else None for number in flat]

    @staticmethod
    def from_json(data: Sequence[float | None]) -> Extent:
        worst, workers, servers, worker, server = (-math.inf if number is None else number for number in data)
        return Extent(worst, (workers, servers), (worker, server))


def _log(amount: float) -> float:
    return math.log(amount) if amount > 0 else -math.inf


@dataclass(frozen=True)
class PriceTable:
    """ln L and ln U - ln L per server and resource; `alpha` of the bound 2 alpha."""

    ln_low: FloatArray
    ln_spread: FloatArray
    alpha: float

    def prices(self, used: FloatArray, capacity: FloatArray) -> FloatArray:
        """Unit prices for commitments `used` (... x servers x resources)."""
        fraction = np.divide(used, capacity, out=np.zeros_like(used), where=capacity > 0)
        return np.exp(self.ln_low + self.ln_spread * fraction)


def price_table(
    jobs: Sequence[Densities],
    resources: int,
    hosts: NDArray[np.bool_],
    settings: PriceSettings,
    extents: Sequence[Extent] = (),
    supply: tuple[float, float] = (0.0, 0.0),
) -> PriceTable:
    """The constants of every server; `hosts`: servers x roles. `extents` of the jobs and `supply` of each role,
    T sum_h sum_r c_h^r, are for the paper's rule."""
    known = np.array(jobs, np.float64).reshape(len(jobs), 2 * resources)  # None becomes NaN
    low, high = _paper(known, extents, supply) if settings.rule == "paper" else _density(known, settings)
    lows, highs = (np.where(hosts[:, :, None], part.reshape(2, resources), np.nan) for part in (low, high))
    ln_high = np.fmax.reduce(highs, axis=1)
    ln_low = np.fmax(np.fmin.reduce(lows, axis=1), ln_high - settings.spread_max)
    # A resource nobody seen demands has no U yet: its price is zero.
    priced = np.isfinite(ln_high) & np.isfinite(ln_low)
    ln_spread = np.where(priced, np.maximum(ln_high - ln_low, 0.0), 0.0)
    return PriceTable(np.where(priced, ln_low, -np.inf), ln_spread, max(1.0, float(ln_spread.max(initial=0.0))))


def _density(known: FloatArray, settings: PriceSettings) -> tuple[FloatArray, FloatArray]:
    """(ln L, ln U) of each resource of both roles; NaN: nobody demands it."""
    columns = [column[~np.isnan(column)] for column in known.T]
    priced = max(sum(len(column) > 0 for column in columns), 1)
    high = np.array([_top(column, settings.quantile) for column in columns]) + math.log(settings.scale)
    return np.fmin.reduce(known, axis=0, initial=np.nan) + math.log(settings.low / priced), high


def _top(values: FloatArray, quantile: float) -> float:
    """The quantile, between neighbours in a straight line; of few values the maximum."""
    if len(values) < HISTORY_MIN or quantile >= 1.0:
        return float(values.max()) if len(values) else math.nan
    at = (len(values) - 1) * quantile
    low, high = np.sort(values)[int(at) : int(at) + 2].tolist()
    part = at - int(at)
    return high - (high - low) * (1.0 - part) if part >= 0.5 else low + (high - low) * part


def _paper(known: FloatArray, extents: Sequence[Extent], supply: tuple[float, float]) -> tuple[FloatArray, FloatArray]:
    resources = known.shape[1] // 2
    if not len(known):
        return np.full(2 * resources, np.nan), np.full(2 * resources, np.nan)
    ln_slots, ln_total = (np.array([getattr(e, name) for e in extents]) for name in ("ln_slots", "ln_total"))
    ln_whole = np.where(ln_total > -math.inf, ln_slots + ln_total, np.inf)
    ln_worst = np.where(ln_whole < math.inf, np.array([[e.ln_worst] for e in extents]) - ln_whole, np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        ln_low = ln_worst.min(axis=0) + ln_whole.min(axis=0) - np.log(supply) - math.log(4.0)
    return np.repeat(ln_low, resources), np.fmax.reduce(known + np.repeat(ln_slots, resources, axis=1), axis=0)
