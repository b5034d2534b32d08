"""Stages of a step in the run loop, and what it returns for."""

from __future__ import annotations

(
    AT_NEXT, AT_ADVANCE, AT_BEGIN, AT_REPORTS, AT_SUBMIT, AT_LEASES, AT_BACKOFFS, AT_DECISION, AT_RESEND, AT_COMMANDS,
) = range(10)  # fmt: skip
OVER, RESTLESS, PAUSED_RUN, FAIL_NODES, HEARD, REPORT, SUBMIT, LEASES, GATE, DECIDE, SENT = range(1, 12)
