"""Following a log: who waits at its end does not make the service fetch all of it each time they ask."""

from __future__ import annotations

import asyncio
from typing import Any

from trainmaster.service.kubernetes.logs import BYTES_PER_S, PodLogs

JOB = "vision.a.0a1b2c3d"


class _Api:
    def __init__(self) -> None:
        self.text_read = 0
        self.log = b"first\n"

    async def get(self, path: str, **_: Any) -> dict[str, Any]:
        labels = {"trainmaster.dev/generation": "1", "trainmaster.dev/role": "worker", "trainmaster.dev/rank": "0"}
        pod = {"metadata": {"name": "a-w0", "labels": labels}, "spec": {"containers": [{"name": "main"}]}}
        return {"items": [pod]}

    async def text(self, path: str, **_: Any) -> bytes:
        self.text_read += 1
        return self.log


def _read(logs: PodLogs, offset: int) -> Any:
    return asyncio.run(logs.read(JOB, None, None, offset, 1 << 20))


def test_a_follower_at_the_end_is_answered_from_memory_for_a_while() -> None:
    api, now = _Api(), [0.0]
    logs = PodLogs(api, lambda: now[0])  # type: ignore[arg-type]
    assert _read(logs, 0).text == "first\n"
    for _ in range(5):
        chunk = _read(logs, 6)
        assert (chunk.text, chunk.offset, chunk.size, chunk.member) == ("", 6, 6, "worker-0")
    assert api.text_read == 1
    api.log += b"second\n"
    now[0] = 1.1
    assert _read(logs, 6).text == "second\n"


def test_a_long_log_is_fetched_less_often() -> None:
    api, now = _Api(), [0.0]
    logs = PodLogs(api, lambda: now[0])  # type: ignore[arg-type]
    api.log = b"x" * (3 * BYTES_PER_S)
    _read(logs, len(api.log))
    now[0] = 2.5
    _read(logs, len(api.log))
    assert api.text_read == 1
