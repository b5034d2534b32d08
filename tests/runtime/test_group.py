"""Groups of workers: on one machine, nobody from elsewhere reaches the place where they meet."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch

from trainmaster.gang import protocol as wire
from trainmaster.gang.processes import free_port
from trainmaster.runtime.group import Group, of_membership


def _listening(port: int) -> set[str]:
    """Addresses on which somebody listens at this port, as the kernel writes them."""
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            address, _, there = local.rpartition(":")
            if state == "0A" and int(there, 16) == port:
                found.add(address)
    return found


def test_the_store_of_a_gang_on_one_machine_listens_on_loopback_alone() -> None:
    peers = tuple(wire.Peer(f"worker-{rank}", wire.WORKER, rank) for rank in range(2))
    membership = wire.Membership(1, peers, "127.0.0.1", free_port())
    groups: dict[str, Group] = {}

    def join(member: str) -> None:
        groups[member] = of_membership(membership, member, torch.device("cpu"), 60.0)

    threads = [threading.Thread(target=join, args=(peer.member,)) for peer in peers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90.0)
    assert len(groups) == 2
    assert _listening(membership.master_port) == {"0100007F"}
    for group in groups.values():
        group.drop()
