"""Relays one session of another server, event by event, and reopens a lost one."""

from __future__ import annotations

import asyncio
import logging
from codecs import getincrementaldecoder
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman.core.conversation import (
    Items,
    as_text,
    config_weight,
    item_id,
    merged,
    take_sounds,
    type_of,
    weight,
)
from dragoman.core.error import LONGEST_NAME, Fault, FaultError
from dragoman.core.event import Delta, ItemAdded, ItemDone, PartAdded
from dragoman.core.item import JSON, Audio, FunctionCall, Item, Message
from dragoman.core.session import LIMITS, TOO_OLD
from dragoman.core.session_answer import AnswerView
from dragoman.core.session_values import (
    ROOT,
    Answer,
    BufferCleared,
    BufferCommitted,
    BufferSpeechStarted,
    Changes,
    Configure,
    ConversationItemAdded,
    ConversationItemDone,
    CreateItem,
    ItemDeleted,
    ItemTruncated,
    Refused,
    ResponseCreated,
    ResponseDone,
    SessionConfig,
    SessionCreated,
    SessionEvent,
    SessionResponse,
    SessionUpdated,
    TranscriptionCompleted,
    TranscriptionFailed,
)
from dragoman.core.sound import Spoken
from dragoman.engines.base import fault_from, new_id
from dragoman.wire import json
from dragoman.wire.json import LARGE
from dragoman.wire.pieces import marked
from dragoman.wire.realtime.beta import to_beta, to_ga
from dragoman.wire.realtime.commands import MAX_OTHER, command_of
from dragoman.wire.realtime.events import decode_event, encode_events
from dragoman.wire.realtime.items import MAX_PARTS

from .channel import Channel, Handshake
from .limits import SMALL, Hold
from .log import Entry
from .responder import Service

if TYPE_CHECKING:
    from dragoman.engines.remote_session import RemoteSession

_log = logging.getLogger("dragoman.server")

PAUSES = (0.1, 1.0, 3.0)
"""Seconds before each attempt to reopen a lost session."""
WITHIN = 15.0
"""The timeout for restoring the lost session."""
SOON = 30.0
"""Seconds after a loss during which another loss ends the session."""
MOST = 1_024
"""Unanswered commands beyond which a lost session is not reopened."""
OPEN = 256
"""Answers, their items and parts, and transcriptions in progress beyond which a lost session is not
reopened: their ends are sent together."""
_APPEND = "input_audio_buffer.append"
_ANSWERS = {
    "session.updated": "session.update",
    "conversation.item.added": "conversation.item.create",
    "conversation.item.created": "conversation.item.create",  # beta
    "conversation.item.deleted": "conversation.item.delete",
    "conversation.item.truncated": "conversation.item.truncate",
    "conversation.item.retrieved": "conversation.item.retrieve",
    "input_audio_buffer.committed": "input_audio_buffer.commit",
    "input_audio_buffer.cleared": "input_audio_buffer.clear",
    "response.created": "response.create",
}
"""The events that answer commands, and the commands. Cancelling a lost answer needs no repeat."""

_EACH, _ANSWER, _MARK = 64, 4_096, 256
"""Overhead of each piece of an answer, of each answer, and of each piece of a transcript, about."""

SOUND_LOST = Fault(
    "upstream_cut",
    "The session's server was lost, and with it the sound that was not committed: send it again.",
    "upstream",
)
NO_WORDS = Fault(
    "upstream_cut",
    "Some sound of the conversation has no transcript (session.audio.input.transcription).",
    "upstream",
)


class _Error(Struct):
    event_id: str | None = None


class Head(Struct):
    """The fields that are decoded of each event. `delta` is raw JSON, with its quotes."""

    type: str = ""
    event_id: str | None = None
    item_id: str = ""
    content_index: int = 0
    error: _Error | None = None
    delta: msgspec.Raw = json.ABSENT


_decode = msgspec.json.Decoder(Head).decode


def as_utf8(data: bytes) -> bytes:
    """The same in UTF-8: what is none becomes U+FFFD. It lets other threads run.

    >>> as_utf8(b"a\\xff")
    b'a\\xef\\xbf\\xbd'
    """
    decode, starts = getincrementaldecoder("utf-8")("replace").decode, range(0, len(data), LARGE)
    pieces = [decode(data[at : at + LARGE], at + LARGE >= len(data)).encode() for at in starts]
    return b"".join(pieces)


