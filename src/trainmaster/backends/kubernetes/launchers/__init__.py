"""Connections of the launchers in pods: renewals and leases that lapse.

The launcher itself is the package `launcher`.
"""
