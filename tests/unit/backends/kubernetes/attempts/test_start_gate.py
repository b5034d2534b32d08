"""Gangs pass in turn, a few at a time."""

from __future__ import annotations

import asyncio

from trainmaster.backends.kubernetes.attempts.start_gate import StartGate


class Crowd:
    """Gangs at a gate; `inside` are those that have passed and not left."""

    def __init__(self, limit: int) -> None:
        self.gate = StartGate(limit)
        self.inside: list[str] = []
        self.leave: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def come(self, name: str, n_pods: int) -> None:
        self.leave[name] = asyncio.Event()
        self.tasks[name] = asyncio.ensure_future(self._go(name, n_pods))
        await settled()

    async def _go(self, name: str, n_pods: int) -> None:
        async with self.gate.turn(n_pods):
            self.inside.append(name)
            try:
                await self.leave[name].wait()
            finally:
                self.inside.remove(name)

    async def goes(self, name: str) -> None:
        self.leave[name].set()
        await settled()

    async def gives_up(self, name: str) -> None:
        self.tasks[name].cancel()
        await settled()


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_as_many_as_fit_pass_and_the_rest_in_the_order_in_which_they_came() -> None:
    async def story() -> None:
        crowd = Crowd(10)
        await crowd.come("a", 6)
        await crowd.come("b", 4)
        await crowd.come("c", 8)
        await crowd.come("d", 1)
        assert crowd.inside == ["a", "b"]
        await crowd.goes("b")
        assert crowd.inside == ["a"], "d would fit, but c came first"
        await crowd.goes("a")
        assert crowd.inside == ["c", "d"]

    asyncio.run(story())


def test_a_gang_larger_than_the_gate_passes_alone() -> None:
    async def story() -> None:
        crowd = Crowd(10)
        await crowd.come("a", 1)
        await crowd.come("large", 64)
        await crowd.come("b", 1)
        assert crowd.inside == ["a"]
        await crowd.goes("a")
        assert crowd.inside == ["large"]
        await crowd.goes("large")
        assert crowd.inside == ["b"]

    asyncio.run(story())


def test_one_that_gives_up_holds_up_nobody() -> None:
    async def story() -> None:
        crowd = Crowd(10)
        await crowd.come("a", 6)
        await crowd.come("waits", 8)
        await crowd.come("b", 4)
        await crowd.gives_up("waits")
        assert crowd.inside == ["a", "b"]
        await crowd.come("c", 10)
        await crowd.gives_up("a")
        await crowd.goes("b")
        assert crowd.inside == ["c"]

    asyncio.run(story())


def test_one_that_gives_up_as_it_is_let_in_gives_its_place_back() -> None:
    async def story() -> None:
        crowd = Crowd(10)
        await crowd.come("a", 10)
        await crowd.come("b", 10)
        crowd.leave["a"].set()
        while crowd.inside:
            await asyncio.sleep(0)
        crowd.tasks["b"].cancel()  # its turn has come, but it has not noticed yet
        await crowd.come("c", 10)
        assert crowd.inside == ["c"]

    asyncio.run(story())
