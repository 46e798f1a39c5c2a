"""A client for one MCP server with the official SDK: over HTTP, or stdio of a local program.

The SDK takes a second to import: this module is imported in a thread, when a server is first asked.
A server's messages are bounded here, before they are parsed; every socket is one of `net`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, cast
from weakref import WeakKeyDictionary

import anyio
import httpx2
import msgspec
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp.types import (
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    Implementation,
    InputRequiredResult,
    JSONRPCError,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    PaginatedRequestParams,
    jsonrpc_message_adapter,
)
from msgspec import Raw
from pydantic import TypeAdapter, ValidationError

from dragoman.core.error import MAX_MESSAGE, Fault, FaultError
from dragoman.core.interfaces import VERSION
from dragoman.core.item import JSON
from dragoman.net.client import Client as HTTPClient
from dragoman.net.client import Exchange, Response
from dragoman.net.connection import Limits, Timeouts
from dragoman.net.dial import resolve
from dragoman.net.errors import ConnectError, NetError, NetTimeoutError
from dragoman.net.url import Proxies, parse_url
from dragoman.wire.json import has_long_number, raw_fields, split_at_quotes

MOST_BYTES = 8 * 1024 * 1024
"""Bytes of one message of a server, and of its answer to one request, decoded."""
MOST_VALUES = 20_000
"""The most arrays and objects in a message: they cost the most time; five others count as one."""
MOST_OTHER = 10_000
"""The most lines in a row of a program that are no message."""
PIECE, MOST_LINES = 4 * 1024, 100
"""Bytes of a stream that are parsed before others run, where what has come has more lines."""
MOST_ASKED = 64
"""Requests of a server that wait for an answer: the SDK starts a task for each."""
MOST_BLOCKS = 256
"""Blocks of one result; more are left out, with a note for the model."""
MOST_ERROR = 64 * 1024
"""Bytes of a response with a status of 400 or more that are read."""
MOST_LISTED = 2_000
"""Tools that a server may list, on all pages together."""
MOST_LIST = 2 * 1024 * 1024
"""Bytes of their names, descriptions and schemas."""
MOST_PAGES = 100
LONG = 64 * 1024
"""Characters of a description, and bytes of an answer, that are read at once."""
PATIENCE = 2.0
"""Seconds for a program to exit after its input is closed, and again after SIGTERM."""
CONNECT = 10.0
"""The connect timeout, in seconds."""
CONNECTIONS = 32
"""Concurrent requests to one server, for one session."""
RESUME = 0.5
"""Seconds before a stream that broke off is asked for again, beside those its server says."""
MOST_OPEN = 1024
"""Requests of a session that wait, with those given up: a server says how long, before it ends."""
TAIL = 2_000
"""The last bytes of a program's stderr that are logged when it exits by itself."""

_log = logging.getLogger("dragoman")
for _name, _level in (("mcp", logging.CRITICAL), ("client", logging.CRITICAL), ("httpx2", 30)):
    # They log data of servers, with tracebacks, and URLs with their queries.
    if logging.getLogger(_name).level == logging.NOTSET:
        logging.getLogger(_name).setLevel(_level)
for _message in (JSONRPCError, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse):
    # They are made texts for that, whether logged or not: a large one takes half a second.
    type.__setattr__(_message, "__str__", object.__repr__)

_UNREACHED, _UNANSWERED, _STATUS, _ENDED = -32090, -32091, -32092, -32093
"""Codes of errors that are ours, in the place of an answer: nothing was sent; nothing came back; a
status of HTTP that is no answer of the protocol; the session is over, and nothing was done."""
_TIMED_OUT, _CLOSED = "Request 'tools/call' timed out", -32000  # the SDK's own
_SENT_ON = ("content-type", "location", "mcp-session-id")
_NOT_SENT = frozenset({"host", "connection", "content-length", "accept-encoding", "user-agent"})
_RESULT = TypeAdapter[CallToolResult | InputRequiredResult](CallToolResult | InputRequiredResult)

Report = Callable[[dict[str, JSON]], None]
Streams = AbstractAsyncContextManager[Any]


class GoneError(Exception):
    """The server has lost the session, or has ended; the request was not processed."""


