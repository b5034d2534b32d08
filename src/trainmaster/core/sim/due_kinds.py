"""Kinds of what is due in a simulated world, as plain numbers for compiled modules."""

from __future__ import annotations

DUE_STARTED, DUE_MEASURED, DUE_STOPPED, DUE_FINISH, DUE_COLLAPSE, DUE_OTHER = range(6)
