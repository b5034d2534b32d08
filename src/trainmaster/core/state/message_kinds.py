"""Kinds of messages (see `core.state.messages`), as plain numbers for compiled modules."""

from __future__ import annotations

STARTED, START_FAILED, RESIZED, PROGRESSED, EXITED, STOPPED, OTHER = range(1, 8)
LAUNCH, RESIZE, STOP = range(8, 11)
