"""What policies believe: throughput catalogue, scaling curves, fitted speeds, completion.

How jobs really behave is `sim.truth`; forecasts of a queue are in `forecast`.
"""
