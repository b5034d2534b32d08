"""Low-rank completion of a partly observed matrix by alternating least squares, with biases.

    y_mc ~ mu_c + lift_c a_m + u_m . v_c

`mu` is the mean of a column; `a` the scale of a row, which acts only on columns with lift 1 (logarithms
of speeds, where a row's unit is arbitrary); u, v are the low-rank part, ridge-regularised (Zhou et al.,
"Large-scale parallel collaborative filtering for the Netflix prize", AAIM 2008). Each half step is exact
and the number of steps is fixed, so that the same seed gives the same bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainmaster.core.arrays import Bools, Floats

_BIAS_RIDGE = 1e-6
"""Keeps a bias of which nothing is observed at zero."""


@dataclass(frozen=True)
class CompletionOptions:
    rank: int = 4
    ridge: float = 0.2
    sweeps: int = 25


@dataclass(frozen=True)
class LowRankModel:
    """What completion learnt of the columns; new rows are folded in without touching it."""

    mean: Floats
    lift: Floats
    factors: Floats
    """(columns, rank)"""
    weight: Floats
    ridge: float
    residual_sd: Floats
    """Root mean square residual of each column over the rows it was fitted to."""

    def fold_in(self, row: Floats, observed: Bools, weight: Floats | None = None) -> Floats:
        """The completed row: one exact row step. Observed cells come out smoothed, not copied."""
        weights = self.weight if weight is None else weight
        coefficients = _row_step(row[None, :], observed[None, :], self, weights[None, :])[0]
        return self.mean + self.lift * coefficients[0] + self.factors @ coefficients[1:]


def complete(
    matrix: Floats, observed: Bools, lift: Floats, weight: Floats, options: CompletionOptions, seed: int
) -> tuple[LowRankModel, Floats]:
    """Fit to the observed cells; returns the model of the columns and the completed matrix.

    `weight` says how much a cell of each column counts. Unobserved cells may hold anything, NaN included.
    """
    rows, columns = matrix.shape
    rank = max(0, min(options.rank, rows - 1, columns - 1))
    rng = np.random.Generator(np.random.PCG64(seed))
    seen = np.where(observed, matrix, 0.0)
    cell_weight = np.where(observed, weight[None, :], 0.0)
    factors = rng.normal(0.0, 0.1, (columns, rank))
    mean = _initial_mean(seen, observed, lift)
    model = LowRankModel(mean, lift, factors, weight, options.ridge, np.zeros(columns))
    coefficients = np.zeros((rows, rank + 1))
    for _ in range(options.sweeps):
        coefficients = _row_step(seen, observed, model, np.broadcast_to(weight, seen.shape))
        mean, factors = _column_step(seen, cell_weight, coefficients, lift, options.ridge)
        model = LowRankModel(mean, lift, factors, weight, options.ridge, np.zeros(columns))
    completed = mean + np.outer(coefficients[:, 0], lift) + coefficients[:, 1:] @ factors.T
    error = np.where(observed, seen - completed, 0.0)
    count = np.maximum(observed.sum(axis=0), 1)
    residual_sd = np.sqrt((error**2).sum(axis=0) / count)
    return LowRankModel(mean, lift, factors, weight, options.ridge, residual_sd), completed


def _initial_mean(seen: Floats, observed: Bools, lift: Floats) -> Floats:
    """Column means after the scale of each row (the mean of its lifted cells) is taken off."""
    lifted = observed & (lift > 0)[None, :]
    scale = np.where(lifted, seen, 0.0).sum(axis=1) / np.maximum(lifted.sum(axis=1), 1)
    centred = np.where(observed, seen - np.outer(scale, lift), 0.0)
    return centred.sum(axis=0) / np.maximum(observed.sum(axis=0), 1)


def _row_step(rows: Floats, observed: Bools, model: LowRankModel, weight: Floats) -> Floats:
    """Ridge regression of every row on (lift, factors): coefficients (rows, 1 + rank)."""
    design = np.concatenate([model.lift[:, None], model.factors], axis=1)
    penalty = np.diag(np.concatenate([[_BIAS_RIDGE], np.full(model.factors.shape[1], model.ridge)]))
    weights = np.where(observed, weight, 0.0)
    right = np.where(observed, rows, 0.0) - np.where(observed, model.mean[None, :], 0.0)
    normal = np.einsum("mc,ci,cj->mij", weights, design, design) + penalty
    return np.linalg.solve(normal, ((weights * right) @ design)[..., None])[..., 0]


def _column_step(
    seen: Floats, weights: Floats, coefficients: Floats, lift: Floats, ridge: float
) -> tuple[Floats, Floats]:
    """Ridge regression of every column on (1, u): its mean and factors."""
    rows = coefficients.shape[0]
    design = np.concatenate([np.ones((rows, 1)), coefficients[:, 1:]], axis=1)
    penalty = np.diag(np.concatenate([[_BIAS_RIDGE], np.full(design.shape[1] - 1, ridge)]))
    right = seen - np.outer(coefficients[:, 0], lift)
    normal = np.einsum("mc,mi,mj->cij", weights, design, design) + penalty
    found = np.linalg.solve(normal, ((weights * right).T @ design)[..., None])[..., 0]
    return found[:, 0], found[:, 1:]
