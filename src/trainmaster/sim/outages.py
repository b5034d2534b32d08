"""Nodes that fail: power cuts, pulled cables, leases that run out, and what the service side learns of it.

Functions on the simulated backend. A node that was declared lost begins anew when it returns: a declaration
is a promise that no lease of what ran there is renewed (see `trainmaster.model.event.NodeLost`).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from trainmaster.model import event as ev

if TYPE_CHECKING:
    from trainmaster.sim.backend import SimulatedBackend


def power_off(backend: SimulatedBackend, node: int) -> None:
    """A power cut: everything on the node ends at once, and its agent's records are gone."""
    core, now_ms = backend.core, backend.now_ms
    if not core.powered[node]:
        return
    core.set_power(node, False)
    backend.outage[node] += 1
    core.end_members(node)
    backend.later(now_ms + backend.detect_ms, partial(_notice, backend, node, backend.outage[node], now_ms, True))


def power_on(backend: SimulatedBackend, node: int) -> None:
    """The node starts again; that it had been off is known at the latest now."""
    core = backend.core
    if core.powered[node]:
        return
    core.set_power(node, True)
    if core.linked[node]:
        if backend.declared[node] is None:
            backend.report(ev.NodeLost(node, backend.now_ms, True, backend.seen_up_to))
        backend.declared[node] = None
        backend.later(backend.now_ms + backend.detect_ms, partial(_come_back, backend, node))


def cut(backend: SimulatedBackend, node: int, renewed_ago_ms: int = 0) -> None:
    """The network cable is pulled: workers go on until their lease, last renewed a while ago, ends."""
    if not backend.core.linked[node]:
        return
    backend.core.set_link(node, False)
    backend.outage[node] += 1
    sent_ms, outage = backend.now_ms - renewed_ago_ms, backend.outage[node]
    lease_ms = (backend.lease.worker_ends_ms(sent_ms) - sent_ms) * (1.0 + backend.clock_drift[node])
    backend.later(sent_ms + int(lease_ms), partial(_lease_end, backend, node, outage))
    backend.later(backend.now_ms + backend.detect_ms, partial(_notice, backend, node, outage, sent_ms, False))


def heal(backend: SimulatedBackend, node: int) -> None:
    """The cable is back. A node that had been declared lost begins anew: nothing there is renewed."""
    core = backend.core
    if core.linked[node]:
        return
    core.set_link(node, True)
    backend.outage[node] += 1
    if backend.declared[node] is not None:
        core.end_members(node)
    if core.powered[node]:
        backend.declared[node] = None
    core.replan_on(node)
    backend.later(backend.now_ms + backend.detect_ms, partial(_come_back, backend, node))


def declare(backend: SimulatedBackend, node: int, last_renewed_ms: int, confirmed: bool) -> None:
    lost = backend.declared[node] = ev.NodeLost(node, last_renewed_ms, confirmed, backend.seen_up_to)
    backend.report(lost)


def _lease_end(backend: SimulatedBackend, node: int, outage: int) -> None:
    if backend.outage[node] == outage:
        backend.core.end_members(node)


def _notice(backend: SimulatedBackend, node: int, outage: int, last_renewed_ms: int, confirmed: bool) -> None:
    """The service side notices that a node is gone, and declares it lost."""
    if backend.outage[node] == outage and not backend.core.is_reachable(node):
        declare(backend, node, last_renewed_ms, confirmed)


def _come_back(backend: SimulatedBackend, node: int) -> None:
    if backend.core.is_reachable(node):
        backend.report(ev.NodeJoined(node))
