"""Job traces: reader, importers, generator, fit.

What a simulation makes of them is in `sim.workload`.
"""

from trainmaster.traces.jobtrace import load, write
from trainmaster.traces.trace import JobTrace

__all__ = ["JobTrace", "load", "write"]
