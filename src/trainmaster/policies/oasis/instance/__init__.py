"""OASiS as its paper states it, on admission instances: formulation, prices, schedules, baselines.

The policy in the engine is one folder up; the offline optimum is in `optimum`.
"""
