"""The WebSocket protocol of one connection, with backpressure and limits."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Generator
from typing import Any, cast

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from dragoman.core.error import FaultError

from .asgi import ROOM
from .channel import MOST_REASON, TRY_AGAIN_LATER
from .limits import SMALL, STEP, Hold
from .settings import Settings

READS = 32
"""Reads of the parser in one turn of the loop: a frame takes four, and may have six bytes."""
LATER, TRIES = 0.1, 20
"""Seconds between attempts of a connection without room for its messages, and their number."""
PIECE = 256 * 1024
"""Bytes of a frame that are unmasked, or copied to be sent, at once. It is a multiple of four, as
masks are."""
_CONT, _LONG, _MASKED = 0, 127, 0x80


class Fragments:
    """Reads for websockets' parser, in the place of its reader's `read_exact`: READS, before others
    have their turn. A frame that is longer than PIECE is given as the fragments that its client
    might have sent: the parser would copy and unmask it in one step."""

    def __init__(self, reader: Any, most: int) -> None:
        self.left = READS  # in this turn
        self._reader = reader  # of websockets
        self._most = most  # a frame that is longer is refused by its head
        self._reads = 0  # that the parser makes before it comes to a head
        self._made: list[bytes | bytearray] = []  # what those give that are not of the stream
        self._left = 0  # bytes of the frame that is cut
        self._final = 0  # whether that is the last of its message
        self._mask = bytearray()

    def __call__(self, size: int) -> Generator[None, None, bytes | bytearray]:
        """The next bytes. Raises EOFError."""
        while self.left <= 0:
            yield
        self.left -= 1
        if self._made:
            return self._made.pop()
        if not self._reads and self._left:
            return self._fragment(_CONT)
        buffer: bytearray = self._reader.buffer
        if len(buffer) < size:
            yield from self._wait(size)
        data = buffer[:size]
        del buffer[:size]
        if self._reads:
            self._reads -= 1
            return data
        self._reads = 3 if data[1] & _LONG > 125 else 2
        if data[1] == _MASKED | _LONG and data[0] & 0x7F <= 2:  # which frames of data begin with
            yield from self._wait(12)
            rest = buffer[:12]
            del buffer[:12]
            if PIECE < (length := int.from_bytes(rest[:8], "big")) <= self._most:
                self._left, self._mask = length, rest[8:]
                self._final, opcode = data[0] & 0x80, data[0] & 0x0F
                return self._fragment(opcode)
            self._made = [rest[8:], rest[:8]]
            self._reads = 1
        return data

    def _wait(self, size: int) -> Generator[None, None, None]:
        while (missing := size - len(self._reader.buffer)) > 0:
            if self._reader.eof:
                raise EOFError(f"the stream ends {missing} bytes too early")
            yield

    def _fragment(self, opcode: int) -> bytes:
        """The head of the next fragment."""
        size = min(self._left, PIECE)
        self._left -= size
        self._made = [self._mask, size.to_bytes(8, "big")]
        self._reads = 1
        return bytes(((0 if self._left else self._final) | opcode, _MASKED | _LONG))


class SocketProtocol(WebSocketsSansIOProtocol):
    """uvicorn's WebSocket with backpressure: it parses no faster than its client reads and the
    application takes messages. With timeouts for messages, and for unread responses.

    The application finds it under `ROOM` in the extensions of its scope. It sets `hold`, which
    accounts for received bytes, and calls `parse` when it has taken a message.
    """

    hold: Hold | None = None
    behind = False
    _unparsed = b""
    _at = 0  # bytes of it that are parsed
    _tries = 0  # attempts to find room
    _begun = math.inf  # when the current message began
    _latest = 0.0  # when data of it was last received
    _size = 0  # bytes of it
    _timer: asyncio.TimerHandle | None = None
    _unread, _since = math.inf, 0.0  # bytes that the client had not read, and when that was
    # Texts are passed on as bytes: they are validated where they are decoded.
    handle_text = WebSocketsSansIOProtocol.handle_bytes

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        reader, most = self.conn.reader, cast(Any, self.config).ws_max_size
        cast(Any, reader).read_exact = self._reads = Fragments(reader, most)

    def data_received(self, data: bytes) -> None:
        few = len(data) <= STEP and len(self.conn.reader.buffer) <= STEP
        if few and not (self.behind or self.frames) and self.writable.is_set():
            self._reads.left = READS
            super().data_received(data)
            self.behind = self._reads.left <= 0
            if self.behind:
                self.transport.pause_reading()
                self.loop.call_soon(self.parse)
        else:
            self._unparsed, self._at = self._unparsed[self._at :] + data, 0
            self.behind = True
            self.parse()
        if not (self._unparsed or self.conn.reader.buffer or self.frames):
            self._begun = math.inf
            return
        self._latest = self.loop.time()
        if self._begun == math.inf:
            self._begun, self._size = self._latest, 0
        self._size += len(data)
        if self._timer is None:
            limits: Settings = cast(Any, self.config).limits
            self._timer = self.loop.call_later(limits.read_time, self._look_at_the_clock, limits)

    async def receive(self) -> Any:
        """The next message. No more is read where some of what was is not parsed yet."""
        message = await super().receive()
        if self.behind:  # uvicorn has just resumed it
            self.transport.pause_reading()
        return message

    def parse(self) -> None:
        """Parse some, and continue after a turn of the loop; or wait until the client reads,
        the application takes messages, or there is room for more."""
        if self.transport.is_closing():
            self._unparsed, self.behind = b"", False
        elif self.read_paused or not self.writable.is_set() or self._is_early():
            self.transport.pause_reading()
        elif self.behind:
            step = b""
            if self._reads.left > 0:  # what was given before is parsed
                step = self._unparsed[self._at : self._at + STEP]
                self._at += STEP
                if self._at >= len(self._unparsed):
                    self._unparsed, self._at = b"", 0
            self._reads.left = READS
            super().data_received(step)
            self.behind = self._unparsed != b"" or self._reads.left <= 0
            self.transport.pause_reading()
            if self._has_room():
                self.loop.call_soon(self.parse)
        elif self._has_room():
            self.transport.resume_reading()
        if not (self._unparsed or self.conn.reader.buffer or self.frames):
            self._begun = math.inf

    def _has_room(self) -> bool:
        """Account for received messages. Where there is no room, try again later, but not
        for long: it may be a deadlock."""
        size = len(self.conn.reader.buffer) + len(self._unparsed) - self._at
        size += sum(map(len, self.frames))
        try:
            if self.hold is not None and not self.read_paused and max(size, self.hold.size) > SMALL:
                self.hold.resize(size)
        except FaultError as error:
            self._tries += 1
            if self._tries < TRIES:
                self.transport.pause_reading()
                self.loop.call_later(LATER, self.parse)
            else:
                self.conn.fail(TRY_AGAIN_LATER, error.fault.message[:MOST_REASON])
                self.handle_parser_exception()
            return False
        self._tries = 0
        return True

    def write_long(self, frame: bytes) -> None:
        """Send a long text without a copy. Raises OSError where the connection is closing."""
        if self.conn.state.name != "OPEN":
            raise ConnectionError("the WebSocket is closing")
        self.transport.write(bytes((0x81, _LONG)) + len(frame).to_bytes(8, "big"))
        self.transport.write(frame)

    def _is_early(self) -> bool:
        """Whether much was received before the application accepted the connection."""
        return self.hold is None and self.handshake_initiated and len(self._unparsed) > STEP

    def handle_cont(self, event: Any) -> None:
        # Joined: small ones as separate objects take much more memory, and large ones another copy.
        frames = cast(Any, self.frames)
        if type(frames[0]) is bytes:
            frames[0] = bytearray(frames[0])
        frames[0] += event.data
        if event.fin:
            self.send_receive_event_to_app()

    def handle_connect(self, event: Any) -> None:
        super().handle_connect(event)
        if hasattr(self, "scope"):
            cast(Any, self.scope)["extensions"][ROOM] = self

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unread = math.inf
        self.loop.call_soon(self.parse)

    def _look_at_the_clock(self, limits: Settings) -> None:
        self._timer, now = None, self.loop.time()
        if self._begun == math.inf or self.close_sent or self.transport.is_closing():
            self._give_time(limits)
            return
        if not self.writable.is_set():  # it must read first, if only the answers to its pings
            unread = self.transport.get_write_buffer_size()
            if self._unread - unread >= limits.min_rate * limits.read_time:
                self._unread, self._since = unread, now
            elif now >= self._since + limits.stall:
                self.transport.abort()
                return
        if self.read_paused or self.behind:  # the delay is ours
            self._begun = self._latest = now
        rate_kept = self._begun + self._size / limits.min_rate
        if now < min(self._latest, rate_kept) + limits.read_time:
            self._timer = self.loop.call_later(limits.read_time, self._look_at_the_clock, limits)
            return
        self.conn.fail(1008, "the rest of a message did not come in time (read_time, min_rate)")
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        self.transport.close()
        self._give_time(limits)

    def _give_time(self, limits: Settings) -> None:
        """Close even if the client does not read the rest."""
        if self._timer is None and self.transport.get_write_buffer_size():
            self._timer = self.loop.call_later(limits.stall, self.transport.abort)

    def on_task_complete(self, task: asyncio.Task[None]) -> None:
        super().on_task_complete(task)
        self._give_time(cast(Any, self.config).limits)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._timer is not None:
            self._timer.cancel()
        self._unparsed, self.frames = b"", []  # references to this connection may live long
        self.conn.reader.discard()
        if self.hold is not None:  # the application may have ended before this
            self.hold.close()
