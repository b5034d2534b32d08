"""Gangs of other controllers that name our scheduler.

Our own TrainingJobs are in `attempts`.
"""
