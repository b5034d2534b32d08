"""Speaks to the service: requests and answers as JSON, faults as one message.

Built on `http.client`, not on a larger library: importing one takes longer than the whole of `trainmaster queue` may.
Answers are the bodies of `trainmaster.wire.api` as dictionaries, for the same reason.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from trainmaster import __version__
from trainmaster.cli.address import Address, NoService, find_address
from trainmaster.model.errors import InputError, TrainmasterError

Json = dict[str, Any]
Parameters = Mapping[str, str | int | float | Sequence[str] | None]
_TIMEOUT_S = 30.0
_AGAIN_S = (0.1, 0.3, 1.0)
"""Pauses before a request that may be repeated is sent again."""


class Refused(TrainmasterError):
    """The service will not: not found, not allowed, not possible now."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


class Unavailable(NoService):
    """The service was reached but cannot answer now, or went away while it was asked."""


class Client:
    """One connection, kept open. Use it in a `with` statement."""

    def __init__(
        self, address: Address, timeout_s: float = _TIMEOUT_S, find: Callable[[], Address] | None = None
    ) -> None:
        self.address = address
        self._timeout_s = timeout_s
        self._find = find
        self._parts = urlsplit(address.url)
        self._connection: http.client.HTTPConnection | None = None

    @classmethod
    def find(cls, home: Path | None, timeout_s: float = _TIMEOUT_S) -> Client:
        """Looks again for the address whenever it connects anew: a service that restarts may have another."""
        return cls(find_address(home), timeout_s, lambda: find_address(home))

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _look_again(self) -> None:
        if self._find is not None:
            self.address = self._find()
            self._parts = urlsplit(self.address.url)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def get(self, path: str, parameters: Parameters | None = None, wait_s: float = 0.0) -> Any:
        """An answer under `/api/v1`; reading is repeated once when a kept connection turns out closed."""
        asked = {key: value for key, value in (parameters or {}).items() if value is not None}
        if wait_s:
            asked["wait_s"] = wait_s
        query = f"?{urlencode(asked, doseq=True)}" if asked else ""
        return self._ask("GET", f"/api/v1{path}{query}", None, again=1, wait_s=wait_s)

    def post(self, path: str, body: Json | None = None, again: int = 0) -> Any:
        """`again`: how often it may be repeated, for requests that do no harm twice."""
        return self._ask("POST", f"/api/v1{path}", body, again)

    def put(self, path: str, body: Json) -> Any:
        return self._ask("PUT", f"/api/v1{path}", body, again=1)

    def submit(self, request: Json) -> Json:
        """Repeated under the same `request_id` when the connection breaks, so that a job is never made twice."""
        if not request.get("request_id"):
            from secrets import token_hex

            request = {**request, "request_id": token_hex(16)}
        return self.post("/jobs", request, again=len(_AGAIN_S))

    def healthy(self) -> Json:
        """The body of `/healthz`, outside the versioned interface."""
        found = self._ask("GET", "/healthz", None, again=1)
        return found if isinstance(found, dict) else {}

    def _ask(self, method: str, target: str, body: Json | None, again: int, wait_s: float = 0.0) -> Any:
        data = None if body is None else json.dumps(body, allow_nan=False).encode()
        for attempt in range(again + 1):
            try:
                return self._once(method, target, data, wait_s)
            except Unavailable:
                if attempt == again:
                    raise
            self.close()
            time.sleep(_AGAIN_S[min(attempt, len(_AGAIN_S) - 1)])
        raise AssertionError("the last attempt returns or raises")

    def _once(self, method: str, target: str, data: bytes | None, wait_s: float) -> Any:
        connection = self._connected(wait_s)
        headers = {"Accept": "application/json", "User-Agent": f"trainmaster/{__version__}"}
        if self.address.token:
            headers["Authorization"] = f"Bearer {self.address.token}"
        if self.address.through is not None:
            # The API server takes the usual header for itself and does not pass it on.
            headers["X-Trainmaster-Authorization"] = f"Bearer {self.address.token}"
            own = self.address.through.bearer()
            if own:
                headers["Authorization"] = f"Bearer {own}"
            elif self.address.through.certificate is not None:
                del headers["Authorization"]
        if data is not None:
            headers["Content-Type"] = "application/json"
        try:
            connection.request(method, self._parts.path.rstrip("/") + target, data, headers)
            answer = connection.getresponse()
            text = answer.read()
        except TimeoutError:
            raise Unavailable(f"the service at {self.address.url} does not answer; see `trainmaster doctor`") from None
        except (http.client.HTTPException, OSError) as error:
            told = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
            raise Unavailable(f"the service at {self.address.url} went away ({told.lower()})") from None
        return self._judged(answer.status, text, target)

    def _connected(self, wait_s: float) -> http.client.HTTPConnection:
        if self._connection is None:
            self._look_again()
            self._connection = self._new_connection()
            try:
                self._connection.connect()
            except OSError as error:
                self._connection = None
                raise NoService(self._nobody(error)) from None
        if self._connection.sock is not None:
            self._connection.sock.settimeout(self._timeout_s + wait_s)
        return self._connection

    def _new_connection(self) -> http.client.HTTPConnection:
        host, port = self._parts.hostname or "", self._parts.port
        if self._parts.scheme != "https":
            return http.client.HTTPConnection(host, port, timeout=self._timeout_s)
        context = None if self.address.through is None else self.address.through.ssl_context()
        if isinstance(context, bool):
            context = None
        return http.client.HTTPSConnection(host, port, timeout=self._timeout_s, context=context)

    def _nobody(self, error: OSError) -> str:
        where = f"no service at {self.address.url} (from {self.address.source})"
        told = (error.strerror or str(error)).lower()
        return f"{where}: {told}; start one with `trainmaster up`"

    def _judged(self, status: int, text: bytes, target: str) -> Any:
        try:
            body = json.loads(text) if text else None
        except ValueError:
            body = None
        if 200 <= status < 300:
            if body is None and text:
                told = f"what answers at {self.address.url} is no Trainmaster service"
                raise Refused(f"{told}; check {self.address.source}", status)
            return body
        problem = body if isinstance(body, dict) and "what" in body else {}
        if status in (400, 413, 422) and problem:
            where = str(problem.get("where", "")) or None
            raise InputError(
                str(problem["what"]), str(problem.get("expected", "")), str(problem.get("remedy", "")), column=where
            )
        if not problem and self.address.through is not None:
            from trainmaster.cli.kube_address import passing_fault

            raise passing_fault(status, body, self.address)
        told = _sentence(problem) or _known(status, self.address) or f"answer {status} to {target}"
        raise (Unavailable(told) if status in (502, 503, 504) else Refused(told, status))


def _sentence(problem: Json) -> str:
    if not problem:
        return ""
    return str(InputError(str(problem["what"]), str(problem.get("expected", "")), str(problem.get("remedy", ""))))


def _known(status: int, address: Address) -> str:
    return {
        401: f"the service at {address.url} does not accept the token from {address.source}",
        403: "this token may not do that; an operator's may",
        404: f"what answers at {address.url} does not know this request; is it a Trainmaster service?",
        503: f"the service at {address.url} cannot answer now; try again",
    }.get(status, "")


def job_path(job: str, rest: str = "") -> str:
    """Path of a job by id or name; whatever the user typed stays one segment."""
    if job in ("", ".", "..") or "/" in job:
        raise InputError(f"'{job}' is no job", "an id or a name; `trainmaster queue --all` lists them")
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
