"""What can go wrong in the hands of a training script; each message says what to do.

TrainmasterError
  RuntimeFault
    AgentUnreachable     the agent that started this process does not answer
    LeaseOver            a step or a save was tried without a lease
    MisuseError          calls in an order that makes no sense
    WorldSizeError       workers that were announced did not come
    CheckpointError      nothing could be written or read; what was there before still is
      IncompatibleState  a checkpoint or a peer holds another model, optimizer or data set
"""

from __future__ import annotations

from trainmaster.model.errors import TrainmasterError


class RuntimeFault(TrainmasterError):
    """Root of the errors of `trainmaster.runtime`."""


def missing(what: str, package: str) -> ModuleNotFoundError:
    """For a script whose Python lacks a package; still a `ModuleNotFoundError`, so that it can be caught as one."""
    return ModuleNotFoundError(
        f"trainmaster.{what} needs {package}, which this Python does not have. Install it: pip install {package}",
        name=package,
    )


class AgentUnreachable(RuntimeFault):
    pass


class LeaseOver(RuntimeFault):
    pass


class MisuseError(RuntimeFault):
    pass


class WorldSizeError(RuntimeFault):
    pass


class CheckpointError(RuntimeFault):
    pass


class IncompatibleState(CheckpointError):
    pass
