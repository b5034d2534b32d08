"""The commands: `live`, `simulation`, `learning`, and what they share.

HTTP is in `client`; job fields are in `jobspec`.
"""
