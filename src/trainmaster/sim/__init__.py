"""The simulated world: event loop, simulated backend, truth, faults and metrics."""
