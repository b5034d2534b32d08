"""`trainmaster doctor`: finds what is wrong and says how to mend it."""

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from trainmaster.cli.live import diagnosis
from trainmaster.cli.live.diagnosis import isolation
from trainmaster.service.local.trust import warnings


def _check(invoke: Any, name: str, *options: object) -> tuple[int, dict[str, Any]]:
    code, out, _ = invoke("doctor", "-o", "json", *options)
    found = json.loads(out)
    assert found["ok"] == (code == 0)
    return code, next(check for check in found["checks"] if check["name"] == name)


def test_all_is_well(service: Any, invoke: Any) -> None:
    code, check = _check(invoke, "service")
    assert code == 0
    assert check["status"] == "ok"
    assert "fifo at http://127.0.0.1" in check["detail"]
    code, out, _ = invoke("doctor")
    assert code == 0
    assert "0 errors" in out
    assert "secret-token" not in out


def test_no_service_is_no_error(tmp_path: Path, invoke: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRAINMASTER_URL", raising=False)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setattr("trainmaster.cli.live.doctor.DEFAULT_PORT", taken.getsockname()[1])
        taken.listen()
        code, check = _check(invoke, "service", "--home", tmp_path / "none")
        assert (code, check["status"]) == (0, "note")
        assert "is taken" in check["detail"] and "--port" in check["remedy"]
    code, check = _check(invoke, "service", "--home", tmp_path / "none")
    assert (code, check["status"]) == (0, "ok")
    assert "has no address" in check["detail"]


def test_a_wrong_token_is_an_error(service: Any, invoke: Any) -> None:
    (Path(os.environ["TRAINMASTER_HOME"]) / "token").write_text("wrong")
    code, check = _check(invoke, "service")
    assert (code, check["status"]) == (1, "error")
    assert check["remedy"]


def test_another_version_is_a_note(service: Any, invoke: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainmaster.cli.live.doctor.__version__", "9.9.9")
    assert "this command is 9.9.9" in _check(invoke, "service")[1]["detail"]


def test_a_clock_that_jumped_is_a_note_until_it_is_confirmed(service: Any, invoke: Any) -> None:
    service.clock_jump_s = 144_000.0
    _, check = _check(invoke, "service")
    assert check["status"] == "note" and "clock jumped by +40.0 h" in check["detail"]
    assert "--confirm-clock" in check["remedy"]
    assert _check(invoke, "service", "--confirm-clock")[1]["status"] == "ok"


def test_a_token_that_others_can_read(tmp_path: Path, invoke: Any) -> None:
    home = tmp_path / "h"
    home.mkdir(mode=0o700)
    (home / "token").write_text("t")
    (home / "token").chmod(0o644)
    code, check = _check(invoke, "home", "--home", home)
    assert (code, check["status"], check["remedy"]) == (1, "error", f"chmod 600 {home}/token")


def test_a_home_that_others_can_write_or_that_is_a_file(tmp_path: Path, invoke: Any) -> None:
    home = tmp_path / "h"
    home.mkdir()
    home.chmod(0o777)
    assert _check(invoke, "home", "--home", home)[1]["remedy"] == f"chmod go-w {home}"
    file = tmp_path / "f"
    file.write_text("")
    assert _check(invoke, "home", "--home", file)[0] == 1


def test_missing_and_old_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "requirements", lambda: ["numpy>=999", "no-such-package-here", "typer>=0.1"])
    found = diagnosis.packages()
    assert found.status == "error"
    assert "missing: no-such-package-here" in found.detail
    assert "too old: numpy" in found.detail


def test_a_full_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Usage:
        free = 1 << 20

    monkeypatch.setattr("shutil.disk_usage", lambda _: Usage)
    assert diagnosis.disk(tmp_path).status == "error"
    Usage.free = 1 << 30
    assert diagnosis.disk(tmp_path).status == "note"


def test_a_look_that_breaks_is_a_finding() -> None:
    found = diagnosis.guarded("x", lambda: 1 / 0)  # type: ignore[arg-type, return-value]
    assert (found.status, found.name) == ("error", "x")


@pytest.mark.parametrize(
    ("text", "key"), [("3.11.7", (3, 11, 7)), ("2.13.0+cpu", (2, 13, 0)), ("1.0rc1", (1, 0)), ("", ())]
)
def test_version_key(text: str, key: tuple[int, ...]) -> None:
    assert diagnosis.version_key(text)[: len(key)] == key


def test_jobs_of_root_and_of_several_users_are_told_of(tmp_path: Path) -> None:
    assert warnings(1000, 0, mapped=False) == []
    assert "root" in warnings(0, 0, mapped=False)[0]
    (tmp_path / "tokens").write_text("user ann 0123456789abcdef\nuser bob fedcba9876543210\n")
    (tmp_path / "tokens").chmod(0o600)
    found = isolation(tmp_path)
    assert found.status == "note"
    assert "2 users share this service and must trust each other" in found.detail
