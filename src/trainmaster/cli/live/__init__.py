"""Commands that speak to a running service, and those that start one."""
