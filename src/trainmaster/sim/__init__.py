"""The simulator as users meet it: experiments, truth, outages, metrics.

The compiled world is `core.sim`; injected faults are in `dst`.
"""
