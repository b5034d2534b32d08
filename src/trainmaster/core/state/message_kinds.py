"""Kinds of messages (see `core.state.messages`), as plain numbers for compiled modules."""

from __future__ import annotations

SUBMITTED, STARTED, START_FAILED, RESIZED, PROGRESSED, EXITED, STOPPED, OTHER = range(8)
LAUNCH, RESIZE, STOP = range(8, 11)
