"""Keeps the backups of this server's blocks near enough: whole states, copied when enough has changed.

A copy replaces what the backup had, so it may be repeated, and one copy covers all updates since the last. The
price is (1 + slots) blocks for every `replica_lag` / 2 updates or more; forwarding every gradient would cost one each.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainmaster.runtime.ps.server import ShardServer

COPIES_AT_ONCE = 4
FLUSH_EVERY_S = 0.25
"""A block at rest is fully backed up after at most so long."""
RETRY_S = 0.02


class Replicator:
    def __init__(self, server: ShardServer) -> None:
        self._server = server
        self._at_once = asyncio.Semaphore(COPIES_AT_ONCE)

    def consider(self, block: int, flush: bool = False) -> None:
        """Start a copy of this block if it is due."""
        block_store = self._server.block_store
        if block_store.copy_is_due(block, flush):
            block_store.mark_copying(block)
            self._server.spawn(self._copy(block))

    def consider_all(self, flush: bool = False) -> None:
        for block in self._server.block_store.homes:
            self.consider(block, flush)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_EVERY_S)
            self.consider_all(flush=True)

    async def _copy(self, block: int) -> None:
        server = self._server
        async with self._at_once:
            begun = server.block_store.begin_copy(block)
            if begun is None:
                return  # it has gone elsewhere meanwhile
            backup, since_epoch, state = begun
            version = None
            try:
                peer = await server.peers.to(server.block_store.map.addresses[backup])
                if await peer.copy(block, server.block_store.map.epoch, state):
                    version = state.version
            except (OSError, KeyError):
                pass
        if version is None:
            await asyncio.sleep(RETRY_S)  # the backup is dead or does not know the map yet: a new one will come
        server.answer(server.block_store.end_copy(block, since_epoch, version))
        self.consider(block)
