"""How one member is brought to its end: notice, SIGTERM, grace, SIGKILL."""

from __future__ import annotations

import signal
from collections.abc import Iterable

from trainmaster.backends.local.member_process import Member
from trainmaster.gang.endpoint import Endpoint
from trainmaster.gang.protocol import StopNotice

TERM_SHARE = 0.6
"""Part of the grace that a member which has been given notice has before SIGTERM."""
KILL_AGAIN_S = 1.0


def ask_to_end(endpoint: Endpoint, member: Member, why: str, grace_s: float, now_s: float) -> None:
    """Notice to a member that listens, SIGTERM to any other; SIGKILL after the grace. A shorter grace counts."""
    if member.kill_at_s is not None and member.kill_at_s <= now_s + grace_s:
        return  # it has been asked
    again = member.kill_at_s is not None
    member.leaving, member.kill_at_s = True, now_s + grace_s
    if again or not endpoint.send(member.name, StopNotice(why, grace_s)):
        member.signal(signal.SIGTERM)
    else:
        member.term_at_s = now_s + grace_s * TERM_SHARE


def let_go(member: Member, now_s: float, within_s: float) -> None:
    """A membership leaves it out: it may hand over what it holds, and goes by itself; if not, it is made to."""
    if member.kill_at_s is None:
        member.term_at_s, member.kill_at_s = now_s + within_s * TERM_SHARE, now_s + within_s


def escalate(members: Iterable[Member], now_s: float) -> None:
    """Do what is due to those who have been asked."""
    for member in members:
        if member.term_at_s is not None and now_s >= member.term_at_s:
            member.term_at_s = None
            member.signal(signal.SIGTERM)
        if member.kill_at_s is not None and now_s >= member.kill_at_s:
            member.kill_at_s, member.term_at_s = now_s + KILL_AGAIN_S, None
            member.signal(signal.SIGKILL)


def next_due_s(members: Iterable[Member]) -> list[float]:
    return [at_s for member in members for at_s in (member.term_at_s, member.kill_at_s) if at_s is not None]
