"""Stages of a step in the run loop, and what it returns for."""

from __future__ import annotations

(
    AT_NEXT, AT_ADVANCE, AT_BEGIN, AT_REPORTS, AT_SUBMIT, AT_LEASES, AT_BACKOFFS, AT_DECISION, AT_RESEND, AT_COMMANDS,
) = range(10)  # fmt: skip
OVER, RESTLESS, PAUSED_RUN, FAIL_NODES, HEARD, REPORT, SUBMIT, LEASES, HOLDS, DECIDE, SENT = range(1, 12)
MAX_STEPS_AT_ONCE = 10_000
"""Steps at one and the same moment after which a run is stuck: plans are carried out and nothing comes of it."""
MAX_IDLE_WAKES = 100_000
