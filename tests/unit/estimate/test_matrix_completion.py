"""Completion recovers what really is of low rank; half steps are exact; nothing depends on unobserved
cells.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmaster.estimate.matrix_completion import CompletionOptions, complete


def low_rank(rows: int, columns: int, rank: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A matrix of the model's form: column means, a scale for each row on lifted columns, a low-rank part."""
    rng = np.random.default_rng(seed)
    lift = (np.arange(columns) < columns // 3).astype(float)
    matrix = rng.normal(0, 1, columns) + np.outer(rng.normal(0, 3, rows), lift)
    return matrix + rng.normal(0, 1, (rows, rank)) @ rng.normal(0, 1, (rank, columns)), lift


@pytest.mark.parametrize("seed", range(4))
def test_recovers_unobserved_cells_of_a_low_rank_matrix(seed: int) -> None:
    matrix, lift = low_rank(30, 24, 2, seed)
    observed = np.random.default_rng(seed + 50).random(matrix.shape) < 0.7
    options = CompletionOptions(rank=2, ridge=1e-3, sweeps=200)
    _, filled = complete(np.where(observed, matrix, np.nan), observed, lift, np.ones(24), options, seed)
    error = np.sqrt(np.mean((filled - matrix)[~observed] ** 2))
    plain = np.sqrt(np.mean((matrix - np.nanmean(np.where(observed, matrix, np.nan), axis=0))[~observed] ** 2))
    assert error < 0.05 * plain


def test_a_new_row_is_folded_in() -> None:
    matrix, lift = low_rank(40, 18, 2, 7)
    everything = np.ones((39, 18), bool)
    model, _ = complete(matrix[:39], everything, lift, np.ones(18), CompletionOptions(2, 1e-4, 100), 0)
    observed = np.zeros(18, bool)
    observed[[0, 7, 9, 12, 15]] = True
    filled = model.fold_in(np.where(observed, matrix[39], 0.0), observed)
    assert filled == pytest.approx(matrix[39], abs=0.05)


def test_fold_in_solves_its_least_squares_problem() -> None:
    """Oracle: the same ridge problem as one stacked least-squares system."""
    matrix, lift = low_rank(12, 9, 2, 3)
    weight = np.linspace(0.5, 2.0, 9)
    model, _ = complete(matrix, np.ones((12, 9), bool), lift, weight, CompletionOptions(2, 0.3, 10), 1)
    observed = np.array([1, 0, 1, 1, 0, 1, 0, 1, 0], bool)
    row = np.random.default_rng(0).normal(0, 1, 9)
    design = np.column_stack([lift, model.factors])[observed] * np.sqrt(weight[observed])[:, None]
    stacked = np.vstack([design, np.diag(np.sqrt([1e-6, 0.3, 0.3]))])
    right = np.concatenate([(row - model.mean)[observed] * np.sqrt(weight[observed]), np.zeros(3)])
    solution = np.linalg.lstsq(stacked, right, rcond=None)[0]
    expected = model.mean + lift * solution[0] + model.factors @ solution[1:]
    assert model.fold_in(row, observed) == pytest.approx(expected, abs=1e-8)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), shift=st.floats(-5, 5), junk=st.floats(-1e3, 1e3))
def test_scale_of_a_row_is_free_and_unobserved_cells_do_not_matter(seed: int, shift: float, junk: float) -> None:
    matrix, lift = low_rank(8, 9, 1, seed)
    model, _ = complete(matrix, np.ones((8, 9), bool), lift, np.ones(9), CompletionOptions(2, 0.1, 8), 0)
    observed = np.array([1, 0, 0, 1, 1, 0, 0, 0, 1], bool)
    base = model.fold_in(np.where(observed, matrix[0], 0.0), observed)
    moved = model.fold_in(np.where(observed, matrix[0] + lift * shift, junk), observed)
    assert moved == pytest.approx(base + lift * shift, abs=1e-3)


def test_same_seed_same_bytes() -> None:
    matrix, lift = low_rank(10, 9, 2, 5)
    seen = np.random.default_rng(1).random((10, 9)) < 0.8
    runs = [complete(matrix, seen, lift, np.ones(9), CompletionOptions(), 4)[1].tobytes() for _ in range(2)]
    assert runs[0] == runs[1]
