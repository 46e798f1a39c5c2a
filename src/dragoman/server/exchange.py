"""One HTTP request and its response: headers, routing, and error replies."""

from __future__ import annotations

import logging
import os
import re
import traceback
from collections.abc import Awaitable, Callable, Collection, Iterator
from difflib import get_close_matches
from itertools import count, repeat
from typing import Protocol

from msgspec import Struct

from dragoman.core.error import Fault, FaultError
from dragoman.core.interfaces import VERSION, VERSION_HEADER, Caller, Secret
from dragoman.core.loss import Loss
from dragoman.core.response import Guarantee
from dragoman.wire.losses import header
from dragoman.wire.protocol import Wire
from dragoman.wire.registry import BASE, WIRES, wire_at

from .cancellation import Peer
from .log import Entry, within

_log = logging.getLogger("dragoman.server")

Headers = list[tuple[bytes, bytes]]


class Held(Protocol):
    """Bytes that are accounted for while they are buffered."""

    size: int

    def resize(self, size: int) -> None:
        """Set the size. Raises FaultError where there is no room for more."""
        ...

    def add(self, more: int) -> None:
        """Change the size by so many bytes. Raises FaultError where there is no room for more."""
        ...

    def close(self) -> None:
        """Release them."""
        ...


class Budget(Protocol):
    """The budget of all holds; `share` is that of one tenant."""

    share: int

    def hold(self, tenant: str) -> Held:
        """A new hold for this tenant, of no bytes."""
        ...


NO_MEMORY = Fault("overloaded", "The server has no memory left for a request of this size.")


def fault_of(error: Exception, request_id: str, key: Secret | None) -> Fault:
    """The fault for an exception; all but a FaultError are logged, without the key."""
    if isinstance(error, FaultError):
        return error.fault
    if isinstance(error, MemoryError):
        _log.error("%s: there was no memory for it", request_id, extra={"request": request_id})
        return NO_MEMORY
    log_failure(error, request_id, key)
    problem = f"Something went wrong in this server; its log says more about {request_id}."
    return Fault("internal", problem)


def log_failure(error: BaseException, request_id: str, key: Secret | None) -> None:
    """Log an exception of a request, without its key."""
    text = "".join(traceback.format_exception(error))
    if key is not None:
        text = text.replace(key.reveal(), str(key))
    _log.error("%s failed:\n%s", request_id, within(text), extra={"request": request_id})


JSON_TYPE = (b"content-type", b"application/json")
MARKS: Headers = [
    (b"server", f"dragoman/{VERSION}".encode()),
    (VERSION_HEADER.encode(), VERSION.encode()),
]
"""The headers of every response, which the host adds."""
ID_HEADERS = [name.encode() for name in {wire.request_id_header: 0 for wire in WIRES.values()}]
"""The headers for the request id: each client reads that of its wire."""
CREDENTIALS = (b"authorization", b"x-api-key", b"sec-websocket-protocol")
"""The headers that a credential may be in."""
_PASSED = frozenset(name.encode() for wire in WIRES.values() for name in wire.request_headers)
_ONCE = (b"host", b"origin", b"content-type", *CREDENTIALS)
_SANE_ID = re.compile(r"[\w.:/+=@-]{1,128}", re.ASCII)
_UNSAFE = re.compile(rb"[^\t\x20-\x7e\x80-\xff]+")


