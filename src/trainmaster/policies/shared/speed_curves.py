# cython: cdivision=True
"""Speed curves by row, as compiled passes read them: seconds per unit of work by workers and servers."""

from __future__ import annotations

from trainmaster.core.int_list import Floats


class SpeedCurves:
    """The seven coefficients of `Scaling`, one row for each job."""

    def __init__(self, coefficients: Floats) -> None:
        self.coefficients = coefficients

    def step_time(self, row: int, workers: float, servers: float) -> float:
        """Seconds per unit of work with so many workers and servers."""
        c = self.coefficients
        seconds = c[row, 0] / workers + c[row, 1] + c[row, 3] * workers
        if servers > 0:
            seconds += (
                c[row, 2] * workers / servers
                + c[row, 4] * servers
                + c[row, 5] / servers
                + c[row, 6] * servers / workers
            )
        return seconds