def read_head(data: bytes) -> Head:
    """The head of an event; an empty one for an invalid event."""
    try:
        return _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Head()


class Received(Struct):
    """An event of another server: its head, its size, and what it stands for."""

    head: Head
    size: int
    events: list[SessionEvent]


class SessionCopy:
    """Tracks the state of another server's session by its events, and the unanswered commands:
    all that a new session needs to replace it. Its methods raise FaultError beyond their
    limits, and other exceptions for invalid events."""

    def __init__(self, changes: Changes, *, beta: bool) -> None:
        self.changes = changes
        self.unanswered: deque[tuple[Head, bytes]] = deque()
        self._beta = beta
        self._items = Items(most=LIMITS.items, most_text=LIMITS.text, most_audio=0)
        self._config = SessionConfig()
        self._answers: dict[str, tuple[SessionResponse, AnswerView]] = {}
        self._adding = ""  # the id of the item that an answer adds
        self._transcribed: set[str] = set()  # items that are being transcribed
        self._speaking = False
        self._appended = False  # sound that is not committed
        self._pending = 0  # bytes of commands, and characters of answers in progress
        self._marks = 0  # bytes of what tells when the pieces of transcripts are spoken
        self._begun = 0  # answers in progress, their items and parts
        self._configuration = 0  # characters of the configuration

    @property
    def size(self) -> int:
        """Its size in bytes, about."""
        return self._items.text + self._pending + self._marks + self._configuration

    def sent(self, head: Head, data: bytes) -> None:
        """Track a command that is sent."""
        if head.type == _APPEND:
            self._appended = True
        elif head.type in _ANSWERS.values():
            self.unanswered.append((head, data))
            self._pending += len(data)
            if len(self.unanswered) > MOST:
                raise FaultError(Fault("too_large", f"More than {MOST} commands wait.", "upstream"))

    def read(self, data: bytes) -> Received:
        """Decode an event. It changes nothing, and may run in a thread."""
        head = read_head(data)
        sound = head.type.endswith("audio.delta")
        found = [] if sound else [event for e in self._read(data) for event in decode_event(e)]
        return Received(head, len(data), found)

    def received(self, found: Received) -> None:
        """Track an event."""
        head = found.head
        if len(head.item_id) > LONGEST_NAME or not 0 <= head.content_index <= MAX_PARTS:
            raise FaultError(Fault("too_large", "An item or part cannot be followed.", "upstream"))
        if head.type.startswith("response.") and not head.type.endswith(".delta"):
            self._pending += found.size
        if command := self._answered(head):
            self._configured(command)
        if head.type.endswith("audio.delta"):
            size = memoryview(head.delta).nbytes * 3 // 4
            telephone = self._config.output_format != "pcm16"
            self._spoken(head.item_id, head.content_index, size * (6 if telephone else 1))
        for event in found.events:
            self._take(event)

    def _read(self, data: bytes) -> list[dict[str, JSON]]:
        """An event in the GA dialect."""
        value = json.load(data)
        if not isinstance(value, dict):
            return []
        return to_ga(value) if self._beta else [value]

    def _answered(self, head: Head) -> bytes | None:
        """The command that an event answers. Earlier ones are done: they are processed in order."""
        if head.type not in _ANSWERS and head.error is None:
            return None
        for number, (command, data) in enumerate(self.unanswered):
            if head.error is not None and head.error.event_id == command.event_id:
                found = True
            else:
                found = _ANSWERS.get(head.type) == command.type
            if found:
                for _ in range(number + 1):
                    self._pending -= len(self.unanswered.popleft()[1])
                return data if head.type == "session.updated" else None
        return None

    def _configured(self, data: bytes) -> None:
        """Apply a change of the configuration."""
        for each in self._read(data):
            command = command_of(each)
            if not isinstance(command, Configure):
                raise FaultError(Fault("invalid_request", "The configuration cannot be read."))
            extra = json.merge(command.changes.get("extra", {}), self.changes.get("extra", {}))
            self.changes = {**self.changes, **command.changes, "extra": extra}
            self._configuration = config_weight(SessionConfig(**self.changes), MAX_OTHER)

    def _spoken(self, id: str, number: int, size: int, text: str = "") -> None:
        entry = self._items.get(id)
        if entry is not None:
            self._marks += _MARK * (bool(text) + (number not in entry.spoken))
            spoken = entry.spoken.setdefault(number, Spoken())
            spoken.add_text(text)
            spoken.add_sound(size)

    def _take(self, event: SessionEvent) -> None:
        items = self._items
        match event:
            case SessionCreated(config=config) | SessionUpdated(config=config):
                self._config = config
            case ConversationItemAdded(item=item, previous_item_id=before):
                if item_id(item) not in items:
                    item, _ = take_sounds(item)
                    items.check_room(weight(item))
                    place = before if before in items else None
                    items.insert(item, ROOT if before is None else place)
            case ConversationItemDone(item=item) | Answer(event=ItemDone(item=item)):
                self._complete(item)
                self._feed(event)
            case ItemDeleted(item_id=id) if id in items:
                items.delete(id)
            case ItemTruncated(item_id=id, content_index=number, audio_end_ms=end):
                with suppress(FaultError):  # it was played to its end
                    items.truncate(id, number, end)
            case BufferSpeechStarted():
                self._speaking = True
            case BufferCleared() | BufferCommitted():
                self._speaking = self._appended = False
                if isinstance(event, BufferCommitted) and self._config.transcription is not None:
                    self._transcribed.add(event.item_id)
            case TranscriptionFailed(item_id=id):
                self._transcribed.discard(id)
            case TranscriptionCompleted(item_id=id, content_index=number, transcript=text):
                self._transcribed.discard(id)
                entry = items.get(id)
                if entry is not None and isinstance(item := entry.item, Message):
                    parts = [*item.parts]
                    parts[number] = Audio(format="pcm16", transcript=text.strip())
                    items.complete(replace(item, content=tuple(parts)))
            case ResponseCreated(response=response):
                self._pending += _ANSWER
                self._begun += 1
                self._answers[response.id] = response, AnswerView(lambda: self._adding)
            case ResponseDone(response=response):
                self._answers.pop(response.id, None)
                if not self._answers:
                    self._begun = 0
                    self._pending = sum(len(data) for _, data in self.unanswered)
                for item in response.output:
                    self._complete(item)
            case _:
                self._feed(event)
        items.check_room(self._pending + self._marks)
        if self._begun + len(self._transcribed) > OPEN:
            message = f"More than {OPEN} answers, items, parts and transcriptions are in progress."
            raise FaultError(Fault("too_large", message, "upstream"))

    def _feed(self, event: SessionEvent) -> None:
        """Track an answer, for closing its open items."""
        if isinstance(event, Answer) and event.response_id in self._answers:
            inner = event.event
            self._adding = event.item_id
            self._answers[event.response_id][1].feed(inner)
            self._begun += isinstance(inner, ItemAdded | PartAdded)
            if isinstance(inner, Delta):
                self._pending += len(inner.data) + _EACH
                if inner.kind == "transcript":
                    self._spoken(event.item_id, inner.part_index, 0, inner.data)

    def _complete(self, item: Item) -> None:
        if (entry := self._items.get(item.id)) is not None:
            self._items.complete(merged(entry.item, take_sounds(item)[0]))

    def close(self, fault: Fault) -> list[SessionEvent]:
        """The events that close everything open."""
        events: list[SessionEvent] = [
            TranscriptionFailed(id, 0, fault) for id in sorted(self._transcribed)
        ]
        if self._speaking or (self._appended and self._config.turn_detection is None):
            events += [BufferCleared(), Refused(SOUND_LOST)]
        for response, view in self._answers.values():
            for each in view.close():
                item = view.items[getattr(each, "index", 0)]
                id = item_id(item)
                call_id = item.call_id if isinstance(item, FunctionCall) else None
                events.append(Answer(response.id, id, each, type_of(item), call_id))
                if isinstance(each, ItemDone) and id in self._items:
                    self._complete(each.item)
                    before = self._items.before(id)
                    events.append(ConversationItemDone(each.item, before))
            output = tuple(view.output)
            events.append(
                ResponseDone(replace(response, status="failed", fault=fault, output=output))
            )
        self._answers.clear()
        self._transcribed.clear()
        self._speaking = self._appended = False
        return events

    def replay(self) -> tuple[list[CreateItem | Configure], list[SessionEvent]]:
        """The commands that restore the state in a new session, the configuration last; and
        events for items that cannot be restored: an incomplete call, an empty
        answer. Raises FaultError for sound without a transcript."""
        commands: list[CreateItem | Configure] = []
        gone: list[SessionEvent] = []
        for entry in self._items.entries():
            item = entry.item
            parts = item.parts if isinstance(item, Message) and item.role != "assistant" else ()
            if any(isinstance(part, Audio) and part.transcript is None for part in parts):
                raise FaultError(NO_WORDS)
            broken = isinstance(item, FunctionCall) and item.status == "incomplete"
            if broken or (text := as_text(item)) is None:
                gone.append(ItemDeleted(item_id(item)))
            else:
                commands.append(CreateItem(item=text))
        for event in gone:
            self._take(event)
        commands.append(Configure(changes={"kind": self._config.kind, **self.changes}))
        return commands, gone


