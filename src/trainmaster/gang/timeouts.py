"""One table of the times that members of an attempt are given, in seconds. For Python 3.8 too: the launcher uses it."""

from __future__ import annotations

LEAVE_S = 60.0
"""A member that a membership leaves out has so long to hand over what it holds before it is terminated."""
RENEW_AFTER_S = 0.5
"""After a member is suspected, so long until its peers get a new membership: mostly its exit arrives before."""
SUSPICIONS = 3
"""A live member that is suspected under so many memberships in a row is terminated."""
HELLO_LIMIT_S = 120.0
"""When some members have said hello, the others have so long before the gang counts as plain."""
PLAIN_AFTER = 6
"""When no member has, the gang counts as plain after so many times `hello_wait_s`: a needless restart is costly."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 10.0
"""Pause before an empty seat is filled again; it doubles with every death without progress."""
TERM_SHARE = 0.6
"""SIGTERM follows the stop notice after this share of the grace."""
KILL_AGAIN_S = 1.0
"""SIGKILL is repeated at this interval."""
REAP_S = 10.0
"""Descendants that were killed are reaped for at most so long."""
