"""Scheduling policies, one file (or one small folder) each, found through the registry."""
