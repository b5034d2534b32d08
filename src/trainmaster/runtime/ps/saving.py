"""Checkpoints of a parameter-server job: every block as its home has it, gathered by one server, in one file.

Each block is consistent in itself. In synchronous training all are of the same step, because the worker that
asks for the checkpoint takes no further step before they are gathered. In asynchronous training blocks may be
some updates apart, as they are at any moment anyway.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from trainmaster.model.errors import InputError
from trainmaster.runtime.checkpoint import Checkpoints
from trainmaster.runtime.ps.block import BlockState, unpack
from trainmaster.runtime.ps.terms import Terms

if TYPE_CHECKING:
    from trainmaster.runtime.ps.server import ShardServer

GATHER_PATIENCE_S = 20.0
_RETRY_S = 0.02
_FETCHES_AT_ONCE = 8


class Saver:
    """`checkpoints` None: nothing is saved or restored."""

    def __init__(self, checkpoints: Checkpoints | None) -> None:
        self._checkpoints = checkpoints
        self.check_lease: Callable[[], None] = lambda: None
        """Raises when this process may not change anything any more."""
        self._lock = asyncio.Lock()

    async def save(self, server: ShardServer) -> dict[str, Any]:
        """Work in the checkpoint; it is on disk when this returns."""
        if self._checkpoints is None:
            return {"saved": None}
        async with self._lock:
            terms = server.block_store.terms
            if terms is None:
                raise ConnectionError("there is nothing to save yet")
            states = await self._gather(server, terms)
            work = min(state.work for state in states)
            await asyncio.get_running_loop().run_in_executor(None, self._write, terms, states, work)
        return {"saved": work}

    def _write(self, terms: Terms, states: list[BlockState], work: int) -> None:
        assert self._checkpoints is not None
        blocks = [
            {"params": s.params, "slots": s.slots, "version": s.version, "work": s.work, "seen": s.seen} for s in states
        ]
        # A recovery may have cost a few updates: the newest checkpoint must all the same be the one found first.
        earlier = self._checkpoints.steps()
        number = max(work, earlier[-1] + 1 if earlier else 0)
        self._checkpoints.save(number, {"terms": terms.to_json(), "work": work, "blocks": blocks}, self.check_lease)

    def load(self, terms: Terms) -> list[BlockState] | None:
        """The blocks of the newest checkpoint, or None; `InputError` when it is of another model or optimizer."""
        loaded = self._checkpoints.load() if self._checkpoints is not None else None
        if loaded is None:
            return None
        stored = Terms.from_json(loaded.state["terms"])
        if stored.layout != terms.layout:
            raise InputError(
                f"the checkpoint of step {loaded.step} holds another model ({_sketch(stored)}; here {_sketch(terms)})",
                "the same parameters, in the same order, cut into the same blocks",
                "Restore the model's definition, or start the job with another checkpoint folder.",
            )
        if stored.optimizer.kind != terms.optimizer.kind or stored.optimizer.slots != terms.optimizer.slots:
            raise InputError(
                f"the checkpoint of step {loaded.step} was made with {stored.optimizer}",
                f"the kind used here, {terms.optimizer}",
                "Use the same kind of optimizer, or start the job with another checkpoint folder.",
            )
        return [
            BlockState(
                np.ascontiguousarray(b["params"]), np.ascontiguousarray(b["slots"]), b["version"], b["work"], b["seen"]
            )
            for b in loaded.state["blocks"]
        ]

    async def restore(self, terms: Terms) -> list[BlockState] | None:
        return await asyncio.get_running_loop().run_in_executor(None, self.load, terms)

    async def _gather(self, server: ShardServer, terms: Terms) -> list[BlockState]:
        at_once = asyncio.Semaphore(_FETCHES_AT_ONCE)
        until_s = asyncio.get_running_loop().time() + GATHER_PATIENCE_S

        async def get(block: int) -> BlockState:
            async with at_once:
                while True:
                    state = await self._get(server, terms, block)
                    if state is not None:
                        return state
                    if asyncio.get_running_loop().time() > until_s:
                        raise ConnectionError(f"block {block} could not be had for a checkpoint")
                    await asyncio.sleep(_RETRY_S)

        return list(await asyncio.gather(*(get(block) for block in range(terms.layout.blocks))))

    async def _get(self, server: ShardServer, terms: Terms, block: int) -> BlockState | None:
        """None while the block is on its way from one server to another."""
        here = server.block_store.peek(block)
        if here is not None:
            return here
        current = server.block_store.map
        if block >= len(current.home) or current.home[block] == server.name:
            return None
        try:
            peer = await server.peers.to(current.addresses[current.home[block]])
            body = await peer.fetch(block, current.epoch, hand_over=False)
        except OSError:
            return None
        return unpack(body, terms.layout.block_size_floats(block), terms.optimizer.slots) if body else None


def _sketch(terms: Terms) -> str:
    layout = terms.layout
    return f"{len(layout.tensors)} tensors, {layout.floats} numbers in blocks of {layout.block_floats}"
