"""The rules of a session: commands and reports go in, events come out, and work for its driver.

Only this module knows the legal order of events. It has no clock, no socket and no engine:
time, voice and answers are reports, so that the same inputs give the same events. The driver hands
events to the client and then does what is in `work`.

What a client may ask depends on three small machines, which are tables here: the input buffer,
each answer, and the session as a whole. A command that makes no sense is refused with the client's
own `event_id`, and the session continues. Every life-cycle that is opened is closed, however an
answer ends: parts, then items, then the answer.
"""

from __future__ import annotations

from base64 import b64decode
from collections import deque
from collections.abc import Callable, Mapping
from io import StringIO
from typing import Any, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from .conversation import Entry, Items, config_weight, item_id, take_sounds, taken, type_of, weight
from .error import Fault, FaultError, bad_request, unsupported
from .event import Delta, Event, Failed, Finished, ItemAdded, ItemDone, Started
from .item import Audio, Call, CallOutput, FunctionCall, Item, ItemReference, Message, silent_parts
from .loss import Loss
from .request import AudioOutput, Request, Sampling
from .response import Status
from .session_answer import AnswerView
from .session_values import (
    Answer,
    Answered,
    Append,
    BufferCleared,
    BufferCommitted,
    BufferSpeechStarted,
    BufferSpeechStopped,
    BufferTimedOut,
    Cancel,
    Clear,
    ClearOutput,
    Command,
    Commit,
    Configure,
    ConversationCreated,
    ConversationItemAdded,
    ConversationItemDone,
    CreateItem,
    Delete,
    Forget,
    Generate,
    ItemDeleted,
    ItemRetrieved,
    ItemTruncated,
    Refused,
    Report,
    Respond,
    ResponseCreated,
    ResponseDone,
    Retrieve,
    SessionConfig,
    SessionCreated,
    SessionEvent,
    SessionLimits,
    SessionResponse,
    SessionUpdated,
    SpeechStarted,
    SpeechStopped,
    Stop,
    Tick,
    Transcribe,
    Transcribed,
    Transcription,
    TranscriptionCompleted,
    TranscriptionDelta,
    TranscriptionFailed,
    Truncate,
    Unreadable,
    Work,
    unfit,
    unread,
)
from .sound import BYTES_PER_MS, Place, Sound, Spoken, milliseconds

BufferState = Literal["empty", "filled", "speaking"]
BUFFER: dict[BufferState, dict[type, BufferState]] = {
    "empty": {Append: "filled", Clear: "empty"},
    "filled": {Append: "filled", Commit: "empty", Clear: "empty", SpeechStarted: "speaking"},
    "speaking": {Append: "speaking", Commit: "empty", Clear: "empty", SpeechStopped: "empty"},
}
"""What may follow what in the input buffer."""

AnswerState = Literal["waiting", "running", "over"]
ANSWER: dict[AnswerState, dict[type, AnswerState]] = {
    "waiting": {Transcribed: "running", Cancel: "over", Failed: "over"},
    "running": {Answered: "running", Cancel: "over", Finished: "over", Failed: "over"},
    "over": {},
}
"""The transitions of an answer: it waits until every turn is transcribed."""

_REASONS = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Why an answer is incomplete, by the finish reason of its first choice."""
MIN_COMMIT_MS = 100
"""A shorter buffer holds no turn; the protocol refuses it as empty."""
LAG_MS = 2_000
"""How far a detector may be behind the sound that comes."""

EMPTY_BUFFER = Fault(
    "empty_buffer",
    f"The input audio buffer holds less than {MIN_COMMIT_MS} ms of sound: append more before it is "
    "committed. With turn detection it is committed by the server.",
    "client",
)
ACTIVE = Fault(
    "active_response",
    "The conversation is being answered already: wait for response.done, or cancel that answer "
    "first (response.cancel); with conversation 'none' an answer may run beside it.",
    "client",
)
NOT_ACTIVE = Fault(
    "not_active", "Cancellation failed: there is no such answer under way.", "client"
)
"""Its first words are those by which LiveKit's client knows that nothing is wrong."""
NO_SOUND = Fault(
    "upstream_error", "The model's server sent sound that is not base64. Ask again.", "upstream"
)
TOO_OLD = Fault(
    "session_expired",
    "The session has reached its time limit; open a new one and continue there.",
    "client",
)

