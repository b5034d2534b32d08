"""A replica that does not lead: what it answers itself, and what it refuses before anybody is identified."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from trainmaster.service.api.limits import MAX_BODY, BodyLimit
from trainmaster.service.kubernetes.forwarding import Forwarding


async def _app(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 503, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def _answered(app: Any, path: str, pieces: int = 0, headers: tuple[tuple[bytes, bytes], ...] = ()) -> tuple[int, bytes]:
    sent: list[dict[str, Any]] = []
    read = 0

    async def receive() -> dict[str, Any]:
        nonlocal read
        read += 1
        assert read <= 3, "more is read than the limit allows"
        return {"type": "http.request", "body": b"x" * MAX_BODY, "more_body": read < pieces}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http", "path": path, "raw_path": path.encode(), "method": "POST", "query_string": b"",
        "headers": list(headers),
    }  # fmt: skip
    asyncio.run(app(scope, receive, send))
    return sent[0]["status"], sent[1]["body"]


def _standby(leads: bool = False) -> Forwarding:
    return Forwarding(_app, lambda: "" if leads else "http://127.0.0.1:9", lambda: True, lambda: leads)


def test_a_standby_takes_no_body_beyond_the_limit() -> None:
    status, body = _answered(_standby(), "/api/v1/jobs", pieces=100)
    assert status == 413
    assert b"too large" in body


def test_a_standby_has_metrics_of_its_own() -> None:
    status, body = _answered(_standby(), "/metrics")
    assert status == 200
    assert b"trainmaster_standby 1" in body
    assert _answered(_standby(leads=True), "/metrics")[0] == 503, "the leader's are the application's"


@pytest.mark.parametrize("length", [b"9" * 5_000, b"-1", b"\xb2"])
def test_a_declared_length_that_cannot_be_read_is_refused(length: bytes) -> None:
    assert _answered(BodyLimit(_app), "/", headers=((b"content-length", length),))[0] == 413
