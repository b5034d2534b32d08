"""Learning to schedule: environment, training runs, and rooms for DL2, DAS and elastic sizing.

Policies that decide from the weights are in `policies`.
"""
