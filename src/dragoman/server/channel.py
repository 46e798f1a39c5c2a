"""Receives and sends the frames of one WebSocket, with limits in both directions."""

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
from dragoman.net.threads import reading

from .asgi import BUFFER, Receive, Room, Scope, Send
from .exchange import Exchange
from .limits import Hold
from .responder import Service


def of_message(fault: Fault) -> Fault:
    """A fault for a WebSocket: "message" replaces HTTP's "body".

    >>> of_message(Fault("invalid_request", "The body is an array.")).message
    'The message is an array.'
    """
    rest = fault.message.removeprefix("The body ")
    return fault if rest == fault.message else replace(fault, message=f"The message {rest}")


LIFETIME = 3600.0
"""The time limit of a connection."""
RESTART, TRY_AGAIN_LATER, MOST_REASON = 1012, 1013, 120
"""The close codes at a shutdown, and of a connection for whose messages there is no room (IANA's
registry), at which clients reconnect; and the characters of the reason."""
LAST_FRAME = 5.0
"""Seconds that such a client has to read the frame that is being sent."""
TOGETHER = 256
"""Frames that are sent in one turn of the event loop."""


class Later:
    """Size of a frame, about, from which it is encoded in a thread."""

    def __init__(self, make: Callable[[], bytes], size: int) -> None:
        self.make = make
        self._size = size

    def __len__(self) -> int:
        return self._size


class Handshake(Struct):
    """A WebSocket handshake and its ASGI callables; `room` where the host is ours."""

    exchange: Exchange
    caller: Caller
    scope: Scope
    receive: Receive
    send: Send
    room: Room | None = None


class Channel(ABC):
    """Serves one client until it disconnects, or its time limit is reached.

    A subclass processes each frame and writes frames of its own; one task sends them. Unread
    frames are accounted for in the server's budget; a client that does not read is disconnected.
    """

    subprotocol: str | None = None
    """The chosen subprotocol of those that the client offers."""

    def __init__(self, service: Service, client: Handshake) -> None:
        self.service = service
        self.exchange = client.exchange
        self.caller = client.caller
        self._receive = client.receive
        self._send = client.send
        self._room = client.room
        self._queue: deque[bytes | Later] = deque()  # frames to be sent
        self._size = 0  # of those, and of the one that is being sent
        self._unread = service.budget.hold(self.caller.tenant)  # for those, if they are many
        self._sender: asyncio.Task[None] | None = None
        self._sending = False
        self._closing = False  # the queue has the last frames
        self._full = ""  # why no more frames are sent
        self._wakeup = asyncio.Event()
        self._time = asyncio.timeout(None)
        self.open: Counter[str] = Counter()  # connections of each tenant

    @abstractmethod
    async def take(self, data: bytes) -> None:
        """Process a frame. The next one is received afterwards."""

    @abstractmethod
    async def opened(self) -> None:
        """The connection is accepted."""

    @abstractmethod
    def expired(self) -> None:
        """The time limit is reached: write the last frame."""

    @abstractmethod
    def drained(self) -> None:
        """The client has read the buffer."""

    @abstractmethod
    async def finish(self) -> None:
        """The connection is closed: cancel all work for it."""

    def holds(self) -> tuple[Hold, ...]:
        """Other memory of the connection."""
        return ()

    async def serve(self, lifetime: float = LIFETIME) -> None:
        """Accept the connection, then receive and process frames."""
        self._time, room, tenant = asyncio.timeout(lifetime), self._room, self.caller.tenant
        self._sender = sender = asyncio.get_running_loop().create_task(self._send_queued())
        self.open[tenant] += 1
        try:
            await self._receive()  # the connect event
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
                        room.hold.close()  # it is accepted
                    await self.take(data)
                    del data, text, message
                    if room is not None and room.read_paused:
                        await asyncio.sleep(0)  # more frames are waiting: yield first
                    elif room is not None and room.behind:
                        asyncio.get_running_loop().call_soon(room.parse)
        except TimeoutError:
            if not sender.done():  # unless it is closed since the client did not read
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
        """Queue frames. True where the client reads too slowly. Where there is no room for more,
        the connection is closed with that reason, behind the frame that is being sent."""
        if self._full:
            return True
        self._queue.extend(frames)
        self._size += sum(map(len, frames))
        self._wakeup.set()
        if self._size > BUFFER and self._sender is not None:
            try:
                self._unread.resize(self._size)
            except FaultError as problem:
                self._full, self._closing = problem.fault.message, True
                self._size -= sum(map(len, self._queue))
                self._queue.clear()
                asyncio.get_running_loop().call_later(LAST_FRAME, self.abort)
        return self._sending or self._size > BUFFER

    def close(self) -> None:
        """Close the connection after the queue was sent."""
        self._closing = True
        self._wakeup.set()

    def abort(self) -> None:
        """Close the connection, and drop frames that the client does not read."""
        if self._room is not None:
            self._room.transport.abort()
        with suppress(RuntimeError):  # its time limit is reached already
            self._time.reschedule(0.0)

    async def _send_queued(self) -> None:
        """Send the queue. A frame that the client does not read in time is the last: later ones
        would follow a gap."""
        room = self._room
        reading.set(self.caller.tenant)
        try:
            while not self._closing or self._queue:
                await self._wakeup.wait()
                self._wakeup.clear()
                self._sending = True
                stall, loop = self.service.settings.stall, asyncio.get_running_loop()
                async with asyncio.timeout(stall) as patience:
                    last = 0  # bytes of the previous frame
                    while self._queue:
                        frame = self._queue.popleft()
                        if len(self._queue) % TOGETHER == TOGETHER - 1:
                            await asyncio.sleep(0)
                        if isinstance(frame, Later):
                            self._size -= len(frame)
                            frame = await self.service.turns.take(frame.make)
                            self._size += len(frame)
                        if room is not None and len(frame) > BUFFER:
                            await room.writable.wait()
                            room.write_long(frame)
                        else:
                            await self._send({"type": "websocket.send", "text": frame.decode()})
                        self._size -= last  # the next one is sent when the client has read this one
                        last = len(frame)
                        patience.reschedule(loop.time() + stall)
                    if room is not None:
                        await room.writable.wait()
                    self._size -= last
                self._sending = False
                if self._unread.size:
                    self._unread.close()
                self.drained()
            code = RESTART if self.service.roster.closing else 1000
            code = TRY_AGAIN_LATER if self._full else code
            await self._send(
                {"type": "websocket.close", "code": code, "reason": self._full[:MOST_REASON]}
            )
        except TimeoutError:
            self.abort()
        except (OSError, RuntimeError):  # hosts raise it when the client is gone
            pass
