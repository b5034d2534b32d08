"""Fault simulation: real code in simulated worlds that misbehave by a seed. See docs/testing.md."""