FORGOTTEN = Loss("audio", "dropped", "the session holds as much sound as it may")
"""The oldest sound is no longer stored. That is no `error`: Pipecat's client ends at one."""

LIMITS = SessionLimits()


class _Answer(Struct):
    """An answer that is not over. `size` are the characters that it alone was asked, `sent` those
    of the items that the model was given, sound as base64; `awaited` are the items that must be
    transcribed first."""

    response: SessionResponse
    config: SessionConfig
    conversation: bool
    entries: list[Entry] | None
    view: AnswerView
    size: int
    sent: int = 0
    state: AnswerState = "running"
    awaited: set[str] = field(default_factory=set)
    losses: tuple[Loss, ...] = ()


class Session:
    """The state machine of a session. `receive` takes an input and returns the client's events.

    `transcribes`: its driver has a recogniser, and the model is asked once every turn is text;
    without, models get the sound itself. `speaks`: answers may be spoken. `detects`: a detector
    reports the ends of turns. All other ids are derived from `id`; `expires_at` (Unix seconds)
    is only shown.

    >>> session = Session("1", SessionConfig(model="m"))
    >>> [type(event).__name__ for event in session.open()]
    ['SessionCreated', 'ConversationCreated']
    >>> [type(event).__name__ for event in session.receive(Commit(event_id="mine"))]
    ['Refused']
    """

    def __init__(
        self,
        id: str,
        config: SessionConfig,
        *,
        transcribes: bool = False,
        speaks: bool = False,
        detects: bool = False,
        expires_at: int = 0,
        limits: SessionLimits = LIMITS,
    ) -> None:
        self.id = f"sess_{id}"
        self.conversation_id = f"conv_{id}"
        self.work: deque[Work] = deque()
        self.closed = False
        self.items = Items(most=limits.items, most_text=limits.text, most_audio=limits.audio // 2)
        self._seed = id
        self._made = 0  # ids
        self._transcribes = transcribes
        self._speaks = speaks
        self._detects = detects
        self._expires_at = expires_at
        self._limits = limits
        self._answers: dict[str, _Answer] = {}
        self._pending_turn = False  # an answer to a turn that ended while another was answered
        self._voice_used = False  # the client has sound of it: it cannot be changed
        self._buffer = bytearray()
        self._buffer_state: BufferState = "empty"
        self._cut = False  # its beginning was dropped
        self._forgot = False  # sound of items was dropped since the last answer
        self._begins = 0  # position of the buffer's first byte, in bytes
        self._utterance = ""  # the id of the item that is being spoken
        self._quiet_since = 0  # the position of the last speech, in milliseconds
        self._events: list[SessionEvent] = []
        self.config = self._fitting(config)
        self._config_size = config_weight(config, limits.config)

    @property
    def size(self) -> int:
        """Bytes that the session holds, or nearly."""
        sent = sum(answer.sent for answer in self._answers.values())
        return self.items.sound.size + self.items.text + len(self._buffer) + self._asked + sent

    @property
    def _asked(self) -> int:
        """Characters of the configuration, and of what answers alone were asked."""
        return self._config_size + sum(answer.size for answer in self._answers.values())

    @property
    def position(self) -> int:
        """Milliseconds of sound that have come."""
        return milliseconds(self._begins + len(self._buffer))

    @property
    def active(self) -> bool:
        """Whether the conversation is being answered."""
        return any(answer.conversation for answer in self._answers.values())

    def answering(self, response_id: str) -> bool:
        """Whether an answer is under way."""
        return response_id in self._answers

    def open(self) -> list[SessionEvent]:
        """The first events."""
        created = SessionCreated(self.id, self.config, self._expires_at)
        return [created, ConversationCreated(self.conversation_id)]

    def receive(self, what: Command | Report) -> list[SessionEvent]:
        """The events that follow from a command or a report."""
        if self.closed:
            return []
        events: list[SessionEvent] = []
        self._events = events
        try:
            _HANDLERS[type(what)](self, what)
        except FaultError as error:
            events.append(Refused(error.fault, getattr(what, "event_id", None)))
        return events

    # ---- the session as a whole ----------------------------------------------------------------

    def _fitting(self, config: SessionConfig) -> SessionConfig:
        """The configuration as far as it can hold here."""
        if not self._speaks:
            config = replace(config, modalities=("text",))
        if not self._transcribes:
            config = replace(config, transcription=None)
        return config if self._detects else replace(config, turn_detection=None)

    def _configure(self, command: Configure) -> None:
        changes, model = command.changes, self.config.model
        if changes.get("kind", self.config.kind) != self.config.kind:
            raise FaultError(bad_request("cannot be changed", "session.type"))
        if self._voice_used and changes.get("voice", self.config.voice) != self.config.voice:
            raise FaultError(bad_request("cannot be changed once audio was sent", "session.voice"))
        asked = replace(self.config, **changes)
        self._config_size = config_weight(asked, self._limits.config)
        before, self.config = self.config.turn_detection, self._fitting(replace(asked, model=model))
        losses = unread(command.changes) + unfit(asked, self.config)
        if self.config.turn_detection != before:  # many clients repeat it with each change
            self.work.append(Forget())
            if self._buffer_state == "speaking":
                self._buffer_state, self._utterance = "filled", ""
        self._emit(SessionUpdated(self.id, self.config, self._expires_at, losses))

    def _tick(self, report: Tick) -> None:
        if report.now_ms >= self._limits.lifetime_ms:
            self._pending_turn = False
            for answer in [*self._answers.values()]:
                self._stop(answer, "client_cancelled")
            self.closed = True
            self._emit(Refused(TOO_OLD))

    def _unreadable(self, command: Unreadable) -> None:
        raise FaultError(command.fault)

    def _id(self, prefix: str) -> str:
        while True:
            self._made += 1
            id = f"{prefix}_{self._seed}{self._made:04x}"
            if id not in self.items:  # a client may have guessed it
                return id

    def _emit(self, *events: SessionEvent) -> None:
        self._events += events

    # ---- the input buffer ----------------------------------------------------------------------

    def _step(self, what: type) -> None:
        self._buffer_state = BUFFER[self._buffer_state][what]

    def _append(self, command: Append) -> None:
        if not command.audio:
            return
        self._step(Append)
        self._buffer += command.audio
        detection = self.config.turn_detection
        if detection is not None and self._buffer_state == "filled":
            # Silence: keep only the padding that may belong to the next turn.
            self._shorten((detection.prefix_padding_ms + LAG_MS) * BYTES_PER_MS)
            patience = detection.idle_timeout_ms
            if patience is not None and not self.active:
                quiet = self.position - self._quiet_since
                if quiet >= patience:
                    self._time_out(quiet)
        elif self._shorten(self._limits.audio // 2):
            self._cut = True

    def _shorten(self, most: int) -> bool:
        """Drop the buffer's beginning; true if there were more than `most` bytes."""
        more = len(self._buffer) - most
        if more > 0:
            more += more % 2  # whole samples
            del self._buffer[:more]
            self._begins += more
        return more > 0

    def _time_out(self, quiet: int) -> None:
        id, end = self._id("item"), self.position
        self._emit(BufferTimedOut(id, end - quiet, end))
        self._make_item(len(self._buffer), id)
        self._turn_ended()

    def _clear(self, command: Clear) -> None:
        self._step(Clear)
        self._cut = False
        self._begins += len(self._buffer)
        self._buffer.clear()
        self._utterance = ""
        self.work.append(Forget())
        self._emit(BufferCleared())

    def _commit(self, command: Commit) -> None:
        short = len(self._buffer) < MIN_COMMIT_MS * BYTES_PER_MS
        if short or Commit not in BUFFER[self._buffer_state]:
            raise FaultError(EMPTY_BUFFER)
        self.items.check_room(0)
        self._step(Commit)
        self.work.append(Forget())
        self._make_item(len(self._buffer), self._utterance or self._id("item"))

    def _make_item(self, size: int, id: str) -> None:
        """Make an item of the buffer's first bytes."""
        audio, self._buffer = self._buffer, self._buffer[size:]  # not copied: it may be long
        del audio[size:]
        self._begins += size
        self._utterance, self._quiet_since = "", self.position
        self._buffer_state = "filled" if self._buffer else "empty"
        self.items.check_room(0)  # the sound of a turn for which there is no room is dropped
        self._emit(BufferCommitted(id, self.items.last, (FORGOTTEN,) if self._cut else ()))
        self._cut = False
        item = Message("user", (Audio(format="pcm16"),), id=id, status="completed")
        self._insert(item, None, {0: audio})

    def _speech_started(self, report: SpeechStarted) -> None:
        detection = self.config.turn_detection
        if detection is None or SpeechStarted not in BUFFER[self._buffer_state]:
            return  # it was committed, cleared or turned off meanwhile
        self._step(SpeechStarted)
        self._shorten(self._begins + len(self._buffer) - report.at_ms * BYTES_PER_MS)
        self._utterance = self._id("item")
        self._emit(BufferSpeechStarted(self._utterance, milliseconds(self._begins)))
        if detection.interrupt_response:
            for answer in [each for each in self._answers.values() if each.conversation]:
                self._stop(answer, "turn_detected")

    def _speech_stopped(self, report: SpeechStopped) -> None:
        if SpeechStopped not in BUFFER[self._buffer_state]:
            return
        size = min(max(report.at_ms * BYTES_PER_MS - self._begins, 0), len(self._buffer))
        end = milliseconds(self._begins + size)
        self._emit(BufferSpeechStopped(self._utterance, end))
        self._make_item(size, self._utterance)
        self._turn_ended()

    def _turn_ended(self) -> None:
        """The detector, or the silence, has ended a turn: answer it."""
        detection = self.config.turn_detection
        if detection is not None and detection.create_response and self.config.kind == "realtime":
            self._pending_turn = self.active
            if not self._pending_turn:
                self._begin(Respond())

    def _transcribed(self, report: Transcribed) -> None:
        entry, shown = self.items.get(report.item_id), self.config.transcription is not None
        if entry is None or entry.transcript is None or not isinstance(entry.item, Message):
            return  # deleted meanwhile
        id = report.item_id
        entry.transcript.write(report.text)
        silent = silent_parts(entry.item)
        first = silent[0]  # it has the transcript of all
        if report.fault is None and not report.done:
            if shown and report.text:
                self._emit(TranscriptionDelta(id, first, report.text))
            return
        transcript = entry.transcript.getvalue().strip()
        entry.transcript, entry.fault = None, report.fault
        if report.fault is None:
            parts = [*entry.item.parts]
            parts[first] = replace(parts[first], transcript=transcript)
            self.items.complete(replace(entry.item, content=tuple(parts)))
            if shown:
                size = sum([self.items.sound.length((id, number)) for number in silent])
                length = milliseconds(size) / 1000
                self._emit(TranscriptionCompleted(id, first, transcript, length))
        elif shown:
            self._emit(TranscriptionFailed(id, first, report.fault))
        self._end_waiting(id)

    def _end_waiting(self, id: str) -> None:
        """An item is no longer waited for: begin the answers that waited for it alone."""
        for answer in [each for each in self._answers.values() if id in each.awaited]:
            answer.awaited.discard(id)
            if not answer.awaited:
                answer.state = ANSWER[answer.state][Transcribed]
                self._generate(answer)

    # ---- the conversation ----------------------------------------------------------------------

    def _insert(self, item: Item, previous: str | None, sounds: Mapping[int, Sound]) -> None:
        """Add a complete item to the conversation, and transcribe its sound."""
        entry = self.items.insert(item, previous)
        before = self.items.before(id := item_id(item))
        self._emit(ConversationItemAdded(item, before), ConversationItemDone(item, before))
        for number, audio in sounds.items():
            self._store((id, number), audio)
        silent = [sounds[number] for number in silent_parts(item) if number in sounds]
        if self._transcribes and silent:
            entry.transcript = StringIO()
            options = self.config.transcription or Transcription()
            audio = silent[0] if len(silent) == 1 else b"".join(silent)
            self.work.append(Transcribe(id, audio, options))

    def _store(self, place: Place, audio: Sound) -> None:
        if self.items.sound.add(place, audio):
            self._forgot = True

    def _create(self, command: CreateItem) -> None:
        item = command.item
        if item.id is None:
            item = replace(item, id=self._id("item"))
        if isinstance(item, Message | Call | CallOutput):
            item = replace(item, status="completed")
        item, sounds = take_sounds(item)
        self.items.check_room(weight(item) + self._asked)
        if item.id == self._utterance:
            raise taken(item.id, "what the user is saying")
        self.items.check_place(item, command.previous_item_id)
        self._insert(item, command.previous_item_id, {**command.sounds, **sounds})

    def _retrieve(self, command: Retrieve) -> None:
        entry = self.items.find(command.item_id, code="item_not_found")
        most = self._limits.retrieved
        item, size = self.items.whole(entry.item, most)
        long = Loss("audio", "dropped", f"it has {size} bytes, and one event at most {most}")
        self._emit(ItemRetrieved(item, (long,) if size > most else ()))

    def _delete(self, command: Delete) -> None:
        self.items.delete(command.item_id)
        self._emit(ItemDeleted(command.item_id))
        self._end_waiting(command.item_id)

    def _truncate(self, command: Truncate) -> None:
        self.items.truncate(command.item_id, command.content_index, command.audio_end_ms)
        self._emit(ItemTruncated(command.item_id, command.content_index, command.audio_end_ms))

    # ---- answers: their beginning and their end -------------------------------------------------

    def _respond(self, command: Respond) -> None:
        if self.config.kind != "realtime":
            raise FaultError(bad_request("is not for sessions that only transcribe", "type"))
        if command.conversation and self.active:
            raise FaultError(ACTIVE)
        if len(self._answers) >= (most := self._limits.responses):
            message = f"{most} answers are under way, and no more may be: wait for one of them."
            raise FaultError(Fault("rate_limited", message, "client"))
        self.items.check_room(self._asked)
        self._begin(command)

    def _begin(self, command: Respond) -> None:
        """Begin an answer. Raises FaultError for an input that refers to an item that is not
        there, or that is too long with all that it refers to."""
        entries: list[Entry] | None = None
        size = 0
        if command.input is not None:
            entries = [
                self.items.find(item.id, "response.input")
                if isinstance(item, ItemReference)
                else Entry(item)
                for item in command.input
            ]
            if len(entries) > (most := self._limits.items):
                message = f"has {len(entries)} items, and a session may have {most}"
                raise FaultError(bad_request(message, "response.input"))
            size = self.items.size_for_model(entries)
            self.items.check_room(size + self._asked)
            if any(take_sounds(item)[1] for item in command.input):
                problem = "sound is taken in items of the conversation; refer to one by its id"
                raise FaultError(unsupported(problem, "response.input"))
        config = self._fitting(asked := replace(self.config, **command.changes))
        if command.changes:
            size += config_weight(config, self._limits.config)
        response = SessionResponse(
            id=self._id("resp"),
            conversation_id=self.conversation_id if command.conversation else None,
            metadata=command.metadata,
            modalities=config.modalities,
            output_format=config.output_format,
            voice=config.voice,
            max_output_tokens=config.max_output_tokens,
        )
        view = AnswerView(lambda: self._id("item"))
        answer = _Answer(response, config, command.conversation, entries, view, size)
        answer.losses = unread(command.changes) + unfit(asked, config, answer=True)
        self._answers[response.id] = answer
        self._emit(ResponseCreated(response))
        given = self.items.entries() if entries is None else entries
        answer.awaited = {item_id(entry.item) for entry in given if entry.transcript is not None}
        if answer.awaited:
            answer.state = "waiting"
        else:
            self._generate(answer)

    def _generate(self, answer: _Answer) -> None:
        """Ask the engine, now that every turn is transcribed."""
        config, entries = answer.config, answer.entries
        if entries is None:
            entries = [entry for entry in self.items.entries() if not entry.open]
        if entries and (fault := entries[-1].fault) is not None:
            self._end(answer, "failed", fault=fault)  # the turn could not be transcribed
            return
        spoken = "audio" in config.modalities
        speed = {"realtime": {"speed": config.speed}} if config.speed != 1.0 else None
        items, sounds = self.items.for_model(entries, hears=not self._transcribes)
        request = Request(
            model=config.model,
            items=items,
            instructions=config.instructions or None,
            tools=config.tools,
            tool_choice=config.tool_choice if config.tools else None,
            parallel_tool_calls=config.parallel_tool_calls if config.tools else None,
            sampling=Sampling(temperature=config.temperature),
            max_output_tokens=config.max_output_tokens,
            reasoning=config.reasoning,
            modalities=("text", "audio") if spoken else None,
            audio=AudioOutput(config.voice, "pcm16", speed) if spoken else None,
            prompt=config.prompt,
            stream=True,
            store=False,
        )
        answer.sent = sum(map(weight, items)) + sum(map(len, sounds)) * 4 // 3
        self.work.append(Generate(answer.response.id, request, sounds, answer.sent))

    def _cancel(self, command: Cancel) -> None:
        id = command.response_id
        for answer in self._answers.values():
            if answer.response.id == id or (id is None and answer.conversation):
                self._pending_turn = False
                self._stop(answer, "client_cancelled")
                return
        raise FaultError(NOT_ACTIVE)

    def _clear_output(self, command: ClearOutput) -> None:
        problem = "is for WebRTC: here the client plays; truncate the item it stopped to play"
        raise FaultError(bad_request(problem, "type"))

    def _stop(self, answer: _Answer, reason: str | None, fault: Fault | None = None) -> None:
        """End an answer that is not over, and the work for it."""
        self.work.append(Stop(answer.response.id))
        self._end(answer, "failed" if fault else "cancelled", reason, fault=fault)

    def _end(
        self,
        answer: _Answer,
        status: Status,
        reason: str | None = None,
        *,
        fault: Fault | None = None,
        end: Finished | Failed | None = None,
    ) -> None:
        """Close what is open of an answer, and end it."""
        self._show(answer, answer.view.close())
        answer.state = "over"
        del self._answers[answer.response.id]
        response = replace(
            answer.response,
            status=status,
            reason=reason,
            fault=fault,
            output=tuple(answer.view.output),
            usage=None if end is None else end.usage,
            losses=(
                *answer.losses,
                *(end.losses if isinstance(end, Finished) else ()),
                *((FORGOTTEN,) if self._forgot else ()),
            ),
        )
        self._forgot = False
        self._emit(ResponseDone(response))
        if answer.conversation:
            self._quiet_since = self.position
            if self._pending_turn:
                self._pending_turn = False
                self._begin(Respond())

    # ---- answers: what the engine says ----------------------------------------------------------

    def _answered(self, report: Answered) -> None:
        for event in report.events:
            answer = self._answers.get(report.response_id)
            if answer is None or Answered not in ANSWER[answer.state]:
                return  # it was cancelled: this was on its way
            self._take(answer, event)

    def _take(self, answer: _Answer, event: Event) -> None:
        match event:
            case Started(losses=losses):
                answer.losses += losses
            case Finished(status=status, reasons=reasons):
                reason = None
                if status == "incomplete":
                    reason = _REASONS.get(reasons[0], "max_output_tokens")
                self._end(answer, status, reason, end=event)
            case Failed(fault=fault):
                self._end(answer, "failed", fault=fault, end=event)
            case _:
                self._show(answer, answer.view.feed(event))

    def _show(self, answer: _Answer, events: list[Event]) -> None:
        """Tell the client of these, and keep what belongs to the conversation."""
        sound = b""
        for event in events:
            if isinstance(event, Delta) and event.kind == "audio":
                try:
                    sound = b64decode(event.data)
                except ValueError:
                    self._stop(answer, None, NO_SOUND)
                    return
            place = getattr(event, "index", 0)
            item = answer.view.items[place]
            id, kind = item_id(item), type_of(item)
            call_id = item.call_id if isinstance(item, FunctionCall) else None
            shown = Answer(answer.response.id, id, event, kind, call_id)
            if not answer.conversation:
                self._emit(shown)
                continue
            match event:
                case ItemAdded():
                    self.items.insert(item, None, open=True)
                    self._emit(shown, ConversationItemAdded(item, self.items.before(id)))
                case ItemDone(item=whole):
                    self.items.complete(whole)
                    self._emit(shown, ConversationItemDone(whole, self.items.before(id)))
                case Delta(kind="audio" | "transcript" as sense, part_index=number, data=data):
                    self._emit(shown)
                    self._voice_used = True
                    spoken = self.items.find(id).spoken.setdefault(number, Spoken())
                    if sense == "transcript":
                        spoken.add_text(data)
                    elif spoken.add_sound(len(sound)):
                        self._store((id, number), sound)
                case _:
                    self._emit(shown)
        while answer.view.hidden:
            item = answer.view.hidden.pop(0)
            if answer.conversation:
                self.items.insert(item, None, hidden=True)


_HANDLERS: dict[type, Callable[[Session, Any], None]] = {
    Configure: Session._configure,
    Append: Session._append,
    Commit: Session._commit,
    Clear: Session._clear,
    ClearOutput: Session._clear_output,
    CreateItem: Session._create,
    Retrieve: Session._retrieve,
    Truncate: Session._truncate,
    Delete: Session._delete,
    Respond: Session._respond,
    Cancel: Session._cancel,
    Unreadable: Session._unreadable,
    Tick: Session._tick,
    SpeechStarted: Session._speech_started,
    SpeechStopped: Session._speech_stopped,
    Transcribed: Session._transcribed,
    Answered: Session._answered,
}
