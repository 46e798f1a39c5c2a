"""An HTTP client with a connection pool, for requests whose responses are read as they arrive."""

from __future__ import annotations

import asyncio
import functools
import ssl
import zlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import suppress
from contextvars import ContextVar
from types import TracebackType
from typing import TypeVar, cast

from msgspec import Struct

from .connection import Connection, Limits, Timeouts
from .dial import Dialer, tls_context
from .errors import (
    ConnectError,
    DisconnectedError,
    NetTimeoutError,
    RemoteProtocolError,
    TooLargeError,
)
from .url import Proxies, Url, parse_url

_T = TypeVar("_T")

_PIECE = 32 * 1024
_CODINGS = 2
"""The most nested content codings of a body."""
_RATIO, _FREE = 256, 1024 * 1024
"""The highest compression ratio of a coding, once its content is larger than so many
bytes: text has a tenth of that."""
_MEMBERS = 1000
"""The most gzip members in a row."""
_GZIP, _ZLIB, _RAW = 31, 15, -15  # zlib's window bits choose the container


class Decoder:
    """The inverse of a list of codings, given in the order they were applied.

    `feed` and `finish` raise RemoteProtocolError for a coding that is not known and for
    bytes that are not what the coding says.
    """

    def __init__(self, codings: Iterable[str]) -> None:
        self._stages = [_Inflate(coding) for coding in codings]
        self._stages.reverse()
        self._coded: deque[bytes] = deque()  # what was not begun yet
        self._pieces: Iterator[bytes] = iter(())  # that were not read yet

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Decode the next bytes into pieces, none of them empty; read them all."""
        if len(self._stages) > _CODINGS:
            raise RemoteProtocolError(f"the body has more than {_CODINGS} codings")
        pieces = iter((data,))
        for stage in self._stages:
            pieces = stage.feed(pieces)
        return pieces

    def decode(self, data: bytes) -> bytes:
        """Decode one read's data into a piece of bounded size. There may be more: call it without
        data until it returns nothing, and yield to the loop in between."""
        if data:
            self._coded.append(data)
        while True:
            for piece in self._pieces:
                return piece
            if not self._coded:
                return b""
            self._pieces = self.feed(self._coded.popleft())

    async def read(self, connection: Connection) -> bytes:
        """Decode the next of a connection's body, in pieces of bounded size; `b""` at its end."""
        while not (piece := self.decode(b"")):
            data = await connection.read()
            if not data:
                self.finish()
                return b""
            self._coded.append(data)
        await asyncio.sleep(0)  # a small body may have many pieces
        return piece

    def finish(self) -> None:
        """End the input; an incomplete coding is an error."""
        for stage in self._stages:
            stage.finish()


