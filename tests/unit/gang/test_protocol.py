"""Whatever a job or a pod writes on the line is a message, or is refused: no value gets through that breaks us."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from trainmaster.gang.protocol import Hello, LineBuffer, Membership, Peer, Progress, WireError, decode, encode

DIGITS = "9" * 401
HOSTILE_NUMBERS = [DIGITS, "1e999", "-1e999", "NaN", "Infinity", "-Infinity", "9" * 5000, "true", '"1"', "[]", "1e16"]


def line(**fields: str) -> bytes:
    return ("{" + ",".join(f'"{name}":{value}' for name, value in fields.items()) + "}").encode()


@pytest.mark.parametrize("value", HOSTILE_NUMBERS)
@pytest.mark.parametrize("name", ["work_done", "rate", "loss", "saved"])
def test_a_progress_line_holds_finite_numbers_or_is_refused(name: str, value: str) -> None:
    fields = {"type": '"Progress"', "work_done": "1", name: value}
    try:
        message = decode(line(**fields))
    except WireError:
        return
    assert isinstance(message, Progress)
    assert name != "work_done" and getattr(message, name) is None, "a loss of NaN is no loss; steps must be a number"
    assert math.isfinite(message.work_done)


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 2000,
        b'{"type":"Renew","number":' + b"[" * 100_000,
        b'{"type":"Renew","number":' + DIGITS.encode() + b"}",
        b'{"type":"Hello","token":"\\ud800","member":"worker-0","pid":1,"elastic":true}',
        b'{"type":"Membership","version":1,"peers":[[]],"master_addr":"","master_port":1}',
        b'{"type":["Renew"]}',
        b"\xff\xfe",
        b"null",
    ],
    ids=lambda data: repr(data[:40]),
)
def test_nonsense_is_refused_as_such(data: bytes) -> None:
    with pytest.raises(WireError):
        LineBuffer().feed(data + b"\n")


@pytest.mark.parametrize(
    "message",
    [
        Hello("secret", "worker-0", 7, True),
        Progress(1.5, 2.0, -0.25, None, True),
        Membership(3, (Peer("worker-0", "worker", 0),), "127.0.0.1", 29500, "grow"),
    ],
)
def test_a_message_survives_the_line(message: Any) -> None:
    assert decode(encode(message).strip()) == message


def test_a_diverged_loss_does_not_lose_the_steps() -> None:
    sent = json.dumps({"type": "Progress", "work_done": 12.0, "loss": math.nan}).encode()
    assert decode(sent) == Progress(12.0)
