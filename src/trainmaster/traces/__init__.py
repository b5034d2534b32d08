"""Traces of training jobs: read, write, import, generate, fit, describe."""

from trainmaster.traces.jobtrace import load, write
from trainmaster.traces.trace import JobTrace

__all__ = ["JobTrace", "load", "write"]
