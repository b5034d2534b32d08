"""Attempts as pods: from commands of the engine to pods, and from pods to reports.

The state machine of an attempt is in `gang.attempt`; connections of launchers are in `launchers`.
"""