class Connection:
    """A session with one server, called `name` in errors.

    One task opens and closes it, as the SDK's scopes must be left in the task that entered them;
    requests may come from any. `gone` is true once the session cannot be used any more, and
    `changed` after a `notifications/tools/list_changed` of the server.
    """

    def __init__(self, name: str, transport: Callable[[Connection], Streams]) -> None:
        self.name = name
        self.gone = self.changed = False
        self.asked = 0  # requests of the server without an answer
        self._transport = transport
        self._end = asyncio.Event()
        self._client: Client | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self, seconds: float) -> None:
        """Open it. Raises FaultError where that fails, or takes longer than this."""
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        task = self._task = asyncio.create_task(self._run(ready))
        try:
            await asyncio.wait({task, ready}, timeout=seconds, return_when="FIRST_COMPLETED")
        except asyncio.CancelledError:
            await self.close()
            raise
        if task.done():
            task.result()
        if not ready.done():
            await self.close()
            raise FaultError(_fault("upstream_timeout", self._late("was not ready", seconds)))

    async def _run(self, ready: asyncio.Future[None]) -> None:
        try:
            async with Client(
                self._streams(),
                mode="auto",
                cache=None,
                client_info=Implementation(name="dragoman", version=VERSION),
            ) as client:
                self._client = client
                ready.set_result(None)
                await self._end.wait()
        except Exception as error:
            if ready.done():  # it could not be closed by the protocol, and is closed
                _log.debug("the MCP server %s: the end of a session", self.name, exc_info=error)
                return
            raise FaultError(self._problem(error)) from error
        finally:
            self.gone = True

    @asynccontextmanager
    async def _streams(self) -> AsyncGenerator[Any]:
        async with self._transport(self) as (read, write):
            yield _Bounded(read, self), _Bounded(write, self)

    async def close(self) -> None:
        """End the session, and the program."""
        self.gone = True
        self._end.set()
        if self._task is not None:
            # An open session is ended by the protocol, another at once.
            _, late = await asyncio.wait({self._task}, timeout=3 * PATIENCE if self._client else 0)
            if late:
                self._task.cancel()
                await asyncio.wait({self._task}, timeout=PATIENCE)
            if self._task.done() and not self._task.cancelled():
                self._task.exception()  # retrieved: `start` has raised it, or it is of no use

    async def tools(self, seconds: float) -> list[dict[str, JSON]]:
        """All tools of the server, as the protocol's objects. Raises FaultError and GoneError."""
        self.changed = False
        found: list[dict[str, JSON]] = []
        size, cursor = 0, None
        try:
            async with asyncio.timeout(seconds):
                for _ in range(MOST_PAGES):
                    params = PaginatedRequestParams(cursor=cursor)
                    page = await self._session.list_tools(params=params)
                    for tool in page.tools:
                        about = tool.annotations
                        found.append(
                            {
                                "name": tool.name,
                                "description": await _cleaned(tool.description or "") or None,
                                "input_schema": tool.input_schema,
                                "annotations": about
                                and about.model_dump(by_alias=True, mode="json", exclude_none=True),
                            }
                        )
                        size += len(msgspec.json.encode(found[-1]))
                        if len(found) > MOST_LISTED or size > MOST_LIST:
                            why = f"lists more than {MOST_LISTED} tools, or {MOST_LIST} bytes of"
                            raise FaultError(_fault("upstream_error", f"{self._whose} {why} them."))
                    cursor = page.next_cursor
                    if not cursor:
                        return found
        except TimeoutError:
            problem = self._late("did not list its tools", seconds)
            raise FaultError(_fault("upstream_timeout", problem)) from None
        except FaultError:
            raise
        except Exception as error:
            self._raise_gone(error)
            raise FaultError(self._problem(error)) from error
        finally:
            if self._client is not None:
                self._forget({tool["name"] for tool in found})
        problem = f"{self._whose} lists its tools on over {MOST_PAGES} pages."
        raise FaultError(_fault("upstream_error", problem))

    def _forget(self, names: set[JSON]) -> None:
        """Drop what the SDK remembers of other tools: of lists with pages it does so never."""
        session: Any = cast(Client, self._client).session
        for known in (session._tool_output_schemas, session._x_mcp_header_maps):
            for name in known.keys() - names:
                del known[name]

    async def call(
        self, name: str, arguments: dict[str, JSON], seconds: float, report: Report
    ) -> dict[str, JSON]:
        """Call a tool: its result as the protocol's object. Raises FaultError and GoneError.

        A call that is cancelled, or late, is cancelled at the server too.
        """

        async def progress(done: float, total: float | None, message: str | None) -> None:
            report({"progress": done, "total": total, "message": (message or "")[:1000]})

        if self.gone:
            raise GoneError
        try:
            # Not `call_tool`, which evaluates the patterns of the server's output schemas on what
            # the server sends: those may take forever.
            async with asyncio.timeout(seconds + PATIENCE):
                result = await self._session.send_request(
                    CallToolRequest(params=CallToolRequestParams(name=name, arguments=arguments)),
                    _RESULT,
                    request_read_timeout_seconds=seconds,
                    progress_callback=progress,
                )
        except Exception as error:
            if deaf := isinstance(error, TimeoutError):  # not even the call is read
                self.gone = True
            if deaf or (isinstance(error, MCPError) and error.message == _TIMED_OUT):
                problem = self._late(f"did not answer the call of {name[:100]!r}", seconds)
                raise FaultError(_fault("upstream_timeout", problem)) from None
            self._raise_gone(error)
            raise FaultError(self._problem(error)) from error
        if isinstance(result, InputRequiredResult):
            problem = f"{self._whose} asks for more input (elicitation, sampling or roots)"
            raise FaultError(_fault("upstream_error", f"{problem}, which is not supported."))
        found: dict[str, JSON] = result.model_dump(by_alias=True, mode="json", exclude_none=True)
        return found | {"structuredContent": result.structured_content}  # with its nulls

    @property
    def _session(self) -> Any:
        if self.gone or self._client is None:
            raise GoneError
        return self._client.session

    @property
    def _whose(self) -> str:
        return f"The MCP server {self.name!r}"

    def _late(self, what: str, seconds: float) -> str:
        return f"{self._whose} {what} within {seconds:g} seconds."

    def _raise_gone(self, error: Exception) -> None:
        """Raise GoneError where a request was not processed, as the session is over."""
        if isinstance(error, GoneError) or (isinstance(error, MCPError) and error.code == _ENDED):
            raise GoneError from error

    def _problem(self, error: BaseException) -> Fault:
        """The fault for an error of the SDK."""
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        match error:
            case FaultError():
                return error.fault
            case MCPError():
                code, words = error.code, clean(error.message[:MAX_MESSAGE])
                data = error.error.data
                status = data.get("status") if isinstance(data, dict) and code == _STATUS else None
                known = abs(code) < 100_000  # longer codes are dropped
                if code in (_UNREACHED, _UNANSWERED):
                    return _fault("upstream_unreachable", f"{self._whose}: {words}")
                if isinstance(status, int) and 400 <= status < 600:
                    kind = "upstream_authentication" if status in (401, 403) else "upstream_error"
                    return _fault(kind, f"{self._whose} {words}", status=status)
                if code == _CLOSED and words.startswith(("Connection closed", "SSE stream ")):
                    # The SDK's own message; servers use this code, too.
                    problem = f"{self._whose} ended before it answered: {words}."
                    return _fault("upstream_cut", problem)
                problem = f"{self._whose} answered with an error: {words}"
                return _fault("upstream_error", problem, upstream_code=str(code) if known else None)
            case ValidationError():
                return _fault("upstream_error", f"{self._whose} sent what is not of the protocol.")
            case OSError():
                # The command is not shown to the client.
                _log.warning("the MCP server %s cannot be started: %s", self.name, error)
                why = f"{type(error).__name__}: {error.strerror or error}"
                return _fault("upstream_unreachable", f"{self._whose} cannot be started: {why}.")
            case _:
                words = clean(str(error)[:MAX_MESSAGE]) or type(error).__name__
                return _fault("upstream_error", f"{self._whose}: {words}")


