"""The agent port towards callers that have shown no token: nothing they say ends anything, and they hold little."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from trainmaster.backends.kubernetes.attempts.observations import RunKey, run_token
from trainmaster.backends.kubernetes.launchers import hub as hubs
from trainmaster.backends.kubernetes.launchers.connection import MAX_UNPROVED_BYTES
from trainmaster.backends.kubernetes.launchers.hub import AgentHub
from trainmaster.gang.protocol import Attach, encode
from trainmaster.launcher.dialing import PATH, PROTOCOL
from trainmaster.model.lease import LeaseRule

HELLO = f"GET {PATH} HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: {PROTOCOL}\r\n\r\n".encode()
KEY = RunKey("job", 1)


async def _dial(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(HELLO)
    assert b"101" in await reader.readuntil(b"\r\n\r\n")
    return reader, writer


def _with_hub(story: Callable[[AgentHub, int], Awaitable[None]]) -> None:
    async def run() -> None:
        hub = AgentHub(b"s", LeaseRule(), lambda: 0, None)  # type: ignore[arg-type]
        port = await hub.listen("127.0.0.1", 0)
        try:
            await story(hub, port)
        finally:
            await hub.close()

    asyncio.run(asyncio.wait_for(run(), 60))


def _attach(token: str) -> bytes:
    return encode(Attach(token, KEY.job_id, KEY.generation, "worker-0", "boot", "", False))


@pytest.mark.parametrize(
    "line",
    [
        b"[" * 2_000 + b"\n",
        _attach("x").replace(b'"x"', b'"\\ud800"'),
        _attach("x").replace(b'"x"', b"9" * 5_000),
        _attach("guess"),
        b"\xff\n",
        b"x" * (MAX_UNPROVED_BYTES + 1),
    ],
)
def test_what_cannot_be_is_hung_up_on_and_others_are_served(line: bytes) -> None:
    async def story(hub: AgentHub, port: int) -> None:
        reader, writer = await _dial(port)
        writer.write(line)
        assert await asyncio.wait_for(reader.read(), hubs.ATTACH_S / 2) == b"", "hung up at once"
        reader, writer = await _dial(port)
        writer.write(_attach(run_token(b"s", KEY)))
        assert b"is over" in await reader.readline(), "who has the token is answered"

    _with_hub(story)


def test_many_callers_without_a_token_hold_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each may send little, and beyond a number of them the oldest are hung up on."""
    monkeypatch.setattr(hubs, "MAX_STRANGERS", 20)

    async def story(hub: AgentHub, port: int) -> None:
        callers: list[Any] = []
        for _ in range(60):
            callers.append(await _dial(port))
            callers[-1][1].write(b"x" * (MAX_UNPROVED_BYTES - 1))
        for reader, _ in callers[:40]:
            assert await reader.read() == b"", "the oldest"
        assert len(hub._strangers) == 20
        assert all(line._unproved < MAX_UNPROVED_BYTES for line in hub._strangers)

    _with_hub(story)
