"""The HTTP client of the service: address, transport, typed errors.

No terminal output: that is `cli`.
"""