def _fault(
    code: Any, message: str, status: int | None = None, upstream_code: str | None = None
) -> Fault:
    return Fault(code, message, "upstream", status=status, upstream_code=upstream_code)


_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\U000e0000-\U000e007f]")


def clean(text: str) -> str:
    """The text without control characters for terminals, and without invisible characters.

    >>> clean("a\\x1b[2Jb\\n\\U000e0041")
    'a[2Jb\\n'
    """
    return _UNSEEN.sub("", text)


async def _cleaned(text: str) -> str:
    """The same, of a long text in pieces, between which others run."""
    pieces: list[str] = []
    for start in range(0, len(text), LONG):
        pieces.append(clean(text[start : start + LONG]))
        await asyncio.sleep(0)
    return "".join(pieces)


def _count_values(data: bytes) -> int:
    """The arrays and objects in JSON, and a fifth of its other values, without marks in its texts;
    0 where they are few. A long number is too many values."""
    if has_long_number(data):
        return MOST_VALUES + 1
    if data.count(b"{") + data.count(b"[") + data.count(b",") // 5 <= MOST_VALUES:
        return 0
    found = 0
    for within, texts in split_at_quotes(data):
        outside = b"".join(texts[within::2])
        found += 5 * (outside.count(b"{") + outside.count(b"[")) + outside.count(b",")
        if found // 5 > MOST_VALUES:
            break
    return found // 5