class Exchange:
    """One request and its response. Writing is synchronous and never
    waits: `reply` or `refuse`; or `open`, `write`, and `end`. Each kind of host has a subclass.

    `id` is the client's own request id where that is valid, or else a new one. `status` is that of
    the answer, 0 until it is sent. `marks` are headers of the answer, beside `MARKS`. `whole` is
    the complete body of the request if it came before the handler was called, until it is taken;
    else it is to be read. `hold` accounts for the body, and for what is read from the store, in the
    `budget`; written bytes are `counted` if they are part of it. `entry` is its
    line in the request log, if there is one. `passed` are headers that may be sent to
    an upstream. `tenant` is that of the caller.
    """

    status = 0
    tenant = ""
    whole: bytes | None = None
    hold: Held | None = None
    counted = False
    budget: Budget | None = None
    entry: Entry | None = None
    passed: tuple[tuple[str, str], ...] = ()
    keep_alive = True
    """Whether we keep the connection open for another request."""
    repeated = b""
    """A header that must not be repeated, and is."""

    def __init__(self, method: str, path: str, query: bytes, headers: Headers) -> None:
        self.method = method
        self.path = path
        self.query = query
        self.headers: dict[bytes, bytes] = dict(headers)
        if len(self.headers) != len(headers):
            names = [name for name, _ in headers]
            self.repeated = next((name for name in _ONCE if names.count(name) > 1), b"")
        if not _PASSED.isdisjoint(self.headers):
            self.passed = _passed(headers)
        given = self.header(b"x-request-id") if b"x-request-id" in self.headers else ""
        if given and any(given in self.header(name) for name in CREDENTIALS):
            given = ""  # a key is not to be logged
        self.id = given if given and _SANE_ID.fullmatch(given) else next(request_ids[0])
        id = self.id.encode()
        self.marks: Headers = [*zip(ID_HEADERS, repeat(id), strict=False)]

    # ---- implemented by hosts ------------------------------------------------------------

    @property
    def address(self) -> str:
        """The address of the client, or of the last proxy; of IPv6, the network of its site."""
        raise NotImplementedError

    @property
    def full(self) -> bool:
        """Whether the client reads too slowly."""
        return False

    @property
    def unread(self) -> int:
        """Written bytes that the client has not read, where the host knows."""
        return 0

    def listen(self, peer: Peer | None) -> None:
        """Call this peer, in place of any other, when the client disconnects or has read enough."""
        raise NotImplementedError

    async def read(self) -> tuple[bytes, bool]:
        """The next piece of the body, and whether more follows. Raises FaultError if the client
        disconnects."""
        raise NotImplementedError

    def start(self, status: int, headers: Headers, body: bytes | None = None) -> None:
        """Send the status and the headers; with a body, the whole response and its length."""
        raise NotImplementedError

    def write(self, body: bytes, *, more: bool) -> bool:
        """Send a piece of the body, the last one without `more`. True where the client reads too
        slowly: the piece is buffered all the same."""
        raise NotImplementedError

    def drop(self) -> None:
        """Drop the connection, as far as the host allows."""
        raise NotImplementedError

    # ---- for handlers --------------------------------------------------------------------

    @property
    def wire(self) -> Wire:
        """The wire of the request, by its path and headers."""
        return wire_at(self.path, self.headers)

    def header(self, name: bytes) -> str:
        """A header of the request, by its name in lower case; empty if absent."""
        value = self.headers.get(name)
        return value.decode("latin-1") if value else ""

    @property
    def room(self) -> int:
        """The most bytes that `count` accepts, while the tenant holds no others."""
        if self.budget is None:
            raise RuntimeError("this exchange has no budget")
        return self.budget.share - (self.hold.size if self.hold is not None else 0)

    def count(self, more: int) -> None:
        """Hold so many bytes more, or fewer, until the response is sent. Raises FaultError where
        there is no room for more."""
        if self.hold is None:
            if self.budget is None:
                raise RuntimeError("this exchange has no budget")
            self.hold = self.budget.hold(self.tenant)
        self.hold.add(more)

    def open(self, status: int, headers: Headers) -> None:
        """Send the status and the headers at once; the body, which may take long,
        follows."""
        self.start(status, [*self.marks, *headers])
        self.headers, self.marks = {}, []
        self.status = status

    def end(self) -> None:
        """The response is complete: write the line of the request log."""
        if self.entry is not None:
            self.entry.write(self.method, self.path, self.status, self.id)
            self.entry = None

    def abort(self) -> None:
        """Drop the connection at once, where the host can; sent data may be lost."""
        self.drop()
        self.end()

    def reply(self, status: int, body: bytes, *headers: tuple[bytes, bytes]) -> None:
        """Send a whole response; a body is JSON. A HEAD request gets the headers alone. Raises
        FaultError where there is no room for the body."""
        kind = (JSON_TYPE,) if body else ()
        self.start(status, [*self.marks, *headers, *kind], body)
        self.status = status
        if self.entry is not None:
            self.end()

    def refuse(self, fault: Fault, *headers: tuple[bytes, bytes]) -> None:
        """Send a fault as an error of the request's wire."""
        if self.entry is not None:
            self.entry.end = fault.code
        if fault.retry_after is not None:
            headers += ((b"retry-after", safe(fault.retry_after)),)
        if fault.code == "authentication":
            headers += ((b"www-authenticate", b"Bearer"),)
        if fault.code in _FINAL:
            headers += ((b"x-should-retry", b"false"),)
        if fault.code == "stalled":  # the rest of the body is not waited for
            self.keep_alive = False
        self.reply(*self.wire.encode_error(fault, self.id), *headers)


_FINAL = ("authentication", "permission", "upstream_authentication")
"""Faults that are not worth a retry, whatever their status (`x-should-retry`)."""


def _passed(headers: Headers) -> tuple[tuple[str, str], ...]:
    """The headers that may be forwarded; several lines of one name are one list (RFC 9110, 5.3)."""
    found: dict[bytes, dict[bytes, None]] = {}
    for name, value in headers:
        if name in _PASSED:
            found.setdefault(name, {})[value] = None
    return tuple([(n.decode(), b", ".join(found[n]).decode("latin-1")) for n in sorted(found)])


