"""Which server holds which block: balanced by bytes, and as few blocks moved as that allows.

The map is a pure function of who holds what now and of the servers that are to hold it. Every block has a
home, which applies updates, and a backup on another server when there is one. No server gets more than the
mean plus one block: those that stay are kept only up to the mean, the others go, largest first, to whoever
has least, who is then not above the mean; among equals, to whoever has the block already.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

NOBODY = ""


@dataclass(frozen=True)
class ShardMap:
    """`epoch` grows with every map. `home[b]`, `backup[b]`: names of servers, or `NOBODY`."""

    epoch: int
    addresses: Mapping[str, str]
    home: tuple[str, ...] = ()
    backup: tuple[str, ...] = ()

    def blocks_of(self, server: str) -> list[int]:
        return [block for block, name in enumerate(self.home) if name == server]

    def to_json(self) -> dict[str, Any]:
        names = sorted(self.addresses)
        number = {name: index for index, name in enumerate(names)} | {NOBODY: -1}
        return {
            "epoch": self.epoch,
            "servers": [[name, self.addresses[name]] for name in names],
            "home": [number[name] for name in self.home],
            "backup": [number[name] for name in self.backup],
        }

    @staticmethod
    def from_json(data: dict[str, Any]) -> ShardMap:
        servers = [(str(name), str(address)) for name, address in data["servers"]]

        def names(numbers: list[int]) -> tuple[str, ...]:
            return tuple(NOBODY if number < 0 else servers[number][0] for number in numbers)

        return ShardMap(int(data["epoch"]), dict(servers), names(data["home"]), names(data["backup"]))


def assign_homes(sizes_bytes: Sequence[int], servers: Sequence[str], present: Sequence[str]) -> tuple[str, ...]:
    """`present[b]`: who holds block b now (any name, or `NOBODY`). `servers` must not be empty."""
    return _balance(sizes_bytes, servers, present, [NOBODY] * len(sizes_bytes))


def assign_backups(
    sizes_bytes: Sequence[int], servers: Sequence[str], homes: Sequence[str], present: Sequence[str]
) -> tuple[str, ...]:
    """Never the home itself; nobody when there is one server only."""
    if len(servers) < 2:
        return tuple(NOBODY for _ in sizes_bytes)
    return _balance(sizes_bytes, servers, present, homes)


def _balance(
    sizes: Sequence[int], servers: Sequence[str], present: Sequence[str], forbidden: Sequence[str]
) -> tuple[str, ...]:
    mean = sum(sizes) / len(servers)
    load = dict.fromkeys(servers, 0)
    chosen = [NOBODY] * len(sizes)
    for block, size in enumerate(sizes):
        server = present[block]
        if server in load and server != forbidden[block] and load[server] + size <= mean:
            chosen[block] = server
            load[server] += size
    homeless = sorted((block for block, name in enumerate(chosen) if not name), key=lambda b: (-sizes[b], b))
    order = {server: rank for rank, server in enumerate(servers)}
    for block in homeless:
        # Among equals, one that holds it already saves a transfer; then the senior.
        server = min(
            (name for name in servers if name != forbidden[block]),
            key=lambda name: (load[name], name != present[block], order[name]),
        )
        chosen[block] = server
        load[server] += sizes[block]
    return tuple(chosen)