class _Bounded:
    """A server's messages, with long lists cut: the SDK creates several objects for each member. Of
    its notifications only reports of progress are passed on: the SDK starts a task for each, and
    for each request, which are bounded. Over the other stream, it counts what is answered."""

    def __init__(self, stream: Any, connection: Connection) -> None:
        self._stream, self._connection = stream, connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def __aenter__(self) -> _Bounded:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._stream.__aexit__(*error)

    def __aiter__(self) -> _Bounded:
        return self

    async def send(self, item: SessionMessage) -> None:
        """Send one of our messages."""
        await self._stream.send(item)
        self._connection.asked -= isinstance(item.message, JSONRPCResponse | JSONRPCError)

    async def __anext__(self) -> Any:
        while True:
            item = await anext(self._stream)
            match getattr(item, "message", None):
                case JSONRPCNotification(method="notifications/tools/list_changed"):
                    self._connection.changed = True
                case JSONRPCNotification(method=method) if method != "notifications/progress":
                    pass
                case JSONRPCRequest() if self._connection.asked >= MOST_ASKED:
                    _log.warning("the MCP server %s takes no answers", self._connection.name)
                    self._connection.gone = True
                    raise StopAsyncIteration
                case message:
                    self._connection.asked += isinstance(message, JSONRPCRequest)
                    break
        result = getattr(getattr(item, "message", None), "result", None)
        if isinstance(result, dict):
            blocks, tools = result.get("content"), result.get("tools")
            if isinstance(blocks, list) and len(blocks) > MOST_BLOCKS:
                words = f"[{len(blocks) - MOST_BLOCKS} more blocks are left out]"
                blocks[MOST_BLOCKS:] = [{"type": "text", "text": words}]
            if isinstance(tools, list):
                del tools[MOST_LISTED + 1 :]  # one too many, which is an error
                for tool in tools:  # these are kept, and not used
                    if isinstance(tool, dict):
                        tool.pop("outputSchema", None)
        return item


# ---- over HTTP -----------------------------------------------------------------------------------


def over_http(
    name: str,
    url: str,
    headers: Mapping[str, str],
    allow: Sequence[str] | None,
    seconds: float,
    tenant: str,
) -> Connection:
    """A session with a server at an address. Where `allow` is given, the address is a tenant's:
    each request goes through the guard of `net`, with these networks allowed beside public ones."""

    @asynccontextmanager
    async def transport(connection: Connection) -> AsyncGenerator[Any]:
        ours = _Transport(connection, allow, seconds, tenant)
        async with (
            httpx2.AsyncClient(transport=ours, headers=dict(headers), trust_env=False) as client,
            streamable_http_client(
                url, http_client=client, max_sse_event_size=MOST_BYTES
            ) as streams,
        ):
            yield streams

    return Connection(name, transport)


