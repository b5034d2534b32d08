"""The platform of a cluster: access, TrainingJobs in and out, status, logs, forwarding.

Pods are in `backends.kubernetes`.
"""
