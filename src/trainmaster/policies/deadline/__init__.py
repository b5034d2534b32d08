"""Deadline QoS: the user gives a deadline, the scheduler finds the resources."""

from trainmaster.policies.deadline.policy import Deadline

__all__ = ["Deadline"]
