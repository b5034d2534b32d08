"""How a reservation is stored: a row of numbers, in the memo under "plan"; and what is allowed for rounding.

A row holds class, type, number of pieces, due, planned finish, then the pieces: from, until, workers.
"""

from __future__ import annotations

MAX_SEGMENTS = 8
CLASS, GPU_TYPE, COUNT, DUE, FINISH, FIRST = 0, 1, 2, 3, 4, 5
"""Columns of a reservation row: class (0 none, 1 soft, 2 promised), type, count, due, finish, pieces."""
WIDTH = FIRST + 3 * MAX_SEGMENTS
NONE, SOFT, PROMISED = 0, 1, 2
PAD_MS = 3
"""Held beyond the planned finish, so that rounding to milliseconds never cuts a job short."""
PIECES = 6.0
"""A start or growth must last for this part (1/6) of the job's run time, or until its end."""
SLIP_MS = 2
"""Allowed for each piece after the first when a finish is compared with a deadline (rounding again)."""
FOREVER = float(2**52)
