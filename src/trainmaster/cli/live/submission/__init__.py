"""From options and job files to a request: shared by `submit`, `run` and `whatif`."""
