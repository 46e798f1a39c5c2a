"""Relays one session of another server, event by event, and opens it again where it is lost."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman.core.conversation import Items, as_text, item_id, merged, take_sounds, type_of, weight
from dragoman.core.error import Fault, FaultError
from dragoman.core.event import Delta, ItemDone
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
from dragoman.wire.realtime.beta import to_beta, to_ga
from dragoman.wire.realtime.commands import command_of
from dragoman.wire.realtime.events import decode_event, encode_events

from .channel import Channel, Handshake
from .limits import SMALL, Hold
from .log import Entry
from .responder import Service

if TYPE_CHECKING:
    from dragoman.engines.remote_session import RemoteSession

PAUSES = (0.1, 1.0, 3.0)
"""Seconds before each attempt to open a session that was lost."""
WITHIN = 15.0
"""Seconds in which the new session must be as the lost one was."""
SOON = 30.0
"""Seconds after a loss in which another one ends the session."""
MOST = 1_024
"""Unanswered commands beyond which a lost session is not opened again."""
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
"""The events that answer commands, and those. To cancel an answer that is lost is done already."""

_EACH = 64
"""What each piece of an answer takes besides its characters, or nearly."""

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
    """What is read of each event. `delta` is as it stands, with its quotes."""

    type: str = ""
    event_id: str | None = None
    item_id: str = ""
    content_index: int = 0
    error: _Error | None = None
    delta: msgspec.Raw = json.ABSENT


_decode = msgspec.json.Decoder(Head).decode


def read_head(data: bytes) -> Head:
    """The head of an event; an empty one of what is none."""
    try:
        return _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Head()


class SessionCopy:
    """The state of another server's session, from its events, and the commands that it has not
    answered: all that a new session needs to replace it. Its methods raise FaultError for more than
    is kept, and other exceptions for events that make no sense."""

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
        self._pending = 0  # bytes of commands, and characters of answers under way

    @property
    def size(self) -> int:
        """Bytes that it holds, or nearly."""
        return self._items.text + self._pending

    def asked(self, data: bytes) -> None:
        """A command is sent."""
        head = read_head(data)
        if head.type == _APPEND:
            self._appended = True
        elif head.type in _ANSWERS.values():
            self.unanswered.append((head, data))
            self._pending += len(data)
            if len(self.unanswered) > MOST:
                raise FaultError(Fault("too_large", f"More than {MOST} commands wait.", "upstream"))

    def said(self, data: bytes) -> None:
        """An event has come."""
        head = read_head(data)
        if command := self._answered(head):
            self._configured(command)
        if head.type.endswith("audio.delta"):
            size = memoryview(head.delta).nbytes * 3 // 4
            telephone = self._config.output_format != "pcm16"
            self._spoken(head.item_id, head.content_index, size * (6 if telephone else 1))
            return
        for each in self._read(data):
            for event in decode_event(each):
                self._take(event)

    def _read(self, data: bytes) -> list[dict[str, JSON]]:
        """An event in the GA dialect."""
        value = json.load(data)
        if not isinstance(value, dict):
            return []
        return to_ga(value) if self._beta else [value]

    def _answered(self, head: Head) -> bytes | None:
        """The command that an event answers. Those before it are done: they are taken in turn."""
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
        """A change of the configuration holds."""
        for each in self._read(data):
            command = command_of(each)
            if not isinstance(command, Configure):
                raise FaultError(Fault("invalid_request", "The configuration cannot be read."))
            extra = json.merge(command.changes.get("extra", {}), self.changes.get("extra", {}))
            self.changes = {**self.changes, **command.changes, "extra": extra}

    def _spoken(self, id: str, number: int, size: int, text: str = "") -> None:
        entry = self._items.get(id)
        if entry is not None:
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
                with suppress(FaultError):  # it was heard to its end
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
                if entry is not None and isinstance(said := entry.item, Message):
                    parts = [*said.parts]
                    parts[number] = Audio(format="pcm16", transcript=text.strip())
                    items.complete(replace(said, content=tuple(parts)))
            case ResponseCreated(response=response):
                self._pending += _EACH
                self._answers[response.id] = response, AnswerView(lambda: self._adding)
            case ResponseDone(response=response):
                self._answers.pop(response.id, None)
                if not self._answers:
                    self._pending = sum(len(data) for _, data in self.unanswered)
                for item in response.output:
                    self._complete(item)
            case _:
                self._feed(event)
        items.check_room(self._pending)

    def _feed(self, event: SessionEvent) -> None:
        """Follow an answer, to close what is open of it."""
        if isinstance(event, Answer) and event.response_id in self._answers:
            inner = event.event
            self._adding = event.item_id
            self._answers[event.response_id][1].feed(inner)
            if isinstance(inner, Delta):
                self._pending += len(inner.data) + _EACH
                if inner.kind == "transcript":
                    self._spoken(event.item_id, inner.part_index, 0, inner.data)

    def _complete(self, item: Item) -> None:
        if (entry := self._items.get(item.id)) is not None:
            self._items.complete(merged(entry.item, take_sounds(item)[0]))

    def close(self, fault: Fault) -> list[SessionEvent]:
        """The events that close what is open: nothing more is said about it."""
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
        """The commands that make a new session what this one was, the configuration last; and
        events about items that have nothing to be said again: a call that broke off, an answer
        without a word. Raises FaultError where an item cannot be said as text."""
        commands: list[CreateItem | Configure] = []
        gone: list[SessionEvent] = []
        for entry in self._items.entries():
            item = entry.item
            parts = item.parts if isinstance(item, Message) and item.role != "assistant" else ()
            if any(isinstance(part, Audio) and part.transcript is None for part in parts):
                raise FaultError(NO_WORDS)
            broken = isinstance(item, FunctionCall) and item.status == "incomplete"
            if broken or (said := as_text(item)) is None:
                gone.append(ItemDeleted(item_id(item)))
            else:
                commands.append(CreateItem(item=said))
        for event in gone:
            self._take(event)
        commands.append(Configure(changes={"kind": self._config.kind, **self.changes}))
        return commands, gone


def _not_again(lost: Fault, why: str) -> Fault:
    return replace(lost, message=f"{lost.message} It was not opened again: {why}")


class Relay(Channel):
    """One session of another server. Events pass as they stand where both sides speak the same
    dialect.

    A session whose connection is lost is opened again once, with the configuration and what was
    said, as text; the client sees that answers under way fail, and goes on. Where that cannot be,
    the session ends.
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
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._reopening: asyncio.Task[None] | None = None
        self._replayed: asyncio.Future[None] | None = None
        self._settled = 0.0  # from when on a loss is the first one
        self._entry: Entry | None = None
        if service.log is not None:
            caller = self.caller
            self._entry = Entry(service.log, model, "", None, caller.tenant, caller.key)

    def holds(self) -> tuple[Hold, ...]:
        """What is held for another session."""
        return (self._copied,)

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
        """An event of the client."""
        await self._flowing.wait()
        try:
            json.check_size(data, self.service.settings)
        except FaultError as problem:  # the session goes on
            self.receive([Refused(problem.fault)])
            return
        for each in self._translated(data, to_beta if self.live.beta else to_ga):
            self._follow(each, SessionCopy.asked)
            self.live.send_raw(each)
        await self.live.drain()

    def taken(self, message: str | bytes) -> None:
        """An event of the server."""
        data = message.encode() if isinstance(message, str) else message
        if self._replayed is not None:
            self._check_replay(data)
            return
        self._follow(data, SessionCopy.said)
        if self.write(*self._translated(data, to_beta if self._beta else to_ga)):
            self.live.pause()

    def _follow(self, data: bytes, step: Callable[[SessionCopy, bytes], None]) -> None:
        """Keep the copy as the session is; without it where that takes too much, or makes no
        sense: then a loss is the end."""
        if self._copy is not None:
            try:
                step(self._copy, data)
                size = self._copy.size
                self._copied.resize(size if size > SMALL else 0)
            except Exception:  # the event itself passes: whatever it is, its reader can tell
                self._copy = None
                self._copied.close()

    def _translated(
        self, data: bytes, change: Callable[[dict[str, JSON]], list[dict[str, JSON]]]
    ) -> list[bytes]:
        """An event as the other side says it. What is no JSON object passes as it is: the side that
        gets it will say so."""
        if self._beta != self.live.beta:
            with suppress(ValueError):
                value = json.load(data)
                if isinstance(value, dict):
                    return [json.dump(each) for each in change(value)]
        return [data]

    def receive(self, events: list[SessionEvent]) -> None:
        """Send events of our own: those of the server pass as they stand."""
        objects = encode_events(events, lambda: f"event_{new_id()}")
        if self._beta:
            objects = [each for event in objects for each in to_beta(event)]
        self.write(*map(json.dump, objects))

    # ---- the end, and how to go on -------------------------------------------------------------

    def ended(self, fault: Fault) -> None:
        """The session is over: open another one where it was lost, or say why, and close."""
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
                await done
        except TimeoutError:
            self._end(_not_again(lost, f"it took more than {WITHIN:g} s."))
            return
        except Exception as error:  # the client would wait for ever
            self._end(_not_again(lost, fault_from(error, self.caller.key).message))
            return
        if self._closing:
            return
        self.receive(gone)
        for _, data in copy.unanswered:
            self.live.send_raw(data)
        self._flowing.set()

    def _check_replay(self, data: bytes) -> None:
        """See whether the new session is ready: its configuration is what it answers last."""
        head, done = read_head(data), self._replayed
        if done is None or done.done():
            return
        if head.type == "session.updated":
            done.set_result(None)
            self._replayed = None  # what comes now is for the client
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
        """The other server has a limit of its own; ours is over."""
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
