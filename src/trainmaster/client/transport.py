"""One kept HTTP connection to the service: requests and answers as JSON, repeats, errors as one message.

Built on `http.client`, not on a larger library: importing one takes longer than the whole of `trainmaster queue` may.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import SplitResult, urlsplit

from trainmaster import __version__
from trainmaster.client.address import Address
from trainmaster.client.errors import NoService, Refused, Unavailable
from trainmaster.model.errors import InputError

Json = dict[str, Any]
Find = Callable[[], Address]
TIMEOUT_S = 30.0
AGAIN_S = (0.1, 0.3, 1.0)
"""Pauses before a request that may be repeated is sent again."""


class Transport:
    def __init__(self, at: Address | Find, timeout_s: float) -> None:
        """`at`: the address, or what looks it up whenever a connection is opened: it may change with a restart."""
        self._at = at
        self._address: Address | None = None
        self._timeout_s = timeout_s
        self._connection: http.client.HTTPConnection | None = None

    @property
    def address(self) -> Address:
        if self._address is None:
            self._address = self._at() if callable(self._at) else self._at
        return self._address

    @property
    def _parts(self) -> SplitResult:
        return urlsplit(self.address.url)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def ask(self, method: str, target: str, body: Json | None, again: int, wait_s: float = 0.0) -> Any:
        data = None if body is None else json.dumps(body, allow_nan=False).encode()
        for attempt in range(again + 1):
            try:
                return self._once(method, target, data, wait_s)
            except Unavailable:
                if attempt == again:
                    raise
            self.close()
            time.sleep(AGAIN_S[min(attempt, len(AGAIN_S) - 1)])
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
            raise Unavailable(f"connection to {self.address.url} lost ({told.lower()})") from None
        return self._judged(answer.status, text, target)

    def _connected(self, wait_s: float) -> http.client.HTTPConnection:
        if self._connection is None:
            self._address = None
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
                told = f"{self.address.url} is not a Trainmaster service"
                raise Refused(f"{told}; check {self.address.source}", status)
            return body
        problem = body if isinstance(body, dict) and "what" in body else {}
        if status in (400, 413, 422) and problem:
            where = str(problem.get("where", "")) or None
            raise InputError(
                str(problem["what"]), str(problem.get("expected", "")), str(problem.get("remedy", "")), column=where
            )
        if not problem and self.address.through is not None:
            from trainmaster.client.kube_address import passing_fault

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
        403: "permission denied: needs the operator role",
        404: f"{address.url} does not know this request; is it a Trainmaster service?",
        503: f"the service at {address.url} cannot answer now; try again",
    }.get(status, "")
