"""The page `/docs`: the routes as one HTML text without scripts, so that nothing is loaded from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from fastapi import Request
from fastapi.responses import HTMLResponse

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
}
_STYLE = "body{font:16px/1.5 sans-serif;max-width:60em;margin:2em auto}td{padding:.2em 1em .2em 0;vertical-align:top}"


async def docs_page(request: Request) -> HTMLResponse:
    return HTMLResponse(render(request.app.openapi()), headers=_HEADERS)


def render(schema: Mapping[str, Any]) -> str:
    rows = [
        f"<tr><td><b>{escape(method.upper())}</b></td><td><code>{escape(path)}</code></td>"
        f"<td>{escape(operation.get('description') or operation.get('summary', ''))}</td></tr>"
        for path, operations in schema["paths"].items()
        for method, operation in operations.items()
    ]
    title, about = escape(schema["info"]["title"]), escape(schema["info"].get("description", ""))
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>'
        f'<h1>{title}</h1><p>{about}</p><p>The schema of all bodies: <a href="openapi.json">openapi.json</a>.</p>'
        f"<table>{''.join(rows)}</table></html>"
    )
