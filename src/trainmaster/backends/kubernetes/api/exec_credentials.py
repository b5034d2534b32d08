"""Tokens from a program that the kubeconfig names (`users[].user.exec`), as EKS, GKE and AKS log in.

https://kubernetes.io/docs/reference/config-api/client-authentication.v1/
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

EARLY_S = 60.0
"""A token is replaced so long before it expires."""
PATIENCE_S = 10.0


class LoginFailed(OSError):
    """The program gave no token. Requests are tried again, as when the API server cannot be reached."""


class ExecCredentials:
    def __init__(self, entry: Mapping[str, Any], folder: Path) -> None:
        """`entry` as in the kubeconfig, which lies in `folder`."""
        command = str(entry.get("command") or "")
        if os.sep in command:
            command = str(folder / command)
        self.command = [command, *map(str, entry.get("args") or ())]
        self._env = {str(item["name"]): str(item["value"]) for item in entry.get("env") or ()}
        self._version = str(entry.get("apiVersion") or "client.authentication.k8s.io/v1")
        self._hint = str(entry.get("installHint") or "")
        self._token = ""
        self._until_s = float("-inf")

    def token(self) -> str:
        """The present token; asks the program when there is none or it expires soon."""
        if time.time() >= self._until_s:
            self._token, self._until_s = self._ask()
        return self._token

    def _ask(self) -> tuple[str, float]:
        info = {"apiVersion": self._version, "kind": "ExecCredential", "spec": {"interactive": False}}
        env = {**os.environ, **self._env, "KUBERNETES_EXEC_INFO": json.dumps(info)}
        try:
            done = subprocess.run(
                self.command, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE_S, check=True
            )
            status = json.loads(done.stdout)["status"]
            token, expires = status["token"], status.get("expirationTimestamp")
            until_s = float("inf") if expires is None else datetime.fromisoformat(expires).timestamp() - EARLY_S
        except subprocess.CalledProcessError as error:
            told = error.stderr.decode(errors="replace").strip().splitlines()
            raise self._failed(f"exit {error.returncode}: {told[-1] if told else 'no output'}") from None
        except subprocess.TimeoutExpired:
            raise self._failed(f"no answer within {PATIENCE_S:g} s") from None
        except FileNotFoundError:
            raise self._failed(f"not installed. {self._hint}".rstrip()) from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise self._failed(f"no ExecCredential with a token ({type(error).__name__})") from None
        return str(token), until_s

    def _failed(self, why: str) -> LoginFailed:
        return LoginFailed(f"login by '{self.command[0]}' failed: {why}"[:500])
