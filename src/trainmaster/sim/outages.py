"""Nodes that fail: power cuts, pulled cables, leases that run out, and what the service side learns of it.

Functions on the simulated backend. A node that was declared lost begins anew when it returns: a declaration
is a promise that no lease of what ran there is renewed (see `trainmaster.model.event.NodeLost`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmaster.model import event as ev
from trainmaster.sim.incarnation import Incarnation

if TYPE_CHECKING:
    from trainmaster.sim.backend import SimulatedBackend


def power_off(backend: SimulatedBackend, node: int) -> None:
    """A power cut: everything on the node ends at once, and its agent's records are gone."""
    if not backend.powered[node]:
        return
    backend.powered[node] = False
    backend.outage[node] += 1
    members_end(backend, node)
    for job_id in [j for j, record in backend.records.items() if node in record.nodes]:
        backend.records[job_id].nodes.discard(node)
        if not backend.records[job_id].nodes:
            del backend.records[job_id]
    backend._schedule(backend.now_ms + backend.detect_ms, "notice", (node, backend.outage[node], backend.now_ms, True))


def power_on(backend: SimulatedBackend, node: int) -> None:
    """The node starts again; that it had been off is known at the latest now."""
    if backend.powered[node]:
        return
    backend.powered[node] = True
    if backend.linked[node]:
        if backend.declared[node] is None:
            backend._report(ev.NodeLost(node, backend.now_ms, True, backend.seen_up_to))
        backend.declared[node] = None
        backend._schedule(backend.now_ms + backend.detect_ms, "return", node)


def cut(backend: SimulatedBackend, node: int, renewed_ago_ms: int = 0) -> None:
    """The network cable is pulled: workers go on until their lease, last renewed a while ago, ends."""
    if not backend.linked[node]:
        return
    settle_on(backend, node)
    backend.linked[node] = False
    backend.outage[node] += 1
    sent_ms = backend.now_ms - renewed_ago_ms
    lease_ms = (backend.lease.worker_ends_ms(sent_ms) - sent_ms) * (1.0 + backend.clock_drift[node])
    backend._schedule(sent_ms + int(lease_ms), "lease-end", (node, backend.outage[node]))
    backend._schedule(backend.now_ms + backend.detect_ms, "notice", (node, backend.outage[node], sent_ms, False))


def heal(backend: SimulatedBackend, node: int) -> None:
    """The cable is back. A node that had been declared lost begins anew: nothing there is renewed."""
    if backend.linked[node]:
        return
    settle_on(backend, node)
    backend.linked[node] = True
    backend.outage[node] += 1
    if backend.declared[node] is not None:
        members_end(backend, node)
    if backend.powered[node]:
        backend.declared[node] = None
    for incarnation in backend.running.values():
        if node in incarnation.alive:
            backend._plan_finish(incarnation)
    backend._schedule(backend.now_ms + backend.detect_ms, "return", node)


def settle_on(backend: SimulatedBackend, node: int) -> None:
    for incarnation in backend.running.values():
        if node in incarnation.alive:
            backend._settle(incarnation)


def lease_end(backend: SimulatedBackend, item: tuple[int, int]) -> None:
    node, outage = item
    if backend.outage[node] == outage:
        members_end(backend, node)


def members_end(backend: SimulatedBackend, node: int) -> None:
    """Members on a node end. The incarnation is over when none is left anywhere."""
    for incarnation in [*backend.running.values(), *backend.zombies]:
        if node not in incarnation.alive:
            continue
        backend._settle(incarnation)
        if incarnation.whole:
            backend._save_at_failure(incarnation)
        incarnation.alive.discard(node)
        incarnation.epoch += 1
        if backend.running.get(incarnation.spec.id) is not incarnation:
            continue
        if incarnation.alive:
            backend._schedule(backend.now_ms + backend.collapse_ms, "collapse", incarnation)
        else:
            backend._end(incarnation, backend.saved.get(incarnation.spec.id, 0.0), None)
    backend.zombies = [zombie for zombie in backend.zombies if zombie.alive]


def collapse(backend: SimulatedBackend, incarnation: Incarnation) -> None:
    """The rest of a gang that lost members ends by itself, and those that can say so."""
    job_id = incarnation.spec.id
    if backend.running.get(job_id) is not incarnation:
        return
    heard = any(backend._reachable(node) for node in incarnation.alive)
    saved = backend.saved.get(job_id, 0.0)
    backend._end(incarnation, saved, None)
    if heard:
        backend._report(ev.Stopped(job_id, incarnation.generation, saved, backend._silent(incarnation.nodes)))


def notice(backend: SimulatedBackend, item: tuple[int, int, int, bool]) -> None:
    """The service side notices that a node is gone, and declares it lost."""
    node, outage, last_renewed_ms, confirmed = item
    if backend.outage[node] != outage or backend._reachable(node):
        return
    declare(backend, node, last_renewed_ms, confirmed)


def declare(backend: SimulatedBackend, node: int, last_renewed_ms: int, confirmed: bool) -> None:
    lost = backend.declared[node] = ev.NodeLost(node, last_renewed_ms, confirmed, backend.seen_up_to)
    backend._report(lost)


def come_back(backend: SimulatedBackend, node: int) -> None:
    if backend._reachable(node):
        backend._report(ev.NodeJoined(node))
