"""The members of an attempt: state machine, membership, environment, processes, protocol."""
