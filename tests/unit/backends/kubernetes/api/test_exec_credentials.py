"""Logging in by a program, as the kubeconfigs of EKS, GKE and AKS ask for."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainmaster.backends.kubernetes.api.config import load_config
from trainmaster.model.errors import InputError

SCRIPT = """#!/bin/sh
n=$(cat "$COUNT" 2>/dev/null || echo 0); n=$((n + 1)); echo $n > "$COUNT"
case "$KUBERNETES_EXEC_INFO" in *ExecCredential*) ;; *) exit 3 ;; esac
printf '{"kind": "ExecCredential", "status": {"token": "token-%s-%s"EXPIRES}}' "$1" $n
"""


def kubeconfig(folder: Path, script: str, **entry: Any) -> Path:
    program = folder / "bin" / "login"
    program.parent.mkdir(exist_ok=True)
    program.write_text(script)
    program.chmod(0o755)
    login = {
        "apiVersion": "client.authentication.k8s.io/v1", "command": "bin/login", "args": ["me"],
        "env": [{"name": "COUNT", "value": str(folder / "count")}], **entry,
    }  # fmt: skip
    path = folder / "config"
    data = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {"exec": login}}],
    }
    path.write_text(yaml.safe_dump(data))
    return path


def expiring(after_s: float) -> str:
    at = (datetime.now(UTC) + timedelta(seconds=after_s)).strftime("%Y-%m-%dT%H:%M:%SZ")
    return SCRIPT.replace("EXPIRES", f', "expirationTimestamp": {json.dumps(at)}')


def test_a_token_is_kept_until_shortly_before_it_expires(tmp_path: Path) -> None:
    config = load_config(kubeconfig(tmp_path, expiring(3600)))
    assert [config.bearer(), config.bearer()] == ["token-me-1", "token-me-1"]
    config = load_config(kubeconfig(tmp_path, expiring(30)))
    assert [config.bearer(), config.bearer()] == ["token-me-3", "token-me-4"], "the program is asked again"
    config = load_config(kubeconfig(tmp_path, SCRIPT.replace("EXPIRES", "")))
    assert [config.bearer(), config.bearer()] == ["token-me-5", "token-me-5"], "without an expiry it stays"


@pytest.mark.parametrize(
    ("script", "entry", "told"),
    [
        ("#!/bin/sh\necho 'not logged in' >&2; exit 7\n", {}, "exit 7: not logged in"),
        ("#!/bin/sh\necho hello\n", {}, "no ExecCredential"),
        ("#!/bin/sh\necho '{\"status\": {}}'\n", {}, "no ExecCredential"),
        ("", {"command": "no-such-login", "installHint": "Install it."}, "not installed. Install it."),
        ("", {"env": ["x"]}, "invalid exec entry"),
    ],
)
def test_a_login_that_fails_is_told_when_the_file_is_read(
    tmp_path: Path, script: str, entry: dict[str, Any], told: str
) -> None:
    with pytest.raises(InputError, match=told) as caught:
        load_config(kubeconfig(tmp_path, script, **entry))
    assert caught.value.file == tmp_path / "config"
