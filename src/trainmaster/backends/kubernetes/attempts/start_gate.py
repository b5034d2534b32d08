"""How many pods are being made and bound at a time. Gangs pass in the order in which they came.

Without it thousands of pods would all be described at once and all be made before the first is bound; so a gang that
was first would wait for the last one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class StartGate:
    def __init__(self, limit: int) -> None:
        """`limit`: pods at a time; a gang that is larger passes alone."""
        self._limit = limit
        self._inside = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def busy(self) -> bool:
        return self._inside > 0

    @asynccontextmanager
    async def turn(self, n_pods: int) -> AsyncIterator[None]:
        if self._waiting or not self._fits(n_pods):
            await self._turn(n_pods)
        else:
            self._inside += n_pods
        try:
            yield
        finally:
            self._leave(n_pods)

    def _fits(self, n_pods: int) -> bool:
        return self._inside == 0 or self._inside + n_pods <= self._limit

    async def _turn(self, n_pods: int) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((n_pods, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._leave(n_pods)  # it had been let in, but nobody came
            else:
                self._let_in()  # it may have stood in the way of others
            raise

    def _leave(self, n_pods: int) -> None:
        self._inside -= n_pods
        self._let_in()

    def _let_in(self) -> None:
        while self._waiting and (self._waiting[0][1].done() or self._fits(self._waiting[0][0])):
            n_pods, turn = self._waiting.popleft()
            if not turn.done():
                self._inside += n_pods
                turn.set_result(None)
