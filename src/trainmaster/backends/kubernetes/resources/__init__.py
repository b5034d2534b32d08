"""Kubernetes objects that Trainmaster defines or fills in: CRD, chart, RBAC, status, events.

Pods of attempts are in `attempts`.
"""
