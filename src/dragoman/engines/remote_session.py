"""Connects to a session of another Realtime server, GA or beta."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress

from dragoman.core.error import Fault, FaultError
from dragoman.core.interfaces import HOPS_HEADER, Secret
from dragoman.core.session_values import Command
from dragoman.net.errors import NetError
from dragoman.net.websocket import CLOSED, RefusedError, WebSocket, open_websocket
from dragoman.wire import json
from dragoman.wire.error import decode
from dragoman.wire.realtime import PATH
from dragoman.wire.realtime.beta import to_beta, to_ga
from dragoman.wire.realtime.commands import encode_command
from dragoman.wire.realtime.events import decode_event

from .base import fault_from
from .session import SessionSink
from .upstream import without, without_key

MAX_MESSAGE = 32 * 1024 * 1024
"""Bytes of one event."""
MAX_VALUES = 100_000
"""Commas, colons and brackets in one event, which bound its values: they take the time."""
TOO_MANY = Fault(
    "upstream_error", f"The session's server sent an event of over {MAX_VALUES} values.", "upstream"
)
STUCK = Fault("upstream_timeout", "The session's server takes nothing.", "upstream")
MAX_UNSENT = 64 * 1024 * 1024
"""Unsent bytes of commands beyond which the other server counts as stuck."""
SECONDS = 30.0
"""The connect timeout."""
STALL = 60.0
"""Seconds in which the other server takes a command, where 1 MiB of them wait."""
BROKEN = (0, 1001, 1011, 1012, 1013, 1014)
"""Close codes of a connection that broke, rather than being closed by the server on purpose: none,
going away, internal error, restart, try again later, bad gateway (RFC 6455, 7.4; IANA)."""


def session_url(base: str, model: str) -> str:
    """The address of a session with a model, by the base URL of a server.

    >>> session_url("https://api.example.com/v1", "m")
    'wss://api.example.com/v1/realtime?model=m'
    >>> session_url("ws://127.0.0.1:8000/v1/realtime?intent=transcription", "")
    'ws://127.0.0.1:8000/v1/realtime?intent=transcription'
    """
    from urllib.parse import quote

    scheme, mark, rest = base.partition("://")
    rest, _, query = rest.partition("?")
    rest = rest.rstrip("/")
    path = rest if rest.endswith(PATH) else rest + PATH
    asked = "&".join(filter(None, [query, f"model={quote(model, safe='')}" if model else ""]))
    scheme = {"http": "ws", "https": "wss"}.get(scheme, scheme)
    return f"{scheme}{mark}{path}{'?' if asked else ''}{asked}"


class RemoteSession:
    """A session of the server at a base URL. `open` connects; the sink receives its events.

    With `beta` the beta dialect is used; `hops` counts the gateways up to there. A lost
    connection ends the session: servers cannot resume one, and `reopen` opens another.
    """

    def __init__(
        self,
        base: str,
        model: str,
        sink: SessionSink | None = None,
        *,
        key: Secret | str | None = None,
        beta: bool = False,
        hops: int = 0,
    ) -> None:
        self.sink = sink
        self.beta = beta
        self._hops = hops
        self.take: Callable[[bytes], Awaitable[None] | None] = self._decode
        """Takes its events as they stand; by default the sink gets them decoded."""
        self.lost = False
        """Whether the connection broke, and it was not the server that ended the session."""
        self._url = session_url(base, model)
        self._key = Secret(key) if isinstance(key, str) else key
        self._socket: WebSocket | None = None
        self._queue: deque[bytes] = deque()
        self._size = 0  # of those
        self._wakeup = asyncio.Event()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._taken = asyncio.Event()
        self._taken.set()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def unsent(self) -> int:
        """Bytes that the server has not taken."""
        return self._size

    async def open(self) -> None:
        """Connect. Raises FaultError."""
        headers = {HOPS_HEADER: str(self._hops)} if self._hops else {}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key.reveal()}"
        if self.beta:
            headers["OpenAI-Beta"] = "realtime=v1"
        try:
            self._socket = await open_websocket(
                self._url, headers, within=SECONDS, max_size=MAX_MESSAGE
            )
        except RefusedError as error:
            raise FaultError(without(decode(error.status, error.body), self._key)) from error
        except NetError as error:
            fault = Fault(
                "upstream_unreachable", f"No session could be opened: {error}.", "upstream"
            )
            raise FaultError(fault) from error
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._read(self._socket)),
            loop.create_task(self._write(self._socket)),
        ]

    async def reopen(self, sink: SessionSink) -> None:
        """Open another session in place of this one. Raises FaultError."""
        await self.close()
        self._queue.clear()
        self._size, self.lost, self.sink = 0, False, sink
        self._taken.set()
        self._flowing.set()
        await self.open()

    def send(self, command: Command) -> None:
        """Send a command."""
        event = encode_command(command)
        for each in to_beta(event) if self.beta else [event]:
            self.send_raw(json.dump(each))

    def send_raw(self, data: bytes) -> None:
        """Send an encoded event."""
        self._queue.append(data)
        self._size += len(data)
        self._wakeup.set()
        if self._size > 1 << 20:
            self._taken.clear()
        if self._size > MAX_UNSENT:
            self._over(STUCK)

    async def drain(self) -> None:
        """Wait until the send buffer is nearly empty. The session ends where nothing is taken."""
        while not self._taken.is_set():
            before = self._size
            try:
                async with asyncio.timeout(STALL):
                    await self._taken.wait()
            except TimeoutError:
                if self._size == before:
                    self._over(STUCK)

    def pause(self) -> None:
        """Pause reading."""
        self._flowing.clear()

    def resume(self) -> None:
        """Resume reading."""
        self._flowing.set()

    async def close(self) -> None:
        """Close the connection."""
        self.sink = None
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._socket is not None:
            with suppress(Exception):
                await self._socket.close()

    def _decode(self, data: bytes) -> None:
        """Pass on an event; one that is no JSON object is ignored."""
        with suppress(ValueError):
            event = json.load(data)
            events = (to_ga(event) if self.beta else [event]) if isinstance(event, dict) else []
            found = [each for one in events for each in decode_event(one)]
            if found and self.sink is not None:
                self.sink.receive(found)

    def _over(self, fault: Fault) -> None:
        sink, self.sink = self.sink, None
        self._taken.set()
        if sink is not None:
            sink.ended(fault)

    async def _read(self, socket: WebSocket) -> None:
        try:
            while True:
                await self._flowing.wait()
                data = await socket.receive()
                if json.marks(data) > MAX_VALUES:
                    self._over(TOO_MANY)
                    return
                if b'"error"' in data:  # and no other, as a key may be a word of a text
                    data = without_key(data, self._key)
                if (taking := self.take(data)) is not None:
                    await taking
        except CLOSED as error:
            code = error.rcvd.code if error.rcvd is not None else 0
            self.lost = code in BROKEN
            reason = f" ({code} {error.rcvd.reason})" if error.rcvd is not None else ""
            message = f"The session's server closed the connection{reason}. Open another session."
            self._over(without(Fault("upstream_cut", message, "upstream"), self._key))
        except Exception as error:  # the client would wait forever
            self._over(fault_from(error, self._key))

    async def _write(self, socket: WebSocket) -> None:
        with suppress(CLOSED):  # the reader reports it
            while True:
                await self._wakeup.wait()
                self._wakeup.clear()
                while self._queue:
                    data = self._queue.popleft()
                    await socket.send_text(data)
                    self._size -= len(data)
                    if self._size <= 1 << 20:
                        self._taken.set()
