"""DL2: sizes of jobs chosen by a learned network."""

from trainmaster.policies.dl2.policy import Dl2

__all__ = ["Dl2"]