class _Inflate:
    def __init__(self, coding: str) -> None:
        self._coding = coding
        self._held = b""  # the first byte of a deflate body: two tell zlib from raw
        self._begun = False
        self._coded = self._decoded = 0  # bytes so far
        self._members = 1
        self._inflater = None if coding == "deflate" else zlib.decompressobj(_GZIP)

    def feed(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        if self._coding not in ("gzip", "x-gzip", "deflate"):
            raise RemoteProtocolError(f"unknown content coding {self._coding[:40]!r}")
        for piece in pieces:
            self._begun = True
            self._coded += len(piece)
            try:
                for out in self._inflate(piece):
                    self._decoded += len(out)
                    if self._decoded > _FREE + _RATIO * self._coded:
                        raise TooLargeError(
                            f"the {self._coding} body is more than {_RATIO} times larger than sent"
                        )
                    yield out
            except zlib.error:
                raise RemoteProtocolError(f"the body is not valid {self._coding}") from None

    def _inflate(self, data: bytes) -> Iterator[bytes]:
        inflater = self._inflater
        if inflater is None:
            data = self._held + data
            if len(data) < 2:
                self._held = data
                return
            # HTTP's deflate is zlib by the RFC and a raw stream from some servers.
            by_the_book = data[0] & 0x0F == 8 and int.from_bytes(data[:2]) % 31 == 0
            inflater = self._inflater = zlib.decompressobj(_ZLIB if by_the_book else _RAW)
        out = b""
        while data or len(out) == _PIECE:
            if inflater.eof:
                # Another gzip member may follow the first; anything else there is padding.
                if self._coding == "deflate" or not data.startswith(b"\x1f"):
                    return
                self._members += 1
                if self._members > _MEMBERS:
                    raise TooLargeError(f"the body has more than {_MEMBERS} gzip members")
                inflater = self._inflater = zlib.decompressobj(_GZIP)
            out = inflater.decompress(data, _PIECE)
            data = inflater.unused_data if inflater.eof else inflater.unconsumed_tail
            if out:
                yield out

    def finish(self) -> None:
        if self._begun and (self._inflater is None or not self._inflater.eof):
            raise RemoteProtocolError(f"the {self._coding} body ends too early")


class Pool:
    """A keep-alive pool over one Dialer.

    A place is taken from the moment a connection is dialled until it is closed, by either side.
    Waiters are served in order, with a free place or a released connection.
    """

    def __init__(self, dialer: Dialer, limits: Limits) -> None:
        self.dialer = dialer
        self.limits = limits
        self.closed = False
        self._places = limits.connections
        self._standing: set[Connection] = set()
        self.idle: list[Connection] = []  # last in, first out
        self.waiting: deque[asyncio.Future[Connection | None]] = deque()

    @property
    def empty(self) -> bool:
        """Whether there are no connections, dials and waiters."""
        return self._places == self.limits.connections and not self.waiting

    async def acquire(self, within: float | None, *, fresh: bool = False) -> Connection:
        """A connection to send on; with `fresh`, one that was never used.

        Waits at most `within` seconds for a place, and as long again for the connection.
        Raises NetTimeoutError with phase "pool", and what Dialer.dial raises.
        """
        while True:
            if self.idle and not fresh:
                return self.idle.pop()
            if self._places:
                self._places -= 1
                break
            if self.idle:
                self.idle.pop(0).abort()
                continue
            handed = await self._wait_turn(within)
            if handed is None:
                break
            if handed.usable and not fresh:
                return handed
            handed.abort()
        return await self._dial(within)

    def close(self) -> None:
        """Close every connection, also those in use, and pool none from now on."""
        self.closed = True
        for connection in tuple(self._standing):
            connection.abort()

    async def _dial(self, within: float | None) -> Connection:
        try:
            connection = await self.dialer.dial(within)
        except BaseException:
            self._free_place()
            raise
        self._standing.add(connection)
        connection.on_close = self._forget
        return connection

    def _forget(self, connection: Connection) -> None:
        self._standing.discard(connection)
        if connection in self.idle:
            self.idle.remove(connection)
        self._free_place()

    def _free_place(self) -> None:
        if not self.hand_over(None):
            self._places += 1

    def hand_over(self, what: Connection | None) -> bool:
        """Give a connection, or a free place, to the first waiter; false where there is none."""
        while self.waiting:
            turn = self.waiting.popleft()
            if not turn.done():
                turn.set_result(what)
                return True
        return False

    async def _wait_turn(self, within: float | None) -> Connection | None:
        turn: asyncio.Future[Connection | None] = asyncio.get_running_loop().create_future()
        self.waiting.append(turn)
        try:
            async with asyncio.timeout(within):
                return await turn
        except BaseException as error:
            if turn in self.waiting:
                self.waiting.remove(turn)
            if not turn.cancelled():  # it was served just as it was cancelled
                handed = turn.result()
                if handed is None:
                    self._free_place()
                # If it was closed since, that has freed its place.
                elif handed.usable and not self.hand_over(handed):
                    self.idle.append(handed)
            if isinstance(error, TimeoutError):
                message = f"all {self.limits.connections} connections were in use for {within:g} s"
                raise NetTimeoutError(message, "pool") from None
            raise


Pools = dict[tuple[str, str, int, str | None], Pool]
"""The pools of an event loop, by origin and pinned address."""
_prepared: ContextVar[Pools] = ContextVar("prepared")
CODINGS = (b"content-encoding", b"transfer-encoding")


class Response:
    """The response of `Client.stream`, valid inside its `async with`.

    Reading raises DisconnectedError, RemoteProtocolError or NetTimeoutError if the body
    is incomplete, after all received data was returned.
    """

    __slots__ = ("_connection", "_limit", "more", "status")

    def __init__(self, connection: Connection, limit: int) -> None:
        self.status = connection.status
        self._connection = connection
        self._limit = limit
        # Returns all that has arrived, `b""` at the end. Most bodies are not coded: then it is the
        # connection that is read, with nothing in between.
        self.more = connection.read
        decoder = content_decoder(connection.headers)
        if decoder is not None:
            self.more = functools.partial(decoder.read, connection)

    def header(self, name: str) -> str | None:
        """The first value of the header of this name, in any case; None where there is none."""
        key = name.lower().encode()
        for field, value in self._connection.headers:
            if field == key:
                return value.decode("latin-1")
        return None

    async def chunks(self) -> AsyncIterator[bytes]:
        """Iterate over the body: each chunk is all that had arrived, never empty.

        A coded body comes in pieces of bounded size.
        """
        while chunk := await self.more():
            yield chunk

    async def read(
        self, limit: int | None = None, count: Callable[[int], None] | None = None
    ) -> bytes:
        """The rest of the body, whole, of at most `limit` bytes when decoded.

        `count` is called with the bytes read so far, and may raise to abort. Raises TooLargeError
        beyond the limit, which is Limits.body_bytes of the client by default.
        """
        limit = self._limit if limit is None else limit
        chunks: list[bytes] = []
        size = 0
        while chunk := await self.more():
            size += len(chunk)
            if size > limit:
                raise TooLargeError(
                    f"{self._connection.peer} sent a body of more than {limit} bytes"
                )
            if count is not None:
                count(len(chunk))
            chunks.append(chunk)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def close(self) -> None:
        """Detach from the connection, which may be reused."""
        self.more = _closed


async def _closed() -> bytes:
    raise RuntimeError("the response was read outside its `async with`")


def content_decoder(headers: list[tuple[bytes, bytes]]) -> Decoder | None:
    """The decoder for the codings of a body, if any; chunking is decoded already."""
    for name, value in headers:
        if name in CODINGS and value != b"chunked":
            break
    else:
        return None
    contents: list[bytes] = []
    transfers: list[bytes] = []  # transfer codings were applied last
    for name, value in headers:
        if name == b"content-encoding":
            contents += value.lower().split(b",")
        elif name == b"transfer-encoding":
            transfers += value.lower().split(b",")
    codings = [coding.strip().decode("latin-1") for coding in contents + transfers]
    return Decoder(coding for coding in codings if coding not in ("", "identity", "chunked"))


_RETRY_DELAY = 0.1  # seconds between two attempts to connect
_HEADS = 32  # cached heads: clients choose some, of up to 64 KiB
_MANY_ORIGINS = 64  # beyond this many, empty pools are dropped

_TOKEN = b"!#$%&'*+.^_`|~-0123456789abcdefghijklmnopqrstuvwxyz"
_TEXT = bytes([0x09, *range(0x20, 0x7F), *range(0x80, 0x100)])
_BODILESS = frozenset({"GET", "HEAD", "DELETE", "OPTIONS"})  # unless a body is given
_METHODS = _BODILESS | {"POST", "PUT", "PATCH"}
_OURS = frozenset(
    {"host", "connection", "content-length", "transfer-encoding", "expect", "upgrade"}
)

HeaderFields = tuple[tuple[str, str], ...]


class Client:
    """Keep-alive pools to any number of origins.

    `tls` is the context for https, the system's authorities by default (see `tls_context`).
    A failed attempt to connect is repeated `connect_retries` times. `name` is what errors call the
    servers in place of their addresses.

        async with Client() as client:
            async with client.stream("POST", url, headers, body) as response:
                async for chunk in response.chunks():
                    ...
    """

    def __init__(
        self,
        *,
        tls: ssl.SSLContext | None = None,
        proxies: Proxies | None = None,
        timeouts: Timeouts | None = None,
        limits: Limits | None = None,
        connect_retries: int = 1,
        name: str | None = None,
    ) -> None:
        self._name = name
        self.timeouts = timeouts or Timeouts()
        self.limits = limits or Limits()
        self.connect_retries = connect_retries
        self._tls = tls
        self._proxies = proxies or Proxies()
        self._last: tuple[asyncio.AbstractEventLoop | None, Pools] = (None, {})
        self._pools: dict[asyncio.AbstractEventLoop, Pools] = {}

    def stream(
        self,
        method: str,
        url: str | Url,
        headers: HeaderFields = (),
        body: bytes | bytearray | None = None,
        *,
        timeouts: Timeouts | None = None,
        address: str | None = None,
        once: bool = False,
    ) -> Exchange:
        """Send a request when entered; the response is valid inside `async with`.

        Leaving it before the body is read closes the connection at once. `address` pins the
        IP address to connect to. With `once` it has a connection of its own, and is not sent
        again whatever becomes of that. Credentials in the URL become a Basic authorization unless
        `headers` has one.

        Raises InvalidUrlError or ValueError for an invalid request, and on entering any
        NetError.
        """
        parsed = parse_url(url) if isinstance(url, str) else url
        try:
            loop, pools = self._last
            if asyncio.get_running_loop() is not loop:
                pools = self._enter_loop()
        except RuntimeError:  # `in_thread`
            pools = _prepared.get()
        pool = pools.get((parsed.scheme, parsed.host, parsed.port, address))
        if pool is None:
            pool = self._pool(pools, parsed, address)
        head = _encode_head(method, parsed, pool.dialer.forward_proxy, headers)
        if body is None and method in _BODILESS:
            body = b""
            head += b"\r\n"
        else:
            body = body or b""
            head += b"content-length: %d\r\n\r\n" % len(body)
        bodiless, timeouts = method == "HEAD", timeouts or self.timeouts
        idle = [] if once else pool.idle
        return Exchange(self, pool, idle, head, body, bodiless, timeouts, once)

    def in_thread(self, work: Callable[[], _T]) -> Callable[[], _T]:
        """The work for a thread, in which it prepares requests of this event loop."""
        pools = self._enter_loop()

        def prepare() -> _T:
            token = _prepared.set(pools)
            try:
                return work()
            finally:
                _prepared.reset(token)  # the thread may outlive this client

        return prepare

    async def aclose(self) -> None:
        """Close every connection, in use or not. Those of a loop that was closed are gone."""
        for loop, pools in [*self._pools.items()]:
            for pool in [*pools.values()]:
                if loop is asyncio.get_running_loop():
                    pool.close()
                else:
                    with suppress(RuntimeError):  # it was closed
                        loop.call_soon_threadsafe(pool.close)
            pools.clear()
        await asyncio.sleep(0)  # the transports close their sockets in the next turn of the loop

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _enter_loop(self) -> Pools:
        """The pools of this event loop; those of loops that were closed are left."""
        for each in [*self._pools]:
            if each.is_closed():
                self._pools.pop(each, None)
        loop = asyncio.get_running_loop()
        pools = self._pools.setdefault(loop, {})
        self._last = loop, pools
        return pools

    def _pool(self, pools: Pools, url: Url, address: str | None) -> Pool:
        """The pool for an origin, made at the first request to it."""
        if len(pools) >= _MANY_ORIGINS:
            for key in [key for key, pool in pools.items() if pool.empty]:
                del pools[key]
        proxy = self._proxies.choose(url)
        dialer = Dialer(
            url,
            address=address,
            proxy=proxy,
            tls=self._context,
            limits=self.limits,
            name=self._name,
        )
        key = (url.scheme, url.host, url.port, address)
        return pools.setdefault(key, Pool(dialer, self.limits))

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = tls_context()  # reads the system's authorities: 20 ms, once
        return self._tls


class Exchange(Struct, eq=False):
    """One request and its response, an async context manager.

    With callbacks instead of waiting, use `send` or `connect`, look at `connection` in each
    callback, and close it in the end; after the headers, `adopt` switches to waiting. Closing
    twice is allowed.
    """

    _client: Client
    _pool: Pool
    idle: list[Connection]  # those to `send` on at once
    head: bytes
    body: bytes | bytearray
    _bodiless: bool
    _timeouts: Timeouts
    _once: bool
    connection: Connection = cast(Connection, None)  # until the request is sent
    _lent: bool = False  # `connection` is ours until it is given back
    _response: Response | None = None

    def send(self, connection: Connection, on_readable: Callable[[], None] | None) -> None:
        """Send the request on this connection, taken from `idle`; `on_readable` is called for
        new data, and at the end."""
        self.connection, self._lent = connection, True
        connection.on_readable = on_readable
        connection.send(self.head, self.body, self._timeouts, bodiless=self._bodiless)

    async def connect(self, on_readable: Callable[[], None], *, fresh: bool) -> None:
        """Send the request once there is a connection; with `fresh`, one that was never used.
        Raises NetError."""
        self.send(await self._connect(fresh=fresh), on_readable)

    def adopt(self) -> Response:
        """The response, for waiting: `on_readable` is not called any more."""
        self.connection.on_readable = None
        self._response = Response(self.connection, self._client.limits.body_bytes)
        return self._response

    def close(self) -> None:
        """End it. The connection returns to the pool if the body was read and it can be reused, and
        is closed at once if not."""
        if self._response is not None:
            self._response.close()
            self._response = None
        if not self._lent:
            return
        self._lent = False
        pool, connection = self._pool, self.connection
        if not connection.release(pool.limits.keep_alive):
            return
        if pool.closed or self._once:
            connection.abort()
        elif not (pool.waiting and pool.hand_over(connection)):
            pool.idle.append(connection)
            if len(pool.idle) > pool.limits.idle_connections:
                pool.idle[0].abort()

    async def __aenter__(self) -> Response:
        """Send the request and wait for the head of its answer. Raises NetError."""
        connection = self.idle.pop() if self.idle else await self._connect(fresh=False)
        try:
            await self._ask(connection)
        except DisconnectedError as error:
            if not (error.reused and error.before_first_byte):
                raise
            # The peer had closed the idle connection: it never saw the request.
            await self._ask(await self._connect(fresh=True))
        return self.adopt()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    async def _connect(self, *, fresh: bool) -> Connection:
        fresh = fresh or self._once
        for _ in range(self._client.connect_retries):
            try:
                return await self._pool.acquire(self._timeouts.connect, fresh=fresh)
            except ConnectError:
                await asyncio.sleep(_RETRY_DELAY)
        return await self._pool.acquire(self._timeouts.connect, fresh=fresh)

    async def _ask(self, connection: Connection) -> None:
        try:
            self.send(connection, None)
            await connection.read_head()
        except BaseException:
            self.close()
            raise


@functools.lru_cache(maxsize=_HEADS)
def _encode_head(method: str, url: Url, forward_proxy: Url | None, headers: HeaderFields) -> bytes:
    """The head without its last lines, cached, as most requests have the same. Raises ValueError,
    without quoting, for an invalid value."""
    if method not in _METHODS:
        raise ValueError("not a method this client sends")
    names = {name.lower() for name, _ in headers}
    block = "".join([f"{name}: {value}\r\n" for name, value in headers])
    if not names.isdisjoint(_OURS):
        raise ValueError(f"the client itself writes the headers {sorted(names & _OURS)}")
    # Deleting the allowed characters leaves line ends: passes in C instead of a loop here.
    if (
        "" in names
        or "".join(names).encode().translate(None, _TOKEN)
        or block.encode("latin-1", "replace").translate(None, _TEXT) != b"\r\n" * len(headers)
    ):
        raise ValueError("a header name or value holds characters that cannot be sent")
    if "accept-encoding" not in names:
        # Answers are small or streamed: a coding would save little and hold events back.
        block += "accept-encoding: identity\r\n"
    if "user-agent" not in names:
        block += "user-agent: dragoman\r\n"
    if url.credentials is not None and "authorization" not in names:
        block += f"authorization: {url.authorization}\r\n"
    target = url.target
    if forward_proxy is not None:
        target = f"http://{url.authority}{target}"
        if forward_proxy.credentials is not None:
            block += f"proxy-authorization: {forward_proxy.authorization}\r\n"
    return f"{method} {target} HTTP/1.1\r\nhost: {url.authority}\r\n{block}".encode("latin-1")
