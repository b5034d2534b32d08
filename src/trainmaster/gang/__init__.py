"""The members of an attempt: state machine, memberships, environment, processes, protocol.

No scheduling: which seats there are comes from the engine. Standard library only.
"""
