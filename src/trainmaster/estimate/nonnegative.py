"""Non-negative least squares: min |A x - b|, x >= 0 (Lawson and Hanson, Solving Least Squares Problems, 1974,
chapter 23). For the few columns that curve fits need."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trainmaster.core.arrays import Floats


def nonnegative_least_squares(a: npt.ArrayLike, b: npt.ArrayLike) -> Floats:
    """The solution; bounded by iterations (3 per column, as usual for the active-set method, times 10)."""
    matrix, wanted = np.asarray(a, np.float64), np.asarray(b, np.float64)
    n = matrix.shape[1]
    # Columns of very different size (1/w beside w*p) would make the tolerance meaningless.
    scale = np.linalg.norm(matrix, axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    matrix = matrix / scale
    x = np.zeros(n)
    passive = np.zeros(n, np.bool_)
    tolerance = 1e-11 * max(1.0, float(np.linalg.norm(wanted)))
    for _ in range(30 * n):
        gradient = matrix.T @ (wanted - matrix @ x)
        gradient[passive] = -np.inf
        entering = int(np.argmax(gradient))
        if gradient[entering] <= tolerance:
            break
        passive[entering] = True
        while True:
            trial = np.zeros(n)
            trial[passive] = np.linalg.lstsq(matrix[:, passive], wanted, rcond=None)[0]
            if (trial[passive] > 0).all():
                x = trial
                break
            blocking = passive & (trial <= 0)
            # Go as far towards the trial as stays feasible; what reaches zero leaves.
            step = float((x[blocking] / (x[blocking] - trial[blocking])).min())
            x = x + step * (trial - x)
            leaving = passive & (x <= 1e-12)
            x[leaving] = 0.0
            passive &= ~leaving
            if not passive.any():
                break
    return x / scale