def _new_ids() -> Iterator[str]:
    return map("req_{}{:08x}".format, repeat(os.urandom(8).hex()), count(1))


request_ids = [_new_ids()]  # for requests without an id
if hasattr(os, "register_at_fork"):  # processes must not create the same ids
    os.register_at_fork(after_in_child=lambda: request_ids.__setitem__(0, _new_ids()))


def report_headers(losses: tuple[Loss, ...], guarantee: Guarantee | None = None) -> Headers:
    """The headers for the losses, and for the guarantee that the answer
    is as constrained."""
    headers: Headers = []
    if losses and (line := header(losses)):
        headers.append((b"x-dragoman-loss", line.encode()))
    if guarantee:
        headers.append((b"x-dragoman-guarantee", guarantee.encode()))
    return headers


def site(address: str) -> str:
    """An IPv4 address, or the first half of an IPv6 address: a site has the whole /64.

    >>> site("192.0.2.1"), site("2001:db8:1:2:3::4"), site("::1")
    ('192.0.2.1', '2001:db8:1:2', '')
    """
    return ":".join(address.split("::")[0].split(":")[:4])


def safe(text: str) -> bytes:
    """Text as a header's value, without line breaks.

    >>> safe("a\\r\\nb")
    b'a b'
    """
    return _UNSAFE.sub(b" ", text.encode())


Handler = Callable[[Exchange, Caller], Awaitable[None] | None]
"""Handles a request. Returns the rest as an awaitable, if any."""


class Route(Struct, frozen=True):
    """A path and its handlers. A path that ends in `/` matches all paths below it.

    `public` routes need no key.
    """

    method: str
    path: str
    handler: Handler
    public: bool = False


class MethodNotAllowedError(FaultError):
    """The path exists, but not for this method; `allow` lists its methods."""

    def __init__(self, method: str, path: str, allow: str) -> None:
        problem = f"{path} does not take {method}; it takes {allow}."
        super().__init__(Fault("method_not_allowed", problem, "client"))
        self.allow = allow


class Router:
    """The table of routes. `public` are the paths that need no key."""

    def __init__(self, routes: Collection[Route]) -> None:
        self.handlers: dict[tuple[str, str], Handler] = {}  # of the exact paths
        self._paths: dict[str, dict[str, Route]] = {}
        self._trees: dict[str, dict[str, Route]] = {}
        self.public = frozenset(route.path for route in routes if route.public)
        for route in routes:
            table = self._trees if route.path.endswith("/") else self._paths
            methods = table.setdefault(route.path, {})
            methods[route.method] = route
            if route.method == "GET":
                methods["HEAD"] = route
        named = [path.removeprefix(BASE) for path in self._paths if path.startswith(BASE)]
        posted = [path for path in named if "POST" in self._paths[BASE + path]]
        first, other = "|".join(map(re.escape, posted)), "|".join(map(re.escape, named))
        # A base URL with the path of a request, which clients add theirs to. No id is such a path.
        joined = rf"{BASE}(?:{first})(?:(?:{BASE})?(?:{other}))*?(?P<base>{BASE})?(?P<path>{other})"
        self._joined = re.compile(joined)
        for path, methods in self._paths.items():
            for method, route in methods.items():
                self.handlers[method, path] = route.handler

    def find(self, method: str, path: str) -> Route:
        """The route of a request. Raises FaultError where there is none."""
        methods = self._paths.get(path)
        if methods is None and (joined := self._joined.fullmatch(path)):
            where = f"ends before {BASE}" if joined["base"] else f"ends in {BASE}"
            hint = f" Did you mean {BASE}{joined['path']}? The base URL of this client {where}."
            raise FaultError(nothing_at(path, hint))
        methods = methods or self._below(path)
        if methods is None:
            near = (BASE + path, path.removeprefix(BASE))  # some clients add the base again
            known = [each for each in near if each in self._paths]
            known += get_close_matches(path[:200], self._paths, 1, 0.85)
            hint = f" Did you mean {known[0]}?" if known else ""
            if path.strip("/") in ("", BASE[1:]) or not (known or path.startswith(BASE + "/")):
                hint = f" The API begins with {BASE}, as in {BASE}/models."
            raise FaultError(nothing_at(path, hint))
        route = methods.get(method)
        if route is None:
            raise MethodNotAllowedError(method, path, ", ".join(sorted(methods)))
        return route

    def _below(self, path: str) -> dict[str, Route] | None:
        for tree, methods in self._trees.items():
            if path.startswith(tree) and len(path) > len(tree):
                return methods
        return None


def nothing_at(path: str, hint: str = "") -> Fault:
    """The fault for an unknown path."""
    return Fault("not_found", f"There is nothing at {path[:200]}.{hint}", "client")
