"""Speaks to an ASGI application without a socket: one request in, the whole answer out."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from dragoman.server.app import App


async def post(
    app: App, path: str, body: dict[str, Any], *headers: tuple[str, str]
) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the answer to a JSON request."""
    data = json.dumps(body).encode()
    given = [("host", "127.0.0.1"), ("content-type", "application/json"), *headers]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in given],
        "client": ("127.0.0.1", 50000),
        "server": ("127.0.0.1", 8000),
    }
    sent: list[dict[str, Any]] = []
    asked = False
    over = asyncio.Event()

    async def receive() -> dict[str, Any]:
        nonlocal asked
        if not asked:
            asked = True
            return {"type": "http.request", "body": data, "more_body": False}
        await over.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)
        if message["type"] == "http.response.body" and not message.get("more_body"):
            over.set()

    await app(scope, receive, send)
    start, *bodies = sent
    assert start["type"] == "http.response.start"
    assert all(message["type"] == "http.response.body" for message in bodies)
    assert not bodies[-1].get("more_body"), "the answer has no end"
    fields = {name.decode(): value.decode() for name, value in start["headers"]}
    return start["status"], fields, b"".join(message["body"] for message in bodies)
