"""DAS: two learned agents, one orders the pending jobs, the other places them."""

from trainmaster.policies.das.policy import Das

__all__ = ["Das"]
