"""Scheduling policies, one file or one small folder each, found through the registry.

Parts that several share are in `shared`; compiled queue passes are in `core.engine`.
"""