class _Transport(httpx2.AsyncBaseTransport):
    """Sends the SDK's requests with our client, to addresses that were checked.

    It raises nothing: one request that fails would end the session with all others. In place of its
    answer comes an error of the protocol. The SDK follows redirects within one origin only.
    """

    def __init__(
        self, connection: Connection, allow: Sequence[str] | None, seconds: float, tenant: str
    ) -> None:
        self._connection, self._allow, self._tenant = connection, allow, tenant
        self._client = HTTPClient(
            proxies=Proxies.from_environ(os.environ),
            timeouts=Timeouts(CONNECT, first_byte=seconds, idle=seconds, total=seconds),
            limits=Limits(connections=CONNECTIONS),
            name=f"the MCP server {connection.name!r}",
        )
        self._asides = set[asyncio.Task[None]]()
        self._seconds, self._began = seconds, WeakKeyDictionary[Any, float]()  # of tasks

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Answer one request of the SDK."""
        now = asyncio.get_running_loop().time()
        began = self._began.setdefault(asyncio.current_task(), now)  # of it and its resumptions
        self._connection.gone |= len(self._began) > MOST_OPEN
        if request.method == "GET":
            # Not for unsolicited messages, which are optional and cost a connection for each
            # session; nor for what has not ended in its time.
            if "last-event-id" not in request.headers or now - began > self._seconds:
                return httpx2.Response(405)
            await asyncio.sleep(RESUME)
        body = await request.aread()
        if raw_fields(body or b"{}").get("method") == Raw(b'"notifications/cancelled"'):
            # A server that hangs accepts no cancellation either; others must not wait for that.
            task = asyncio.create_task(self._aside(request, body))
            self._asides.add(task)
            task.add_done_callback(self._asides.discard)
            return httpx2.Response(202)
        return await self._send(request, body)

    async def _aside(self, request: httpx2.Request, body: bytes) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(CONNECT):
                await (await self._send(request, body)).aclose()

    async def _send(self, request: httpx2.Request, data: bytes) -> httpx2.Response:
        sent = tuple((k, v) for k, v in request.headers.items() if k.lower() not in _NOT_SENT)
        asked = raw_fields(data or b"{}")
        once = asked.get("method") == Raw(b'"tools/call"')  # it may have effects
        try:
            url = parse_url(str(request.url))
            at = None if (allow := self._allow) is None else await resolve(url, allow, self._tenant)
            exchange = self._client.stream(request.method, url, sent, data, address=at, once=once)
            response = await exchange.__aenter__()
        except (ConnectError, ValueError) as error:
            return _error(_UNREACHED, str(error))
        except NetTimeoutError as error:
            return _error(_UNREACHED if error.phase == "connect" else _UNANSWERED, str(error))
        except NetError as error:
            return _error(_UNANSWERED, str(error))
        headers = {name: value for name in _SENT_ON if (value := response.header(name)) is not None}
        status, within = response.status, "mcp-session-id" in request.headers
        if status < 400 or (status == 404 and not within):
            kind = headers.get("content-type", "").lower()
            body = _Body(exchange, response, kind.startswith("text/event-stream"))
            return httpx2.Response(status, headers=headers, stream=body)
        found, fields = b"{}", dict[str, Raw]()
        try:
            with suppress(NetError, msgspec.DecodeError):
                found = await response.read(MOST_ERROR) if status != 404 else found
                fields = raw_fields(found)
        finally:
            exchange.close()
        older = status == 400 and re.search(rb"(?i)session|not initialized", found)  # SDKs
        theirs = asked.get("id") not in (None, fields.get("id"))  # none in a notification
        if within and (status == 404 or (older and theirs)):
            self._connection.gone = True
            return _error(_ENDED, "lost the session")  # whatever else the server says of it
        if bytes(fields.get("error", b""))[:1] == b"{":
            return httpx2.Response(status, headers=headers, content=found)
        return _error(_STATUS, f"answered with the status {status}.", status=status)

    async def aclose(self) -> None:
        """Close every connection."""
        for task in self._asides:
            task.cancel()
        await self._client.aclose()


def _error(code: int, message: str, **data: int) -> httpx2.Response:
    error = {"code": code, "message": message, "data": data}
    content = msgspec.json.encode({"jsonrpc": "2.0", "id": None, "error": error})
    return httpx2.Response(502, headers={"content-type": "application/json"}, content=content)


class _Body(httpx2.AsyncByteStream):
    """A response's body, up to a limit. Its errors end one request in the SDK, not the session."""

    def __init__(self, exchange: Exchange, response: Response, stream: bool) -> None:
        self._exchange, self._response, self._stream = exchange, response, stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        most = MOST_BYTES * (2 if self._stream else 1)  # there may be reports before the answer
        size = waiting = 0
        held: list[bytes] = []  # the beginning of an event, or of the body
        last = b""  # bytes before a chunk
        try:
            async for chunk in self._response.chunks():
                size += len(chunk)
                held.append(chunk)
                waiting += len(chunk)
                if size > most or waiting > MOST_BYTES:
                    raise self._too_large(most)
                look = last + chunk
                last = look[-1:]
                # An event is counted whole: it ends with an empty line.
                if self._stream and any(end in look for end in (b"\n\n", b"\n\r", b"\r\r")):
                    async for piece in self._pieces(b"".join(held)):
                        yield piece
                    held.clear()
                    waiting = 0
            async for piece in self._pieces(b"".join(held)):
                yield piece
        except NetError as error:
            raise httpx2.StreamError(str(error)) from error

    def _too_large(self, most: int = MOST_BYTES) -> Exception:
        problem = f"the answer has more than {most} bytes or {MOST_VALUES} values"
        return httpx2.SSEError(problem) if self._stream else httpx2.StreamError(problem)

    async def _pieces(self, data: bytes) -> AsyncIterator[bytes]:
        """What has arrived, in pieces of few lines: each may be an event."""
        if _count_values(data) > MOST_VALUES:
            raise self._too_large()
        lines = data.count(b"\n") + data.count(b"\r") if self._stream else 0
        step = PIECE if lines > MOST_LINES else LONG
        for start in range(0, len(data), step):
            yield data[start : start + step]
            if start + step < len(data):
                await asyncio.sleep(0)  # others first

    async def aclose(self) -> None:
        self._exchange.close()


