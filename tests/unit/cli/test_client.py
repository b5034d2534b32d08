"""Finding the service, and what is said when it is not there, not ours, or not well."""

import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from trainmaster.client.address import Address
from trainmaster.client.client import Client, patiently
from trainmaster.client.errors import Unavailable
from trainmaster.model.errors import TrainmasterError


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("TRAINMASTER_HOME", "TRAINMASTER_URL", "TRAINMASTER_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / ".trainmaster"


def _closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_no_home(bare: Path, invoke: Any) -> None:
    code, out, err = invoke("queue")
    assert (code, out) == (1, "")
    assert err == f"error: no service found: {bare} has no address; start one with `trainmaster up`\n"


def test_an_address_where_nobody_listens(bare: Path, invoke: Any) -> None:
    bare.mkdir()
    url = f"http://127.0.0.1:{_closed_port()}"
    (bare / "address").write_text(url)
    (bare / "token").write_text("t")
    code, _, err = invoke("queue")
    assert code == 1
    assert err == (
        f"error: no service at {url} (from {bare}/address): connection refused; start one with `trainmaster up`\n"
    )


@pytest.mark.parametrize("text", ["", "127.0.0.1:80", "ftp://x", "http://", "http://x:port", "http://x:99999"])
def test_an_address_that_is_none(bare: Path, invoke: Any, text: str) -> None:
    bare.mkdir()
    (bare / "address").write_text(text)
    (bare / "token").write_text("t")
    code, _, err = invoke("queue")
    assert code == 2
    assert "invalid service address" in err


def test_a_home_that_is_a_file(bare: Path, invoke: Any) -> None:
    bare.write_text("")
    assert invoke("queue")[0] == 2


def test_a_wrong_token(service: Any, invoke: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINMASTER_URL", service.url)
    monkeypatch.setenv("TRAINMASTER_TOKEN", "wrong")
    code, _, err = invoke("queue")
    assert (code, err) == (1, "error: the token is not known\n")


def test_the_environment_names_another_service(service: Any, invoke: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINMASTER_HOME", "/nowhere")
    assert invoke("queue")[0] == 1
    monkeypatch.setenv("TRAINMASTER_URL", service.url)
    monkeypatch.setenv("TRAINMASTER_TOKEN", "secret-token")
    assert invoke("queue")[0] == 0


def test_home_option_goes_before_the_environment(service: Any, invoke: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    home = os.environ["TRAINMASTER_HOME"]
    monkeypatch.setenv("TRAINMASTER_URL", f"http://127.0.0.1:{_closed_port()}")
    assert invoke("queue", "--home", home)[0] == 0


class _Answers(threading.Thread):
    """Answers every connection with the same bytes."""

    def __init__(self, answer: bytes) -> None:
        super().__init__(daemon=True)
        self._answer = answer
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.start()

    def run(self) -> None:
        while True:
            connection, _ = self._socket.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(self._answer)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (b"", "connection to http://127.0.0.1"),
        (b"SSH-2.0-OpenSSH\r\n", "connection to http://127.0.0.1"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort", "connection to http://127.0.0.1"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", "is not a Trainmaster service"),
        (b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n", "is it a Trainmaster service?"),
        (b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n", "answer 500"),
        (b'HTTP/1.1 503 No\r\nContent-Length: 26\r\n\r\n{"what":"the disk is full"}'[:-1] + b"}", "cannot answer now"),
        (b'HTTP/1.1 409 No\r\nContent-Length: 25\r\n\r\n{"what":"\\u001b[2Jcleared"}', ""),
    ],
)
def test_strangers_give_one_message(bare: Path, invoke: Any, monkeypatch: Any, answer: bytes, told: str) -> None:
    monkeypatch.setenv("TRAINMASTER_URL", _Answers(answer).url)
    code, out, err = invoke("queue")
    assert (code, out) == (1, "")
    assert told in err
    assert err.count("\n") == 1
    assert "\x1b" not in err


def test_a_service_that_does_not_answer_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = Address(f"http://127.0.0.1:{silent.getsockname()[1]}", "", "here")
        with Client(address, timeout_s=0.05) as client, pytest.raises(Unavailable, match="does not answer"):
            client.get("/jobs")


def test_patience_outlasts_a_restart_and_ends() -> None:
    asked = 0
    away: list[str] = []

    def ask() -> str:
        nonlocal asked
        asked += 1
        if asked < 3:
            raise Unavailable("away")
        return "back"

    assert patiently(ask, away.append) == "back"
    assert away == ["away"]
    asked = -100
    with pytest.raises(TrainmasterError, match="away"):
        patiently(ask, away.append, limit_s=0.1)


def test_the_token_is_not_shown() -> None:
    assert "secret" not in repr(Address("http://x", "secret", "here"))
