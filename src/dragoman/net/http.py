"""The HTTP/1.1 client: one request at a time goes out over a pooled connection.

It follows no redirect, retries no status and reads no environment; a request is sent again
only when it certainly or very likely never reached the peer. Bound to one event loop.
"""

import asyncio
import functools
import ssl
from collections.abc import Callable
from types import TracebackType

from dragoman.net.connection import Connection
from dragoman.net.dial import Dialer, tls_context
from dragoman.net.error import ConnectError, DisconnectedError
from dragoman.net.limits import Limits, Timeouts
from dragoman.net.pool import Pool
from dragoman.net.proxy import Proxies
from dragoman.net.response import Response
from dragoman.net.url import Url, parse_url

_RETRY_DELAY = 0.1  # seconds between two attempts to connect
_MANY_ORIGINS = 64  # beyond this many, pools that stand empty are dropped

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
    A failed attempt to connect is repeated `connect_retries` times.

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
    ) -> None:
        self.timeouts = timeouts or Timeouts()
        self.limits = limits or Limits()
        self.connect_retries = connect_retries
        self._tls = tls
        self._proxies = proxies or Proxies()
        self._pools: dict[tuple[str, str, int, str | None], Pool] = {}

    def stream(
        self,
        method: str,
        url: str | Url,
        headers: HeaderFields = (),
        body: bytes | None = None,
        *,
        timeouts: Timeouts | None = None,
        address: str | None = None,
    ) -> "Exchange":
        """Send a request when entered; the answer is had inside `async with`.

        Leaving it before the body is read closes the connection at once. `address` pins the
        IP address to connect to. Credentials in the URL become a Basic authorization unless
        `headers` has one.

        Raises InvalidUrlError or ValueError for what cannot be sent, and on entering any
        NetError.
        """
        parsed = parse_url(url) if isinstance(url, str) else url
        pool = self._pool(parsed, address)
        head = _encode_head(method, parsed, pool.dialer.forward_proxy, headers)
        if body is None and method in _BODILESS:
            body = b""
            head += b"\r\n"
        else:
            body = body or b""
            head += b"content-length: %d\r\n\r\n" % len(body)
        return Exchange(self, pool, head, body, method == "HEAD", timeouts or self.timeouts)

    async def aclose(self) -> None:
        """Close every connection, in use or not."""
        for pool in self._pools.values():
            pool.close()
        self._pools.clear()
        await asyncio.sleep(0)  # the transports close their sockets in the next turn of the loop

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _pool(self, url: Url, address: str | None) -> Pool:
        key = (url.scheme, url.host, url.port, address)
        pool = self._pools.get(key)
        if pool is None:
            if len(self._pools) >= _MANY_ORIGINS:
                self._pools = {k: pool for k, pool in self._pools.items() if not pool.empty}
            proxy = self._proxies.choose(url)
            dialer = Dialer(
                url, address=address, proxy=proxy, tls=self._context, limits=self.limits
            )
            pool = self._pools[key] = Pool(dialer, self.limits)
        return pool

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = tls_context()  # reads the system's authorities: 20 ms, once
        return self._tls


class Exchange:
    """One request on its way, an async context manager that gives its Response.

    `open` and `close` are the same for those whose work does not fit a block; who opened closes,
    and may open it once more. Who does not want to wait tries `begin`, looks at `connection` when
    something has come, and closes it in the end; once the head is there, `adopt` opens it. To close
    what is closed changes nothing.
    """

    __slots__ = (
        "_bodiless",
        "_body",
        "_client",
        "_head",
        "_lent",
        "_opened",
        "_pool",
        "_timeouts",
        "connection",
        "response",
    )

    def __init__(
        self,
        client: Client,
        pool: Pool,
        head: bytes,
        body: bytes,
        bodiless: bool,
        timeouts: Timeouts,
    ) -> None:
        self._client = client
        self._pool = pool
        self._head = head
        self._body = body
        self._bodiless = bodiless
        self._timeouts = timeouts
        self._lent = False  # `connection` is ours until it is given back
        self._opened = False

    def begin(self, ear: Callable[[], None]) -> bool:
        """Send the request if a connection stands idle; `ear` is called whenever something of
        the answer has come, or nothing more will."""
        connection = self._pool.take()
        if connection is None:
            return False
        self._listen(connection, ear)
        return True

    async def connect(self, ear: Callable[[], None], *, fresh: bool) -> None:
        """The same once there is a connection; with `fresh`, one that was never used. Raises
        NetError."""
        self._listen(await self._connect(fresh=fresh), ear)

    def adopt(self) -> Response:
        """What was begun is read like what was opened, from now on."""
        self.connection.ear = None
        return self._answered(self.connection)

    async def open(self) -> Response:
        """Send the request and wait for the head of its answer, which is `response` from now on.

        What is open stays so. Raises NetError.
        """
        if self._opened:
            return self.response
        connection = self._pool.take() or await self._connect(fresh=False)
        try:
            await self._send(connection)
        except DisconnectedError as error:
            if not (error.reused and error.before_first_byte):
                raise
            # The peer had closed the idle connection: it never saw the request.
            connection = await self._connect(fresh=True)
            await self._send(connection)
        return self._answered(connection)

    def close(self) -> None:
        """End it. The connection is kept if the body was read, and closed at once if not."""
        if self._opened:
            self._opened = False
            self.response.close()
        if self._lent:
            self._lent = False
            self._pool.give_back(self.connection)

    async def __aenter__(self) -> Response:
        return await self.open()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    async def _connect(self, *, fresh: bool) -> Connection:
        for _ in range(self._client.connect_retries):
            try:
                return await self._pool.acquire(self._timeouts.connect, fresh=fresh)
            except ConnectError:
                await asyncio.sleep(_RETRY_DELAY)
        return await self._pool.acquire(self._timeouts.connect, fresh=fresh)

    def _listen(self, connection: Connection, ear: Callable[[], None]) -> None:
        self.connection, self._lent = connection, True
        connection.ear = ear
        self._write(connection)

    def _answered(self, connection: Connection) -> Response:
        self.connection, self._lent = connection, True
        self.response = Response(connection, self._client.limits.body_bytes)
        self._opened = True
        return self.response

    def _write(self, connection: Connection) -> None:
        connection.send(
            self._head,
            self._body,
            bodiless=self._bodiless,
            first_byte=self._timeouts.first_byte,
            idle=self._timeouts.idle,
        )

    async def _send(self, connection: Connection) -> None:
        try:
            self._write(connection)
            await connection.read_head()
        except BaseException:
            connection.abort()
            raise


@functools.lru_cache(maxsize=128)
def _encode_head(method: str, url: Url, forward_proxy: Url | None, headers: HeaderFields) -> bytes:
    """The head without its last lines; the same for most requests, so made once."""
    if method not in _METHODS:
        raise ValueError("not a method this client sends")
    names = {name.lower() for name, _ in headers}
    block = "".join([f"{name}: {value}\r\n" for name, value in headers])
    _check_fields(names, block, len(headers))
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


def _check_fields(names: set[str], block: str, count: int) -> None:
    """Raise ValueError, quoting no value, unless the block is `count` fields and no more."""
    if not names.isdisjoint(_OURS):
        raise ValueError(f"the client itself writes the headers {sorted(names & _OURS)}")
    # Deleting what is allowed leaves the line ends: passes in C instead of a loop here.
    if (
        "" in names
        or "".join(names).encode().translate(None, _TOKEN)
        or block.encode("latin-1", "replace").translate(None, _TEXT) != b"\r\n" * count
    ):
        raise ValueError("a header name or value holds characters that cannot be sent")
