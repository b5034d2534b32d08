"""A leader stops acting before another may begin, however slowly the API server answers."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from trainmaster.backends.kubernetes.api.client import Unreachable
from trainmaster.backends.kubernetes.election import Election, ElectionRule

RULE = ElectionRule(lease_s=1.0, give_up_s=0.3, renew_s=0.05, request_s=2.0)


class Server:
    """Keeps one Lease; answers at once until it is told to hang."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.slow: set[str] = set()

    async def request(self, method: str, path: str, *, timeout_s: float, **options: Any) -> Any:
        if method in self.slow:
            await asyncio.sleep(timeout_s)
            raise Unreachable(0, "Unreachable", "timed out")
        if method == "GET":
            return self.lease or {"metadata": {"resourceVersion": "0"}, "spec": {}}
        self.lease = options["body"]
        assert self.lease is not None
        self.lease["metadata"]["resourceVersion"] = str(time.monotonic_ns())
        return self.lease

    async def replace(self, path: str, body: Any, **options: Any) -> Any:
        return await self.request("PUT", path, body=body, **options)

    async def list_all(self, *_: Any, **__: Any) -> Any:
        await asyncio.sleep(60.0)


def _seconds_until_lost(slow: str) -> float:
    async def story() -> float:
        server, lost = Server(), asyncio.Event()
        election = Election(server, "ns", "n", "me", rule=RULE, on_lead=lambda: None, on_lose=lost.set)  # type: ignore[arg-type]
        task = asyncio.ensure_future(election.run())
        await asyncio.sleep(4 * RULE.renew_s)
        assert election.leading()
        server.slow = {slow}
        begun_s = time.monotonic()
        await asyncio.wait_for(lost.wait(), 5.0)
        task.cancel()
        return time.monotonic() - begun_s

    return asyncio.run(story())


def test_a_leader_whose_renewals_hang_gives_up_in_time() -> None:
    for slow in ("GET", "PUT"):
        assert _seconds_until_lost(slow) < RULE.lease_s, slow
