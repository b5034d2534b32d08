"""The REST interface of the service as methods; answers are the bodies of `trainmaster.wire.api` as dictionaries."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote, urlencode

from trainmaster.client.address import Address, find_address
from trainmaster.client.errors import NoService
from trainmaster.client.transport import AGAIN_S, TIMEOUT_S, Find, Json, Transport
from trainmaster.model.errors import InputError

Parameters = Mapping[str, str | int | float | Sequence[str] | None]


class Client:
    """One connection, kept open. Use it in a `with` statement."""

    def __init__(self, at: Address | Find, timeout_s: float = TIMEOUT_S) -> None:
        self._transport = Transport(at, timeout_s)

    @property
    def address(self) -> Address:
        return self._transport.address

    @classmethod
    def find(cls, home: Path | None, timeout_s: float = TIMEOUT_S) -> Client:
        """Looks again for the address whenever it connects anew: a service that restarts may have another."""
        return cls(lambda: find_address(home), timeout_s)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._transport.close()

    def get(self, path: str, parameters: Parameters | None = None, wait_s: float = 0.0) -> Any:
        """An answer under `/api/v1`; reading is repeated once when a kept connection turns out closed."""
        asked = {key: value for key, value in (parameters or {}).items() if value is not None}
        if wait_s:
            asked["wait_s"] = wait_s
        query = f"?{urlencode(asked, doseq=True)}" if asked else ""
        return self._transport.ask("GET", f"/api/v1{path}{query}", None, again=1, wait_s=wait_s)

    def post(self, path: str, body: Json | None = None, again: int = 0, wait_s: float = 0.0) -> Any:
        """`again`: how often it may be repeated, for requests that do no harm twice; `wait_s`: extra patience."""
        return self._transport.ask("POST", f"/api/v1{path}", body, again, wait_s)

    def put(self, path: str, body: Json) -> Any:
        return self._transport.ask("PUT", f"/api/v1{path}", body, again=1)

    def submit(self, request: Json) -> Json:
        """Repeated under the same `request_id` when the connection breaks, so that a job is never made twice."""
        if not request.get("request_id"):
            from secrets import token_hex

            request = {**request, "request_id": token_hex(16)}
        return self.post("/jobs", request, again=len(AGAIN_S))

    def healthy(self) -> Json:
        """The body of `/healthz`, outside the versioned interface."""
        found = self._transport.ask("GET", "/healthz", None, again=1)
        return found if isinstance(found, dict) else {}


def job_path(job: str, rest: str = "") -> str:
    """Path of a job by id or name; whatever the user typed stays one segment."""
    if job in ("", ".", "..") or "/" in job:
        raise InputError(f"invalid job '{job}'", "an id or a name; `trainmaster queue --all` lists them")
    return f"/jobs/{quote(job, safe='')}{rest}"


def patiently(ask: Callable[[], Any], away: Callable[[str], None], limit_s: float = 60.0) -> Any:
    """Ask until there is an answer: a service that restarts does not end what follows it.

    `away` is told once when the service stops answering; after `limit_s` without any answer the fault is raised.
    """
    since: float | None = None
    pause_s = 0.2
    while True:
        try:
            return ask()
        except NoService as error:
            now = time.monotonic()
            if since is None:
                since = now
                away(str(error))
            if now - since > limit_s:
                raise
            time.sleep(pause_s)
            pause_s = min(2.0, pause_s * 1.5)
