"""A small site and a fake search service on loopback, and a model's way through them."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qs, urlsplit

from dragoman.core.interfaces import ANYONE, Caller
from dragoman.core.item import FunctionCall, Unknown
from dragoman.tools.run import RECORD, Context, Result, Runner
from dragoman.tools.web import KIND, Browser, Web
from tests.net.peer import Line, Peer, plain

PARAGRAPHS = "".join(f"<p>Paragraph {n} of the long story.</p>" for n in range(200))
STORY = (
    "<title>A long story</title><h1>Story</h1><p>See <a href='/second'>the second page</a> and "
    f"<a href='http://other.test/x'>another site</a>.</p>{PARAGRAPHS}"
)
Answer = bytes | str
"""HTML, or a whole answer."""


class Site(Peer):
    """Serves `pages` by path to any host, and results of a search at `/search`."""

    def __init__(self, pages: Mapping[str, Answer] = {}) -> None:
        super().__init__(self._serve_pages)
        self.pages: dict[str, Answer] = {"/": STORY, "/second": "<p>Second page", **pages}
        self.found: Any = None
        self.queries: list[dict[str, list[str]]] = []

    @property
    def base(self) -> str:
        return self.url.rstrip("/")

    @property
    def paths(self) -> list[str]:
        return [request.split(b" ")[1].decode() for request in self.requests]

    def result(self, path: str, title: str = "A title", content: str = "") -> dict[str, str]:
        return {"url": self.base + path, "title": title, "content": content}

    async def _serve_pages(self, line: Line) -> None:
        while True:
            request = await line.request()
            target = urlsplit(request.split(b" ")[1].decode())
            if target.path == "/search":
                self.queries.append(parse_qs(target.query))
                answer = self.found
                if not isinstance(answer, bytes):
                    results = [self.result("/")] if answer is None else answer
                    answer = plain(json.dumps({"results": results}).encode())
            else:
                answer = self.pages.get(target.path, plain(b"no", status="404 Not Found"))
            if isinstance(answer, str):
                answer = plain(answer.encode(), "Content-Type: text/html; charset=utf-8")
            await line.write(answer)


def web(site: Site, *allow: str) -> Web:
    """The tool, which may open pages on loopback."""
    networks = allow or ("127.0.0.0/8",)
    return Web.configured(f"searxng:{site.base}", {}, allow=networks)


class Model:
    """Calls functions, and keeps the items of its calls as an answer has them."""

    def __init__(self, tool: Web, options: Mapping[str, Any] = {}, caller: Caller = ANYONE) -> None:
        self.tool, self.options, self.caller = tool, options, caller
        self.items: list[Unknown] = []
        self.browser: Browser

    async def begin(self) -> Model:
        """Begin an answer, with the items so far."""
        asked = {"type": "web_search", **self.options}
        self.browser = await self.tool.open(asked, self.items, self.caller)
        return self

    async def call(self, name: str, arguments: Any = None, /, **given: Any) -> Result:
        """One call, by its arguments as text or by keywords."""
        text = arguments if isinstance(arguments, str) else json.dumps(given)
        call = FunctionCall(f"call_{len(self.items)}", name, text)
        tool = next(each for each in self.browser.tools if each.spec.name == name)
        opened = tool.display.opened(call)
        result = await Runner(self.browser.tools).run(call, Context(call, self.caller))
        value = {"status": "failed" if result.error else "completed", **opened, **result.fields}
        about = {"call_id": call.call_id, "name": name, "arguments": text}
        record = {**about, "output": result.output.output, "kept": result.kept}
        extra = {RECORD: json.loads(json.dumps(record))}
        self.items.append(Unknown("responses", KIND, value, f"ws_{len(self.items)}", extra))
        return result

    async def shown(self, name: str, arguments: Any = None, /, **given: Any) -> str:
        """What a call that succeeds shows."""
        result = await self.call(name, arguments, **given)
        assert not result.error, result.output.output
        return result.output.output

    async def refused(self, name: str, arguments: Any = None, /, **given: Any) -> str:
        """The words of a call that does not."""
        result = await self.call(name, arguments, **given)
        assert result.error, result.output.output
        return result.output.output

    @property
    def action(self) -> dict[str, Any]:
        """That of the last item."""
        return self.items[-1].value["action"]


def resolving(monkeypatch, table: Mapping[str, Sequence[Sequence[str]]]) -> list[str]:
    """What names resolve to, each time they are asked for; returns the names that were."""
    real, asked = socket.getaddrinfo, list[str]()

    def getaddrinfo(host, port, *more, **options):
        if host not in table:
            return real(host, port, *more, **options)
        answers = table[host]
        addresses = answers[min(asked.count(host), len(answers) - 1)]
        asked.append(host)
        return [
            (socket.AF_INET6 if ":" in a else socket.AF_INET, socket.SOCK_STREAM, 6, "", (a, port))
            for a in addresses
        ]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return asked
