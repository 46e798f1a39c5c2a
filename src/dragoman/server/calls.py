"""Serves WebRTC calls: sessions with events on a data channel and sound that the server plays.

All transports share one session (`realtime.ServedSession`). A call adds playback: sound is sent in
real time, so that the server knows what was played when the user interrupts, and truncates the
conversation itself.
"""

from __future__ import annotations

import asyncio
import ipaddress
from base64 import b64decode
from collections import deque
from collections.abc import Callable
from importlib import import_module

from msgspec import Struct
from msgspec.structs import replace

from dragoman.core.error import Fault, FaultError, bad_request, quoted
from dragoman.core.event import Delta, PartDone
from dragoman.core.interfaces import Caller
from dragoman.core.item import JSON, Audio, Message
from dragoman.core.session_values import (
    Answer,
    Append,
    BufferSpeechStarted,
    Cancel,
    ClearOutput,
    Command,
    Configure,
    ItemRetrieved,
    Playing,
    Refused,
    Respond,
    ResponseDone,
    SessionConfig,
    SessionEvent,
    Truncate,
)
from dragoman.core.sound import milliseconds
from dragoman.engines.base import new_id
from dragoman.engines.session import Voice
from dragoman.net.webrtc import FRAME, Peer, available
from dragoman.wire import json
from dragoman.wire.multipart import MEDIA_TYPE, find_boundary, read_parts
from dragoman.wire.realtime import CALLS_PATH
from dragoman.wire.realtime.config import decode_config
from dragoman.wire.registry import BASE

from .asgi import BUFFER
from .cancellation import SHUTTING_DOWN, stalled
from .channel import Later
from .client_secrets import ClientSecret
from .exchange import Exchange, Route, fault_of
from .limits import read_body
from .realtime import Participant, Realtime, ServedSession, encode_event, query_of
from .responder import Service
from .websocket import crowded

CALLS = BASE + CALLS_PATH
SDP = "application/sdp"
MAX_OFFER = 256 * 1024
"""Bytes of a session description, with the configuration of the session."""
CONNECT_SECONDS = 30.0
"""How long a client may take to connect to what it was answered."""
MAX_UNREAD = 4 * 1024 * 1024
"""Bytes of events that a client may leave unread, and of commands that may wait: then the call
ends."""
MAX_EVENT = 1024 * 1024
"""Bytes, or characters of long texts, of an event that is sent by the data channel."""
AHEAD_MS = 60_000
"""Milliseconds of sound that answers may be ahead of playback: then they are paused."""
_EACH = 64
"""Bytes that a command takes while it waits, beside its own."""
_FORMATS = ("input_format", "output_format")

ENDED = Fault("cancelled", "The call has ended.", "client")
NEVER = Fault(
    "cancelled",
    f"The client did not connect within {CONNECT_SECONDS:g} s: it must reach this server by UDP at "
    "an address of the answer (call_host).",
    "client",
)
TOO_FAST = Fault("too_large", "The client sends commands faster than they are taken.", "client")
TOO_LONG = Fault(
    "too_large",
    f"An event of more than {MAX_EVENT} bytes is not sent by the data channel: join the call by "
    "WebSocket (call_id) for it.",
    "client",
)
SHARED = Fault(
    "unsupported",
    "Calls are known to one process, and this server has several: run it with workers = 1.",
    "server",
)
TELEPHONE = Fault(
    "unsupported",
    "This server takes no calls by telephone (SIP), so there is none to accept, reject or refer; "
    "calls by WebRTC are taken when they are made (POST /v1/realtime/calls).",
    "client",
)
RELAYED = Fault(
    "unsupported",
    "model: its sessions are those of another server, and are relayed by WebSocket only "
    "(GET /v1/realtime).",
    "client",
    "model",
)


class Stretch(Struct):
    """Sound of one part that is still to be played, behind `at` bytes that were; `whole` where
    nothing is added."""

    response_id: str
    item_id: str
    part: int
    sound: bytearray
    at: int = 0
    whole: bool = False


