"""The platform of one machine: home folder, tokens, logs.

Processes of jobs are in `backends.local`.
"""
