"""Learning to schedule: environment, trainers, evaluation. Importing it makes `trainmaster/Sizing-v0` known."""

from importlib.util import find_spec

if find_spec("gymnasium") is not None:
    from trainmaster.learn.environment import register

    register()