class Playback:
    """The queue of sound to play, a frame at a time, and its position. It has no clock.

    `emit` is called with events for the client: an answer is being played, or no longer.
    """

    def __init__(self, emit: Callable[[Playing], None]) -> None:
        self._emit = emit
        self._queue: deque[Stretch] = deque()
        self._playing = ""  # the answer
        self._over: set[str] = set()  # answers that are played and get no more sound
        self._dropped: set[str] = set()  # interrupted answers, until they are over
        self.size = 0
        """Bytes that wait."""

    @property
    def responses(self) -> set[str]:
        """The answers that are not played to their end."""
        return {stretch.response_id for stretch in self._queue} | {self._playing} - {""}

    def add(self, response_id: str, item_id: str, part: int, sound: bytes) -> None:
        """More sound of a part."""
        if response_id in self._dropped:
            return
        place = item_id, part
        found = [each for each in self._queue if (each.item_id, each.part) == place]
        if not found:  # parts are played in turn, though they may be generated at once
            found.append(Stretch(response_id, item_id, part, bytearray()))
            self._queue.append(found[0])
        found[0].sound += sound
        self.size += len(sound)

    def end_part(self, item_id: str, part: int) -> None:
        """A part has all its sound: what is less than a frame is played too."""
        for stretch in self._queue:
            if (stretch.item_id, stretch.part) == (item_id, part):
                stretch.whole = True

    def end(self, response_id: str) -> None:
        """An answer has all its sound."""
        self._dropped.discard(response_id)
        if response_id in self.responses:
            self._over.add(response_id)
        for stretch in self._queue:
            stretch.whole |= stretch.response_id == response_id

    def next_frame(self) -> bytes | None:
        """The next frame; None where none is there yet."""
        while self._queue:
            stretch = self._queue[0]
            rest = len(stretch.sound)
            if rest >= FRAME or (rest and stretch.whole):
                self._play(stretch.response_id)
                frame = bytes(stretch.sound[:FRAME])
                del stretch.sound[:FRAME]
                stretch.at += len(frame)
                self.size -= len(frame)
                return frame.ljust(FRAME, b"\0")
            if not stretch.whole:
                return None
            self._queue.popleft()
        if self._playing in self._over:
            self._play("")
        return None

    def clear(self) -> list[Truncate]:
        """Drop the queue. Returns where each part is cut that was not played to its end. One
        whose sound was played is cut too: more of its text may have been about to be spoken."""
        cuts = [
            Truncate(
                item_id=each.item_id,
                content_index=each.part,
                audio_end_ms=milliseconds(each.at),
            )
            for each in self._queue
        ]
        self._dropped |= self.responses - self._over
        self._queue.clear()
        self.size = 0
        self._over.clear()
        if self._playing:
            playing, self._playing = self._playing, ""
            self._emit(Playing(playing, "cleared"))
        return cuts

    def _play(self, response_id: str) -> None:
        """Another answer is played from now on; none where this is empty."""
        before, self._playing = self._playing, response_id
        if before not in ("", response_id):
            self._over.discard(before)
            self._emit(Playing(before, "stopped"))
        if response_id not in ("", before):
            self._emit(Playing(response_id, "started"))


class Call(ServedSession):
    """The session of a call, which plays its answers."""

    def __init__(
        self,
        service: Service,
        caller: Caller,
        config: SessionConfig,
        voice: Voice | None,
        exchange: Exchange,
        addresses: tuple[str, ...],
    ) -> None:
        config = replace(config, input_format="pcm16", output_format="pcm16")
        super().__init__(service, caller, config, voice, (exchange.path, exchange.id))
        self.playback = Playback(lambda event: self.receive([event]))
        self.line = Line(self, addresses)

    def send(self, command: Command, client: Participant | None = None) -> None:
        """A command of a client. What it says of formats means nothing: the connection has Opus."""
        if isinstance(command, ClearOutput):
            for id in self.playback.responses:
                if self.live.session.answering(id):
                    super().send(Cancel(response_id=id), client)
            self._interrupt()
            return
        if isinstance(command, Configure | Respond):
            changes = {n: value for n, value in command.changes.items() if n not in _FORMATS}
            command = replace(command, changes=changes)
        super().send(command, client)

    def receive(self, events: list[SessionEvent]) -> None:
        """Send events to the clients, and play their sound."""
        super().receive([_silent(event) for event in events])
        interrupted, plays = False, self.line.peer.plays
        for event in events:
            match event:
                case Answer(event=Delta(kind="audio", part_index=part, data=data)) if plays:
                    self.playback.add(event.response_id, event.item_id, part, b64decode(data))
                case Answer(event=PartDone(part_index=part)):
                    self.playback.end_part(event.item_id, part)
                case ResponseDone(response=response):
                    self.playback.end(response.id)
                case BufferSpeechStarted():
                    detection = self.live.session.config.turn_detection
                    interrupted |= detection is not None and detection.interrupt_response
        if interrupted:
            self._interrupt()
        elif milliseconds(self.playback.size) > AHEAD_MS:
            self._slow.add(self.playback)
            self.live.pause()
        self.line.peer.play()

    def shown(self, events: list[SessionEvent]) -> list[SessionEvent]:
        """All but the sound, which is played."""
        return [
            event
            for event in events
            if not (isinstance(event, Answer) and getattr(event.event, "kind", "") == "audio")
        ]

    def audio_received(self, audio: bytes) -> None:
        """Sound of the user has come."""
        try:
            self.send(Append(audio=audio))
        except Exception as problem:
            self.fail(problem)

    def fail(self, problem: Exception) -> None:
        """End the session, and say why."""
        self.stop(fault_of(problem, self._request[1], self.caller.key))

    def next_frame(self) -> bytes | None:
        """The next frame to play."""
        frame = self.playback.next_frame()
        if self.playback in self._slow and milliseconds(self.playback.size) < AHEAD_MS // 2:
            self.caught_up(self.playback)
        return frame

    def _hold(self, size: int) -> None:
        super()._hold(size + self.playback.size)

    def _interrupt(self) -> None:
        """Stop playback, and drop what was not played."""
        for cut in self.playback.clear():
            if cut.item_id in self.live.session.items:
                super().send(cut)
        self.caught_up(self.playback)


