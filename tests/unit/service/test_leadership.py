"""What a replica does when it cannot take over the state."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import structlog

from trainmaster.service import service as module
from trainmaster.service.options import ServiceOptions
from trainmaster.service.service import MAX_RETRY_S, Service


def test_pauses_grow_while_the_state_cannot_be_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service(ServiceOptions(home=tmp_path, backend="simulated"))
    service.log = structlog.get_logger()
    outcomes = iter([False] * 6 + [True] + [False] * 2)
    pauses: list[float | None] = []

    async def hold() -> bool:
        return next(outcomes)

    async def first(*events: asyncio.Event, wait_s: float | None = None) -> None:
        pauses.extend([] if wait_s is None else [wait_s])
        if len(pauses) == 8:
            service._stop.set()

    monkeypatch.setattr(service, "_hold_session", hold)
    monkeypatch.setattr(module, "_first", first)
    asyncio.run(service._lead())
    assert pauses == [2, 4, 8, 16, MAX_RETRY_S, MAX_RETRY_S, 2, 4]