# ---- a program -----------------------------------------------------------------------------------


def program(name: str, command: Sequence[str], environ: Mapping[str, str]) -> Connection:
    """A session with a program of this machine, over its standard input and output."""

    def transport(connection: Connection) -> Streams:
        return _program(connection, command, environ)

    return Connection(name, transport)


@asynccontextmanager
async def _program(
    connection: Connection, command: Sequence[str], environ: Mapping[str, str]
) -> AsyncGenerator[Any]:
    """Run a program, in a process group of its own, and exchange lines with it. (The SDK's own
    transport has no limit for a line, and takes time quadratic in its length.)"""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=dict(environ),
        limit=MOST_BYTES,
        start_new_session=True,
    )
    given = cast(asyncio.StreamWriter, process.stdin)
    output = cast(asyncio.StreamReader, process.stdout)
    errors = cast(asyncio.StreamReader, process.stderr)
    source, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write, sink = anyio.create_memory_object_stream[SessionMessage](0)
    tail = bytearray()
    tasks = [
        asyncio.create_task(each)
        for each in (
            _read_lines(connection, output, source),
            _write_lines(given, sink),
            _read_tail(errors, tail),
        )
    ]
    try:
        yield read, write
    finally:
        if tasks[0].done():
            words = tail.decode("utf-8", "replace")
            _log.warning("the MCP server %s ended by itself: %r", connection.name, words)
        for stream in (source, read, write, sink):
            stream.close()
        given.close()
        try:
            for number in (0, signal.SIGTERM):
                _signal(process, number)
                with suppress(TimeoutError):
                    async with asyncio.timeout(PATIENCE):
                        await process.wait()
                    break
        finally:
            _signal(process, signal.SIGKILL)  # with its children
            for task in tasks:
                task.cancel()
            with suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE):
                    await process.wait()
            # A pipe that is not read is not closed by its end.
            cast(Any, process)._transport.close()


def _signal(process: asyncio.subprocess.Process, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


async def _read_lines(connection: Connection, output: asyncio.StreamReader, to: Any) -> None:
    """Pass on a program's lines, until it exits or a line is too long."""
    other = 0  # lines in a row that are no message
    with to, suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
        try:
            while line := await output.readline():
                if _count_values(line) > MOST_VALUES or other > MOST_OTHER:
                    raise ValueError
                try:
                    message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                except ValueError:  # many programs also print other text
                    other += 1
                    await asyncio.sleep(0)  # a line that is there is read without a pause
                    continue
                other = 0
                await to.send(SessionMessage(message))
        except ValueError:
            words = (
                f"of more than {MOST_BYTES} bytes or {MOST_VALUES} values, or {MOST_OTHER} lines"
            )
            words += " in a row that are no message, and is ended"
            _log.warning("the MCP server %s sent a line %s", connection.name, words)
        finally:
            connection.gone = True


async def _write_lines(to: asyncio.StreamWriter, messages: Any) -> None:
    with messages, suppress(ConnectionError):
        async for each in messages:
            to.write(each.message.model_dump_json(by_alias=True, exclude_unset=True).encode())
            to.write(b"\n")
            await to.drain()


async def _read_tail(errors: asyncio.StreamReader, tail: bytearray) -> None:
    while data := await errors.read(TAIL):
        tail += data
        del tail[:-TAIL]
