"""The domain: jobs, clusters, allocations, snapshots, plans, events, commands and reasons.

Values and their checks alone: rules over arrays are in `core`, the state machine is in `engine`.
"""
