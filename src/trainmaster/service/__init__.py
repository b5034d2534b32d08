"""The service: control plane, REST, leader session, platforms.

Decisions are in `engine` and `policies`; processes and pods are in `backends`.
"""
