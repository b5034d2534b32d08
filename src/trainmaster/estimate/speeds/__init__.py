"""The one speed estimator: what jobs showed of their speeds, and what follows for other sizes, types and partners."""
