"""One HTTP request and the way back to its client.

Reads what stands in the head of the request and writes answers, plain or in pieces, each with the
marks that every answer of ours carries. It knows no route and no protocol but the shape of errors.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Iterable

from dragoman.core.error import Fault
from dragoman.core.guarantee import Guarantee
from dragoman.core.identity import MARK, VERSION
from dragoman.core.loss import Loss
from dragoman.engines.mint import new_id
from dragoman.wire import error as wire_error
from dragoman.wire import loss

from .asgi import Headers, Receive, Scope, Send

ABORT = "dragoman.abort"
"""The ASGI extension of our host that drops a connection; its `call` is a plain function."""

JSON_TYPE = (b"content-type", b"application/json")
MARKS: Headers = [
    (b"server", f"dragoman/{VERSION}".encode()),
    (MARK.encode(), VERSION.encode()),
]
"""The headers of every answer."""
_SANE_ID = re.compile(r"[\w.:/+=@-]{1,128}", re.ASCII)
_UNSAFE = re.compile(rb"[^\t\x20-\x7e\x80-\xff]+")


class Exchange:
    """A request's head, and `reply`, `refuse`, or `open` and `write`, to answer it.

    `id` is the client's own request id where that is sane, or else a new one. `opened` says
    whether the status is out, and `status` is it (0 until then). Whoever adds to `marks` adds a
    header to the answer.
    """

    __slots__ = (
        "headers",
        "id",
        "marks",
        "method",
        "opened",
        "path",
        "receive",
        "scope",
        "send",
        "status",
    )

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self.receive = receive
        self.send = send
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        given = self.header(b"x-request-id") if b"x-request-id" in self.headers else ""
        self.id = given if given and _SANE_ID.fullmatch(given) else new_request_id()
        self.marks: Headers = [*MARKS, (b"x-request-id", self.id.encode())]
        self.opened = False
        self.status = 0

    def header(self, name: bytes) -> str:
        """A header of the request, by its name in lower case; the empty string if not there."""
        value = self.headers.get(name)
        return value.decode("latin-1") if value else ""

    def opening(self, status: int, headers: Headers) -> Headers:
        """All headers of the answer that is opened with this."""
        self.opened = True
        self.status = status
        return [*self.marks, *headers]

    async def open(self, status: int, headers: Headers) -> None:
        """Send the status and the headers; the body follows by `write`."""
        start = {
            "type": "http.response.start",
            "status": status,
            "headers": [*self.marks, *headers],
        }
        await self.send(start)
        self.opened = True  # and not before: it may have been interrupted
        self.status = status

    def write(self, data: bytes, *, more: bool = True) -> Awaitable[None]:
        """Send a piece of the body, the last one with `more=False`. Waits for a slow client."""
        return self.send({"type": "http.response.body", "body": data, "more_body": more})

    def abort(self) -> None:
        """Drop the connection at once, where the host can; what was sent may not arrive."""
        extension = self.scope.get("extensions", {}).get(ABORT)
        if extension is not None:
            extension["call"]()

    async def reply(self, status: int, body: bytes, *headers: tuple[bytes, bytes]) -> None:
        """Answer whole; a body is JSON. A HEAD request gets the headers alone."""
        await self.open(status, framed(body, headers))
        await self.write(b"" if self.method == "HEAD" else body, more=False)

    async def refuse(self, fault: Fault, *headers: tuple[bytes, bytes]) -> None:
        """Answer with a fault, as its status and error object."""
        status, body, extra = refusal(fault)
        await self.reply(status, body, *headers, *extra)


def framed(body: bytes, headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """The headers of a whole answer with this body."""
    length = (b"content-length", b"%d" % len(body))
    return [JSON_TYPE, length, *headers] if body else [length, *headers]


def refusal(fault: Fault) -> tuple[int, bytes, Headers]:
    """How a fault is told: its status, its error object, and further headers."""
    headers: Headers = []
    if fault.retry_after is not None:
        headers.append((b"retry-after", safe(fault.retry_after)))
    if fault.code == "authentication":
        headers.append((b"www-authenticate", b"Bearer"))
    return wire_error.status(fault), wire_error.encode(fault), headers


def new_request_id() -> str:
    """An id for a request whose client gave it none."""
    return f"req_{new_id()[:24]}"


def loss_header(losses: tuple[Loss, ...]) -> Headers:
    """The header that tells what was not carried as it was asked; none when all was."""
    line = loss.header(losses) if losses else ""
    return [(b"x-dragoman-loss", line.encode())] if line else []


def guarantee_header(guarantee: Guarantee | None) -> Headers:
    """The header that says how sure the answer is what was demanded; none where nothing was."""
    return [(b"x-dragoman-guarantee", guarantee.encode())] if guarantee else []


def safe(text: str) -> bytes:
    """Text as a header's value: nothing in it can end the line.

    >>> safe("a\\r\\nb")
    b'a b'
    """
    return _UNSAFE.sub(b" ", text.encode())
