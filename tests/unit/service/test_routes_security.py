"""Hostile or clumsy requests: refused or harmless, never a 5xx, and nothing changed."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import pytest
from service_bench import ANN_TOKEN, OPERATOR_TOKEN, Bench

from trainmaster.dst.control_plane.inline_asgi import Call, exchange
from trainmaster.model.errors import InputError
from trainmaster.service.api.limits import MAX_BODY
from trainmaster.service.local.home import Home, HomeTaken
from trainmaster.service.local.tokens import read_tokens
from trainmaster.service.options import ServiceOptions
from trainmaster.service.service import Service

T = TypeVar("T")


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.mark.parametrize("token", ["", "wrong", OPERATOR_TOKEN + "x", OPERATOR_TOKEN[:-1], "\ud800", "Bearer"])
@pytest.mark.parametrize("path", ["/jobs", "/nodes", "/events", "/entities", "/service", "/jobs/a", "/jobs/a/logs"])
def test_without_a_valid_token(bench: Bench, path: str, token: str) -> None:
    try:
        reply = bench.call("GET", path, token=token)
    except UnicodeEncodeError:
        return  # such a header cannot be sent at all
    assert reply.status == 401
    assert "Bearer TOKEN" in reply.json()["expected"]


def test_submission_needs_a_token_before_its_body_is_looked_at(bench: Bench) -> None:
    assert bench.call("POST", "/jobs", {"not": "a job"}, token="wrong").status == 401


def test_health_and_metrics_need_none(bench: Bench) -> None:
    for path in ("/healthz", "/metrics", "/docs", "/openapi.json"):
        assert exchange(bench.app, "", [Call("GET", path)], lambda r: bench.plane.batch(r))[0].status == 200


def test_the_page_of_routes_loads_nothing_from_elsewhere(bench: Bench) -> None:
    reply = exchange(bench.app, "", [Call("GET", "/docs")], lambda r: bench.plane.batch(r))[0]
    page = reply.body.decode()
    assert "/api/v1/jobs/{job}/logs" in page
    assert "<script" not in page and "http://" not in page and "https://" not in page and "src=" not in page


_BAD = [
    ({"command": []}, "command"),
    ({"command": [""]}, "command"),
    ({"command": ["a\0b"]}, "command"),
    ({"command": ["\ud800"]}, ""),
    ({"command": ["x"], "name": "../../etc/passwd"}, "name"),
    ({"command": ["x"], "name": "a b"}, "name"),
    ({"command": ["x"], "name": "$(reboot)"}, "name"),
    ({"command": ["x"], "entity": "a/b"}, "entity"),
    ({"command": ["x"], "workdir": "relative"}, "workdir"),
    ({"command": ["x"], "env": {"A=B": "c"}}, "env"),
    ({"command": ["x"], "env": {"TRAINMASTER_AGENT_TOKEN": "mine"}}, "env"),
    ({"command": ["x"], "workers": {"min": 3, "max": 2}}, "workers"),
    ({"command": ["x"], "workers": {"min": 0, "max": 2}}, "workers.min"),
    ({"command": ["x"], "gpus_per_worker": 1.5}, "gpus_per_worker"),
    ({"command": ["x"], "gpu_types": ["h100"]}, "gpu_types"),
    ({"command": ["x"], "deadline_s": -1}, "deadline_s"),
    ({"command": ["x"], "steps": float("nan")}, ""),
    ({"command": ["x"], "utility": {"kind": "odd"}}, ""),
    ({"command": ["x"], "surprise": 1}, "surprise"),
    ("text", ""),
    (None, ""),
]


@pytest.mark.parametrize(("body", "where"), _BAD)
def test_bad_submissions_are_refused_and_change_nothing(bench: Bench, body: object, where: str) -> None:
    reply = bench.call("POST", "/jobs", body)
    assert reply.status == 422, reply.body
    problem = reply.json()
    assert problem["what"]
    assert where in problem["where"]
    assert bench.get("/jobs")["total"] == 0


def test_metacharacters_are_arguments_and_nothing_else(bench: Bench) -> None:
    command = ["train", "; rm -rf /", "$(reboot)", "`id`", "a\nb", "'\"", "ünïcode", "&&", "|"]
    job = bench.submit(command=command, env={"X": "$(id)"})
    view = bench.get(f"/jobs/{job}")
    assert view["request"]["command"] == command
    launched = bench.performed[-1]
    assert launched.spec.payload["command"] == command  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "name", ["../secret", "..%2Fsecret", "worker-0/../../../../secret", "/etc/passwd", "..", ".", "worker-0\0"]
)
def test_no_name_of_a_log_leads_elsewhere(bench: Bench, name: str) -> None:
    job = bench.submit()
    folder = bench.home / "jobs" / job / "1"
    folder.mkdir(parents=True)
    (folder / "worker-0.log").write_text("fine\n")
    (bench.home / "secret.log").write_text("secret\n")
    (bench.home / "jobs" / job / "secret.log").write_text("secret\n")
    assert bench.get(f"/jobs/{job}/logs")["text"] == "fine\n"
    from urllib.parse import quote

    reply = bench.call("GET", f"/jobs/{job}/logs", query=f"member={quote(name)}")
    assert reply.status == 404
    assert b"secret\n" not in reply.body
    for path in (f"/jobs/{name}/logs", f"/jobs/{name}"):
        assert bench.call("GET", path).status in (404, 405, 422)


def test_logs_in_pieces_never_split_a_character(bench: Bench) -> None:
    job = bench.submit()
    folder = bench.home / "jobs" / job / "1"
    folder.mkdir(parents=True)
    text = "äöü€𝄞x" * 20
    (folder / "worker-0.log").write_text(text)
    for limit in (4, 5, 7, 16):
        offset, read = 0, ""
        for _ in range(500):
            chunk = bench.get(f"/jobs/{job}/logs", query=f"offset={offset}&limit={limit}")
            if not chunk["text"]:
                break
            read, offset = read + chunk["text"], chunk["offset"]
        assert read == text


def test_a_body_that_is_too_large(bench: Bench) -> None:
    reply = bench.call("POST", "/jobs", {"command": ["x" * MAX_BODY]})
    assert reply.status == 413
    assert bench.get("/jobs")["total"] == 0
    assert bench.call("POST", "/jobs", {"command": ["x"], "env": {"A": "y" * 200_000}}).status == 422


async def _undeclared(app: object, chunks: int) -> list[dict]:
    sent: list[dict] = []
    left = chunks

    async def receive() -> dict:
        nonlocal left
        left -= 1
        return {"type": "http.request", "body": b" " * 65536, "more_body": left > 0}

    async def send(message: dict) -> None:
        sent.append(message)

    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
        "path": "/api/v1/jobs", "raw_path": b"/api/v1/jobs", "root_path": "", "query_string": b"",
        "headers": [(b"authorization", f"Bearer {OPERATOR_TOKEN}".encode())], "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }  # fmt: skip
    await app(scope, receive, send)  # type: ignore[operator]
    return sent


def test_a_body_that_does_not_say_how_large_it_is(bench: Bench) -> None:
    import asyncio

    sent = asyncio.run(_undeclared(bench.app, 100))
    assert sent[0]["status"] == 413


def test_tokens_file(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text("# team\nuser ann 0123456789abcdef\noperator bob fedcba9876543210\n")
    path.chmod(0o644)
    with pytest.raises(InputError, match="chmod 600"):
        read_tokens(path)
    path.chmod(0o600)
    assert [(p.name, p.role) for _, p in read_tokens(path)] == [("ann", "user"), ("bob", "operator")]
    assert [p.teams for _, p in read_tokens(path)] == [("ann",), None], "a user without teams is one"
    path.write_text("user ann 0123456789abcdef vision,speech\n")
    assert read_tokens(path)[0][1].teams == ("vision", "speech")
    path.write_text("user ann 0123456789abcdef vision,\n")
    with pytest.raises(InputError, match="cannot be read"):
        read_tokens(path)
    path.write_text("user ann short\n")
    with pytest.raises(InputError, match="too short"):
        read_tokens(path)
    path.write_text("root ann 0123456789abcdef\n")
    with pytest.raises(InputError, match="ROLE NAME TOKEN"):
        read_tokens(path)


def test_tokens_of_users_need_a_flag_where_jobs_are_processes(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "tokens").write_text("user ann 0123456789abcdef\n")
    (home / "tokens").chmod(0o600)
    with pytest.raises(InputError, match="--trust-users"):
        Service(ServiceOptions(home=home, nodes="v100=1x1")).run()


def test_weights_of_teams_are_bounded(bench: Bench) -> None:
    for weight in (1e300, 1e15, 1e-300, 0):
        assert bench.call("PUT", "/entities/vision", {"weight": weight}).status == 422
    assert bench.call("PUT", "/entities/vision", {"weight": 5}).status == 200


def test_other_addresses_only_with_tokens(tmp_path: Path) -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1"):
        service = Service(ServiceOptions(home=tmp_path / "home", host=host, backend="simulated"))
        with pytest.raises(InputError, match="no tokens are set"):
            service.run()


def test_a_home_has_one_service(tmp_path: Path) -> None:
    first, second = Home(tmp_path / "home"), Home(tmp_path / "home")
    first.claim()
    token = first.token()
    assert (tmp_path / "home" / "token").stat().st_mode & 0o777 == 0o600
    with pytest.raises(HomeTaken, match="already runs"):
        second.claim()
    first.release()
    second.claim()
    assert second.token() == token
    second.release()


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_a_home_that_others_may_write_to_is_refused_with_its_planted_token(tmp_path: Path, mode: int) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "token").write_text("planted-token-000000\n")
    home.chmod(mode)
    with pytest.raises(InputError, match="others may write to it"):
        Home(home).claim()
    assert sorted(path.name for path in home.iterdir()) == ["token"], "nothing is written there"


def test_a_home_with_what_belongs_to_others_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "token").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="is a link"):
        Home(home).claim()
    (home / "token").unlink()
    (home / "token").write_text("planted-token-000000\n")
    (home / "token").chmod(0o666)
    with pytest.raises(InputError, match="others may write"):
        Home(home).claim()
    (home / "token").chmod(0o600)
    monkeypatch.setattr("os.geteuid", lambda: home.stat().st_uid + 1)
    with pytest.raises(InputError, match="belongs to user"):
        Home(home).claim()


def test_users_see_but_do_not_operate(bench: Bench) -> None:
    assert bench.call("GET", "/service", token=ANN_TOKEN).json()["role"] == "user"
    assert bench.call("PUT", "/policy", {"policy": "srtf"}, token=ANN_TOKEN).status == 403
