"""Builders and executable contracts of policies, backends and stores, for other packages too.

Helpers of our own tests are in `tests/lib/support`.
"""