def _not_again(lost: Fault, why: str) -> Fault:
    return replace(lost, message=f"{lost.message} It was not opened again: {why}")


class Relay(Channel):
    """One session of another server. Events are passed on unchanged where both sides have the same
    dialect.

    A session whose connection is lost is reopened once, with the configuration and the
    history as text; for the client, answers in progress fail, and the session continues. Where
    that is not possible, it ends.
    """

    def __init__(
        self,
        service: Service,
        handshake: Handshake,
        live: RemoteSession,
        model: str,
        changes: Changes,
        *,
        beta: bool,
    ) -> None:
        super().__init__(service, handshake)
        self.live = live
        live.take = self.taken
        self._changes = changes
        self._beta = beta
        self._copy: SessionCopy | None = SessionCopy(changes, beta=live.beta)
        self._copied = service.budget.hold(self.caller.tenant)
        self._unsent = service.budget.hold(self.caller.tenant)
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._reopening: asyncio.Task[None] | None = None
        self._replayed: asyncio.Future[None] | None = None
        self._settled = 0.0  # when the next loss counts as the first again
        self._entry: Entry | None = None
        if service.log is not None:
            caller = self.caller
            self._entry = Entry(service.log, model, "", None, caller.tenant, caller.key)

    def holds(self) -> tuple[Hold, ...]:
        """The memory for the copy, and for what the other server has not taken."""
        return self._copied, self._unsent

    async def opened(self) -> None:
        """Connect to the other server, and give it the configuration of a client secret."""
        self.live.sink = self
        try:
            await self.live.open()
            if self._changes:
                self.live.send(Configure(changes=self._changes))
        except FaultError as problem:
            self._end(problem.fault)

    async def take(self, data: bytes) -> None:
        """Relay an event of the client."""
        try:
            self._hold_unsent(len(data))
            if len(data) > LARGE:
                commands = await self.service.turns.take(self._commands, data)
            else:
                commands = self._commands(data)
        except FaultError as problem:  # the session goes on
            self.receive([Refused(problem.fault)])
            return
        await self._flowing.wait()
        for head, each in commands:
            self._follow(SessionCopy.sent, head, each)
            self.live.send_raw(each)
        await self.live.drain()
        with suppress(FaultError):  # a translation is longer: it is counted with the next event
            self._hold_unsent(0)

    def _hold_unsent(self, more: int) -> None:
        """Account for what the other server has not taken. Raises FaultError for no room."""
        size = self.live.unsent + more
        self._unsent.resize(size if size > SMALL else 0)

    def _commands(self, data: bytes) -> list[tuple[Head, bytes]]:
        """An event of the client for the other server. Raises FaultError."""
        json.check_size(data, self.service.settings)
        change = to_beta if self.live.beta else to_ga
        return [(read_head(each), each) for each in self._translated(data, change)]

    def taken(self, data: bytes) -> Awaitable[None] | None:
        """Relay an event of the server."""
        if self._replayed is not None:
            self._check_replay(data)
        elif len(data) > LARGE:
            return self._taken_apart(data)
        else:
            self._pass_on(*self._read(data))
        return None

    async def _taken_apart(self, data: bytes) -> None:
        self._pass_on(*await self.service.turns.take(self._read, data))

    def _read(self, data: bytes) -> tuple[Received | Exception | None, list[bytes]]:
        """An event of the server for the copy, or why it cannot be followed, and for the client. It
        changes nothing, and may run in a thread."""
        found: Received | Exception | None = None
        data = as_utf8(data)
        if self._copy is not None:
            try:
                found = self._copy.read(data)
            except Exception as error:  # it is passed on, for its receiver to judge
                found = error
        return found, self._translated(data, to_beta if self._beta else to_ga)

    def _pass_on(self, found: Received | Exception | None, frames: list[bytes]) -> None:
        if isinstance(found, Exception):
            self._lose_copy(found)
        elif found is not None:
            self._follow(SessionCopy.received, found)
        if self.write(*frames):
            self.live.pause()

    def _follow(self, step: Callable[..., None], *given: object) -> None:
        """Update the copy; drop it where it becomes too large, or an event is invalid."""
        if self._copy is not None:
            try:
                step(self._copy, *given)
                size = self._copy.size
                self._copied.resize(size if size > SMALL else 0)
            except Exception as error:  # the event itself is passed on
                self._lose_copy(error)

    def _lose_copy(self, error: Exception) -> None:
        """Drop the copy: then a loss is the end."""
        self._copy = None
        self._copied.close()
        id, known = self.exchange.id, isinstance(error, FaultError)
        why = error if known else f"an event is invalid ({type(error).__name__})"
        problem = "the session of %s is not opened again if it is lost: %s"
        _log.warning(problem, id, why, extra={"request": id})

    def _translated(
        self, data: bytes, change: Callable[[dict[str, JSON]], list[dict[str, JSON]]]
    ) -> list[bytes]:
        """An event in the dialect of the other side. Invalid JSON is passed on unchanged: its
        receiver reports it."""
        if self._beta != self.live.beta:
            with suppress(ValueError):
                value = json.load(data)
                if isinstance(value, dict):
                    return [json.dump(marked(each)) for each in change(value)]
        return [data]

    def receive(self, events: list[SessionEvent]) -> None:
        """Send events of our own."""
        objects = encode_events(events, lambda: f"event_{new_id()}")
        if self._beta:
            objects = [each for event in objects for each in to_beta(event)]
        self.write(*map(json.dump, objects))

    # ---- the end, and reopening ----------------------------------------------------------------

    def ended(self, fault: Fault) -> None:
        """The session is over: reopen a lost one, or send the reason, and close."""
        loop = asyncio.get_running_loop()
        if self._replayed is not None:  # the new one too
            if not self._replayed.done():
                self._replayed.set_exception(FaultError(fault))
        elif self._copy is not None and self.live.lost and loop.time() >= self._settled:
            self._settled = loop.time() + SOON
            self._flowing.clear()
            self.receive(self._copy.close(fault))
            self._replayed = loop.create_future()
            self._reopening = loop.create_task(self._reopen(fault, self._copy, self._replayed))
        else:
            self._end(fault)

    async def _reopen(self, lost: Fault, copy: SessionCopy, done: asyncio.Future[None]) -> None:
        try:
            commands, gone = copy.replay()
            async with asyncio.timeout(WITHIN):
                for number, pause in enumerate(PAUSES, 1):
                    await asyncio.sleep(pause)
                    try:
                        await self.live.reopen(self)
                        break
                    except FaultError:
                        if number == len(PAUSES):
                            raise
                for command in commands:
                    self.live.send(command)
                    await asyncio.sleep(0)  # others first
                await done
        except TimeoutError:
            self._end(_not_again(lost, f"it took more than {WITHIN:g} s."))
            return
        except Exception as error:  # the client would wait forever
            self._end(_not_again(lost, fault_from(error, self.caller.key).message))
            return
        if self._closing:
            return
        self.receive(gone)
        for _, data in copy.unanswered:
            self.live.send_raw(data)
        self._flowing.set()

    def _check_replay(self, data: bytes) -> None:
        """Check whether the new session is ready: its configuration is answered last."""
        head, done = read_head(data), self._replayed
        if done is None or done.done():
            return
        if head.type == "session.updated":
            done.set_result(None)
            self._replayed = None  # later events are for the client
        elif head.type == "error":
            error = next(iter(decode_event(json.load(data))), None)
            message = error.fault.message if isinstance(error, Refused) else "It failed."
            done.set_exception(FaultError(Fault("upstream_cut", message, "upstream")))

    def _end(self, fault: Fault) -> None:
        closing = [] if self._copy is None else self._copy.close(fault)
        if self._entry is not None:
            self._entry.end = fault.code
        self.receive([*closing, Refused(fault)])
        self._flowing.set()
        self.close()

    def expired(self) -> None:
        """Our time limit has passed, before that of the other server."""
        self._end(TOO_OLD)

    def drained(self) -> None:
        """The client has read what was written."""
        self.live.resume()

    async def finish(self) -> None:
        """End the session, and write its line."""
        if self._entry is not None:
            self._entry.write("SESSION", self.exchange.path, 101, self.exchange.id)
        if self._reopening is not None:
            self._reopening.cancel()
            await asyncio.wait((self._reopening,))
        await self.live.close()
