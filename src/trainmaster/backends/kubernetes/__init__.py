"""Kubernetes: the same engine and policies schedule pods."""
