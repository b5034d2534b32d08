"""The state machine: events in, commands out; verification, rare events, persistence, queries.

No clock, no I/O, no randomness. Compiled rules are in `core`; what drives it live is in `service.control`.
"""
