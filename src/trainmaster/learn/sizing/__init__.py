"""Elastic sizing in time slots: traces, the fast simulator, bounds.

The Gymnasium environment is `learn.environment`.
"""
