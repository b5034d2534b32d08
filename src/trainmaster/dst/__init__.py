"""Fault simulation: real code in a seeded world with crashes, losses and delays.

Nothing in production imports it.
"""
