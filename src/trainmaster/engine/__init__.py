"""The synchronous core: life cycle, plan verification, dispatch. No clock, no I/O, no randomness."""
