"""A limit on the size of request bodies, enforced while they are read; plain ASGI, so that it costs nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.exceptions import HTTPException

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

MAX_BODY = 1 << 20
MAX_DIGITS = 18
"""Of a declared length: Python refuses to read numbers of thousands of digits."""


class BodyLimit:
    def __init__(self, app: App, max_bytes: int = MAX_BODY) -> None:
        self.app = app
        self.max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if not declared.isdigit() or len(declared) > MAX_DIGITS or int(declared) > self.max_bytes:
            await self._refuse(send)
            return
        read = 0

        async def limited() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self.max_bytes:
                # The application makes a `Problem` of it, as of any refusal.
                raise HTTPException(413, f"the body of the request is too large: at most {self.max_bytes} bytes")
            return message

        await self.app(scope, limited, send)

    async def _refuse(self, send: Send) -> None:
        body = (
            b'{"what":"the body of the request is too large","where":"","expected":"at most %d bytes",'
            b'"remedy":"Put large data into files and name them in the command."}' % self.max_bytes
        )
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 413, "headers": [*headers, (b"connection", b"close")]})
        await send({"type": "http.response.body", "body": body})
