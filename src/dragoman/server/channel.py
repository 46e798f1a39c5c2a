"""The frames of one WebSocket: received one by one, sent by one task, and bounded both ways."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress

from msgspec import Struct
from msgspec.structs import replace

from dragoman.core.error import Fault, FaultError
from dragoman.core.interfaces import Caller

from .asgi import BUFFER, Receive, Room, Scope, Send
from .exchange import Exchange
from .limits import Hold
from .responder import Service


def of_message(fault: Fault) -> Fault:
    """A fault of what came by a WebSocket: what has a body in HTTP is a message there.

    >>> of_message(Fault("invalid_request", "The body is an array.")).message
    'The message is an array.'
    """
    rest = fault.message.removeprefix("The body ")
    return fault if rest == fault.message else replace(fault, message=f"The message {rest}")


LIFETIME = 3600.0
"""Seconds a connection may last."""


class Later:
    """A frame of about this size that takes long to encode: that is left to a thread."""

    def __init__(self, make: Callable[[], bytes], size: int) -> None:
        self.make = make
        self._size = size

    def __len__(self) -> int:
        return self._size


class Handshake(Struct):
    """A client that wants a WebSocket, and how it is talked to; `room` where the host is ours."""

    exchange: Exchange
    caller: Caller
    scope: Scope
    receive: Receive
    send: Send
    room: Room | None = None


class Channel(ABC):
    """Serves one client until it disconnects, or its time is over.

    A subclass takes each frame and writes frames of its own; one task sends them. What the client
    leaves unread is held of the server's memory; a client that does not read is disconnected.
    """

    subprotocol: str | None = None
    """The one that was chosen of those that the client speaks."""

    def __init__(self, service: Service, client: Handshake) -> None:
        self.service = service
        self.exchange = client.exchange
        self.caller = client.caller
        self._receive = client.receive
        self._send = client.send
        self._room = client.room
        self._queue: deque[bytes | Later] = deque()  # frames to be sent
        self._size = 0  # of those, and of the one that the client has not taken
        self._unread = service.budget.hold(self.caller.tenant)  # for those, if they are many
        self._sender: asyncio.Task[None] | None = None
        self._sending = False
        self._closing = False  # what is queued is the last
        self._wakeup = asyncio.Event()
        self._time = asyncio.timeout(None)
        self.open: Counter[str] = Counter()  # connections of each tenant

    @abstractmethod
    async def take(self, data: bytes) -> None:
        """A frame has come. The next one is taken behind it."""

    @abstractmethod
    async def opened(self) -> None:
        """The connection is accepted."""

    @abstractmethod
    def expired(self) -> None:
        """Time is over: write the last frame."""

    @abstractmethod
    def drained(self) -> None:
        """The client has taken what was written."""

    @abstractmethod
    async def finish(self) -> None:
        """The connection is over: end all work for it."""

    def holds(self) -> tuple[Hold, ...]:
        """What else the connection holds of the server's memory."""
        return ()

    async def serve(self, lifetime: float = LIFETIME) -> None:
        """Accept the connection, receive frames and answer them."""
        self._time, room, tenant = asyncio.timeout(lifetime), self._room, self.caller.tenant
        self._sender = sender = asyncio.get_running_loop().create_task(self._send_queued())
        self.open[tenant] += 1
        try:
            await self._receive()  # that it wants to connect
            accept = {"type": "websocket.accept", "headers": self.exchange.marks}
            await self._send({**accept, "subprotocol": self.subprotocol})
            if room is not None:
                room.hold = self.service.budget.hold(tenant)
                room.parse()
            await self.opened()
            async with self._time:
                while (message := await self._receive())["type"] == "websocket.receive":
                    text = message.get("text")
                    data = text.encode() if text else message.get("bytes") or b""
                    if room is not None and room.hold is not None and room.hold.size:
                        room.hold.close()  # it is ours now
                    await self.take(data)
                    del data, text, message
                    if room is not None and room.read_paused:
                        await asyncio.sleep(0)  # more has come: others first
                    elif room is not None and room.unparsed:
                        asyncio.get_running_loop().call_soon(room.parse)
        except TimeoutError:
            if not sender.done():  # or it was the client that did not read
                self._closing = True
                self.expired()
                await sender
        finally:
            self.open[tenant] -= 1
            if not self.open[tenant]:
                del self.open[tenant]
            self._queue.clear()
            sender.cancel()
            try:
                await asyncio.gather(self.finish(), sender, return_exceptions=True)
            finally:
                for hold in (self._unread, None if room is None else room.hold, *self.holds()):
                    if hold is not None:
                        hold.close()

    def write(self, *frames: bytes | Later) -> bool:
        """Send frames. True where the client does not keep up."""
        self._queue.extend(frames)
        self._size += sum(map(len, frames))
        self._wakeup.set()
        if self._size > BUFFER and self._sender is not None:
            try:
                self._unread.resize(self._size)
            except FaultError:  # the client leaves unread what there is no room for
                self._sender.cancel()
                self._queue.clear()
                self.abort()
        return self._sending or self._size > BUFFER

    def close(self) -> None:
        """Close the connection, once what was written is sent."""
        self._closing = True
        self._wakeup.set()

    def abort(self) -> None:
        """End the connection, and leave unsent what the client does not take."""
        if self._room is not None:
            self._room.transport.abort()
        with suppress(RuntimeError):  # its time is over already
            self._time.reschedule(0.0)

    async def _send_queued(self) -> None:
        """Send what is queued. A frame that the client does not take in time is the last: what
        followed it would follow a gap."""
        room = self._room
        try:
            while not self._closing or self._queue:
                await self._wakeup.wait()
                self._wakeup.clear()
                self._sending = True
                stall, loop = self.service.settings.stall, asyncio.get_running_loop()
                async with asyncio.timeout(stall) as patience:
                    last = 0  # bytes of the frame before
                    while self._queue:
                        frame = self._queue.popleft()
                        if isinstance(frame, Later):
                            self._size -= len(frame)
                            frame = await self.service.turns.take(frame.make)
                            self._size += len(frame)
                        if room is not None and len(frame) > BUFFER:
                            await room.writable.wait()
                            room.write_long(frame)
                        else:
                            await self._send({"type": "websocket.send", "text": frame.decode()})
                        self._size -= last  # the next one is sent when the client took that
                        last = len(frame)
                        patience.reschedule(loop.time() + stall)
                    if room is not None:
                        await room.writable.wait()
                    self._size -= last
                self._sending = False
                if self._unread.size:
                    self._unread.close()
                self.drained()
            await self._send({"type": "websocket.close", "code": 1000})
        except TimeoutError:
            self.abort()
        except (OSError, RuntimeError):  # how hosts say that the client is gone
            pass
