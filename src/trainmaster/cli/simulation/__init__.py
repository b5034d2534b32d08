"""Commands that need no service: simulate, compare, solve, traces, policies."""
