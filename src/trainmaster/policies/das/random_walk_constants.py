"""Constants of the walk among machines (see `gaussian`)."""

FAR = 0.5
STEPS = 3
"""Lengths of walks 0 .. STEPS - 1 are counted; with lambda below 1 and P sub-stochastic the rest is small."""
PHI_STEP = 1.0 / 64.0
"""phi is rounded to this, so that machines in the same state are one node with a weight (the walk is lumpable)."""
LEAST_POINTS = 200
