"""`trainmaster logs` and `run`: text in order, across attempts, to the end, with the program's code."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from trainmaster.cli.live.following import exit_code
from trainmaster.wire.safe_text import safe_block, safe_line

LONG = "".join(f"line {number}\n" for number in range(30))


def test_logs_are_read_in_pieces(service: Any, invoke: Any, as_json: Any) -> None:
    service.add("job-1", state="running")
    service.logs["job-1", 1, "worker-0"] = LONG
    assert invoke("logs", "job-1") == (0, LONG, "")
    body = as_json("logs", "job-1")
    assert (body["text"], body["member"], body["attempts"]) == (LONG, "worker-0", 1)


def test_logs_of_an_attempt_and_a_member(service: Any, invoke: Any) -> None:
    service.add("job-1", state="finished")
    service.logs["job-1", 1, "worker-0"] = "first\n"
    service.logs["job-1", 2, "worker-0"] = "second\n"
    service.logs["job-1", 2, "worker-1"] = "other\n"
    assert invoke("logs", "job-1")[1] == "second\n"
    assert "there are also worker-1" in invoke("logs", "job-1")[2]
    assert invoke("logs", "job-1", "--attempt", "1")[1] == "first\n"
    assert invoke("logs", "job-1", "--attempt", "1", "-f")[1] == "first\n"
    assert invoke("logs", "job-1", "--member", "worker-1")[1] == "other\n"
    assert set(invoke("logs", "job-1", "--all")[1].splitlines()) == {"worker-0 | second", "worker-1 | other"}
    code, _, err = invoke("logs", "job-1", "--member", "server-9")
    assert code == 1 and "member 'server-9' not found" in err
    assert invoke("logs", "job-1", "--member", "worker-1", "--all")[0] == 2


def test_logs_of_a_job_that_has_not_started(service: Any, invoke: Any) -> None:
    service.add("job-1")
    code, out, err = invoke("logs", "job-1")
    assert (code, out) == (0, "")
    assert "has not started yet" in err


def test_following_ends_with_the_job_and_loses_nothing(service: Any, invoke: Any) -> None:
    """Text comes slowly, a second attempt begins, and the last words are written just before the end."""
    service.add("job-1", state="pending")

    def live() -> None:
        time.sleep(0.05)
        service.change("job-1", state="running")
        for number in range(20):
            key = ("job-1", 1, "worker-0")
            service.logs[key] = service.logs.get(key, "") + f"one {number}\n"
            time.sleep(0.005)
        seen = len(service.asked)
        while len(service.asked) < seen + 3:  # the reader has met the first attempt
            time.sleep(0.005)
        service.logs["job-1", 2, "worker-0"] = "two\n"
        time.sleep(0.05)
        service.logs["job-1", 2, "worker-0"] += "last words"
        service.change("job-1", state="finished")

    thread = threading.Thread(target=live)
    thread.start()
    code, out, err = invoke("logs", "-f", "job-1")
    thread.join()
    assert code == 0
    assert out == "".join(f"one {number}\n" for number in range(20)) + "two\nlast words"
    assert "started again (attempt 2)" in err


def test_following_every_member(service: Any, invoke: Any) -> None:
    service.add("job-1", state="running")
    service.logs["job-1", 1, "worker-0"] = "a\nb"
    service.logs["job-1", 1, "server-0"] = "s\n"
    threading.Timer(0.1, lambda: service.change("job-1", state="failed", exit="signal SIGKILL")).start()
    code, out, err = invoke("logs", "-f", "--all", "job-1")
    assert code == 0
    assert sorted(out.splitlines()) == ["server-0 | s", "worker-0 | a", "worker-0 | b"]
    assert "has failed: signal SIGKILL" in err


def test_logs_are_harmless_unless_raw(service: Any, invoke: Any) -> None:
    service.add("job-1", state="finished")
    service.logs["job-1", 1, "worker-0"] = "\x1b[31mred\x1b[0m\ttab\x1b]0;title\x07\n10%\r20%\n"
    assert invoke("logs", "job-1")[1] == "red\ttab\\x1b]0;title\\x07\n10%\n20%\n"
    assert invoke("logs", "job-1", "--raw")[1] == service.logs["job-1", 1, "worker-0"]


def test_run_follows_and_exits_with_the_code(service: Any, invoke: Any) -> None:
    def started(job: str) -> None:
        service.logs[job, 1, "worker-0"] = LONG
        service.change(job, state="failed", exit="exit 3")

    service.on_submit = started
    code, out, err = invoke("run", "--gpus", "1", "--", "python", "-c", "print()")
    assert (code, out) == (3, LONG)
    assert "job-1 has failed: exit 3" in err
    assert service.submitted[0].command == ["python", "-c", "print()"]


def test_run_of_an_array_waits_for_all(service: Any, invoke: Any) -> None:
    service.on_submit = lambda job: service.change(job, state="finished" if job == "job-1" else "failed", exit="exit 4")
    assert invoke("run", "--array", "2", "true")[0] == 4


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Where tests run in the background, SIGINT is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_interrupted_run_cancels_its_job(service: Any, invoke: Any) -> None:
    def started(job: str) -> None:
        service.change(job, state="running")
        service.logs[job, 1, "worker-0"] = "going\n"

    service.on_submit = started
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    code, out, err = invoke("run", "true")
    assert (code, out) == (130, "going\n")
    assert "cancelling job-1" in err and "job-1 was cancelled" in err
    assert service.jobs["job-1"].state == "cancelled"


@pytest.mark.parametrize(
    ("state", "exit_", "code"),
    [
        ("finished", "exit 0", 0),
        ("failed", "exit 3", 3),
        ("failed", "exit 3 (worker-0 ended with exit code 3)", 3),
        ("failed", "exit 0", 1),
        ("failed", "signal SIGKILL", 137),
        ("failed", "signal SIGTERM (grace)", 143),
        ("failed", "signal NONE", 1),
        ("failed", None, 1),
        ("failed", "exit 300", 1),
        ("cancelled", "signal SIGTERM", 1),
        ("rejected", None, 1),
    ],
)
def test_exit_code(state: str, exit_: str | None, code: int) -> None:
    assert exit_code({"state": state, "exit": exit_}) == code


def test_safe_text() -> None:
    assert safe_line("a\nb\x9bc\ud800\u2066") == "a\\x0ab\\x9bc\\ud800\\u2066"
    assert safe_block("a\r\nb\rc\x1b[1;31md\x1b[m\x1b[2K") == "a\nb\ncd\\x1b[2K"
    assert safe_line("naïve — 你好 🚂") == "naïve — 你好 🚂"