class Line:
    """The client that made a call: a client of its session by data channel."""

    def __init__(self, call: Call, addresses: tuple[str, ...]) -> None:
        self.peer = Peer(self, addresses)
        self.over = asyncio.Event()
        self._call = call
        self._inbox: deque[bytes] = deque()
        self._waiting = 0  # bytes of those
        self._taking: asyncio.Task[None] | None = None
        loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = loop.call_later(CONNECT_SECONDS, call.stop, NEVER)
        """Until the client must have connected, or read."""

    # ---- as a client of the session -------------------------------------------------------------

    def emit(self, events: list[dict[str, JSON]]) -> bool:
        """Send events to the client."""
        unread = 0
        for event in events:
            try:
                frame = encode_event(event)
                if len(frame) > MAX_EVENT:
                    raise FaultError(TOO_LONG)
                data = frame.make() if isinstance(frame, Later) else frame
                unread = self.peer.send(data.decode())
            except FaultError as problem:
                if event["type"] == "error":  # that does not fit either
                    self.close()
                    return True
                self.refused(problem.fault)
        if unread > MAX_UNREAD:
            self.close()
        elif unread > BUFFER and self._timer is None:
            seconds = self._call.service.settings.stall
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(seconds, self._call.stop, stalled(seconds))
        return unread > BUFFER

    def close(self) -> None:
        """The session is over."""
        self.over.set()

    # ---- what the connection calls ---------------------------------------------------------------

    def connected(self) -> None:
        """The client is there."""
        self._wait_no_more()

    def received(self, text: str | bytes) -> None:
        """A command has come. The next one is taken behind it."""
        data = text.encode() if isinstance(text, str) else text
        self._inbox.append(data)
        self._waiting += len(data) + _EACH
        if self._waiting > MAX_UNREAD:
            self._call.stop(TOO_FAST)
        elif self._taking is None or self._taking.done():
            self._taking = asyncio.get_running_loop().create_task(self._take())

    async def _take(self) -> None:
        while self._inbox:
            data = self._inbox.popleft()
            self._waiting -= len(data) + _EACH
            try:
                await self._call.take(self, data)
            except Exception as problem:
                self._call.fail(problem)
                return
            await asyncio.sleep(0)  # others first

    def drained(self) -> None:
        """The client has read what was sent."""
        self._wait_no_more()
        self._call.caught_up(self)

    def refused(self, fault: Fault) -> None:
        """An event does not fit."""
        self._call.receive([Refused(fault)])

    def audio_received(self, audio: bytes) -> None:
        """Sound has come."""
        self._call.audio_received(audio)

    def next_frame(self) -> bytes | None:
        """The next frame to play."""
        return self._call.next_frame()

    def ended(self) -> None:
        """The client is gone."""
        self.close()

    async def finish(self) -> None:
        """End the connection."""
        self._wait_no_more()
        if self._taking is not None:
            self._taking.cancel()
            await asyncio.wait((self._taking,))
        await self.peer.close()

    def _wait_no_more(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Calls:
    """The calls of one server. One tenant may have `share` of `max_calls`."""

    def __init__(self, service: Service, realtime: Realtime, share: float) -> None:
        self._service = service
        self._realtime = realtime
        self._share = share
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._making = asyncio.Lock()  # one at a time, others between: each takes milliseconds

    def routes(self) -> list[Route]:
        """The routes to make a call, and to end it."""
        return [Route("POST", CALLS, self.make), Route("POST", f"{CALLS}/", self.control)]

    async def make(
        self, exchange: Exchange, caller: Caller, secret: ClientSecret | None = None
    ) -> None:
        """Answer an offer: the call begins when the client connects to what that says."""
        settings, calls = self._service.settings, self._realtime.calls
        if settings.workers > 1:
            raise FaultError(SHARED)
        self._check_room(caller)
        offer, changes = await self._read(exchange, caller)
        given = {} if secret is None else secret.changes
        config = replace(SessionConfig(**given), **changes)
        model = given.get("model") or query_of(exchange).get("model") or config.model
        config = replace(config, model=model)  # a secret is for its model alone
        if not config.model and config.kind == "realtime":
            raise FaultError(bad_request("is missing, in `session` and in the query", "model"))
        if await self._realtime.upstream(config.model, caller) is not None:
            raise FaultError(RELAYED)
        addresses = await _addresses(settings.call_host or settings.host)
        if available():
            await asyncio.to_thread(import_module, "aiortc")  # the first time it takes long
        voice = await self._realtime.voice(config)
        self._check_room(caller)  # others may have come meanwhile
        call = Call(self._service, caller, config, voice, exchange, addresses)
        id = f"rtc_{new_id()}"
        calls[id] = call
        try:
            async with self._making:
                answer = await call.line.peer.answer(offer, BUFFER // 2)
                await asyncio.sleep(0)
        except BaseException:
            del calls[id]
            await asyncio.gather(call.line.finish(), call.close())
            raise
        self._tasks[id] = asyncio.get_running_loop().create_task(self._serve(id, call))
        head = (b"content-type", SDP.encode()), (b"location", f"{CALLS}/{id}".encode())
        exchange.start(201, [*exchange.marks, *head], answer.encode())
        exchange.status = 201
        exchange.end()

    def _check_room(self, caller: Caller) -> None:
        """Raise FaultError where a client may not begin another call."""
        settings, calls = self._service.settings, self._realtime.calls
        if self._service.roster.closing:
            raise FaultError(SHUTTING_DOWN)
        mine = sum(call.caller.tenant == caller.tenant for call in calls.values())
        if len(calls) >= settings.max_calls or mine >= settings.max_calls * self._share:
            raise FaultError(crowded(f"{settings.max_calls} calls are in progress (max_calls)"))

    async def _read(self, exchange: Exchange, caller: Caller) -> tuple[str, dict[str, JSON]]:
        """The offer, and the configuration of the session."""
        service = self._service
        given = exchange.header(b"content-type")
        form = given.partition(";")[0].strip().lower() == MEDIA_TYPE
        hold = service.budget.hold(caller.tenant)
        body = await read_body(
            exchange,
            service.settings,
            service.roster,
            hold,
            media_type=(SDP, MEDIA_TYPE),
            limit=MAX_OFFER,
            setting="of an offer",
        )
        if not form:
            return body.decode("utf-8", "replace"), {}
        fields = {part.name: part for part in read_parts(body, find_boundary(given))}
        if "sdp" not in fields:
            raise FaultError(bad_request("is missing", "sdp"))
        session = fields.get("session")
        if session is None:
            return fields["sdp"].text, {}
        data = bytes(session.data)
        json.check_size(data, service.settings)
        return fields["sdp"].text, decode_config(json.parse(data))

    async def _serve(self, id: str, call: Call) -> None:
        """Be there as long as the call is."""
        try:
            await call.join(call.line)
            await call.line.over.wait()
        finally:
            del self._realtime.calls[id], self._tasks[id]
            call.ended(ENDED)
            await asyncio.gather(call.line.finish(), call.close())

    def control(self, exchange: Exchange, caller: Caller) -> None:
        """Hang up; what else can be done with calls is for those by telephone."""
        id, _, what = exchange.path.removeprefix(f"{CALLS}/").partition("/")
        if what in ("accept", "reject", "refer"):
            raise FaultError(TELEPHONE)
        if what != "hangup":
            problem = f"There is nothing at {quoted(exchange.path)}; a call takes /hangup."
            raise FaultError(Fault("not_found", problem, "client"))
        self._realtime.call(id, caller).ended(ENDED)
        exchange.reply(200, b"")

    async def close(self) -> None:
        """End all calls."""
        for call in self._realtime.calls.values():
            call.stop(SHUTTING_DOWN)
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)


def _silent(event: SessionEvent) -> SessionEvent:
    """An event without the sound that an item has, which is more than a data channel takes."""
    if isinstance(event, ItemRetrieved) and isinstance(event.item, Message):
        parts = [
            replace(part, data=None) if isinstance(part, Audio) else part
            for part in event.item.parts
        ]
        return replace(event, item=replace(event.item, content=tuple(parts)))
    return event


async def _addresses(host: str) -> tuple[str, ...]:
    """The addresses that a name stands for; empty for all that this machine has."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, 0)
        except (OSError, UnicodeError) as error:
            problem = f"is {host!r}, which has no address ({error}): set it to one of this server"
            raise FaultError(Fault("internal", f"call_host: {problem}.")) from None
        return tuple(dict.fromkeys(str(place[0]) for *_, place in found))
    return () if address.is_unspecified else (host,)
