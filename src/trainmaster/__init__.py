"""Trainmaster: schedules deep-learning training jobs on GPU clusters."""

import os

__version__ = "0.1.0"

if os.environ.get("TRAINMASTER_PURE", "") not in ("", "0"):
    from trainmaster import _uncompiled

    _uncompiled.prefer_sources()
