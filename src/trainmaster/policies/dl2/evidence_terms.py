"""Constants of `speed_evidence`."""

N_TERM = 7
FACTOR_TRUST = 8.0
"""That jobs of a model are equally fast counts as much as so many profiled points."""
PROGRESS_WEIGHT = 100.0
"""A slot's progress counts as much as so many profiled points: it is measured over minutes, not over a few steps."""
TURNS = 2
"""Of curve and factors at each decision; they go on at the next."""
