"""The simulated world, compiled: attempts, speeds, what is due when, and the run loop.

Options, truth and experiments are in `sim`.
"""
