"""A conversation over a session: turns, functions, and full-duplex speech, for programs.

What comes from the session is taken at once and never waits for the program's own code: tools, a
loudspeaker and whoever reads are tasks of their own. Every wait ends: with its event, the error
about it, the end of the session, or after `patience` seconds of silence; and every stream ends.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Iterable,
)
from contextlib import aclosing
from functools import partial
from typing import Any, Self

from msgspec import Struct
from msgspec.structs import replace

from dragoman.core.error import Fault, FaultError
from dragoman.core.event import Delta
from dragoman.core.interfaces import ANYONE, Caller, Engine, Secret
from dragoman.core.item import Audio, FunctionCall, Item, Message
from dragoman.core.response import Usage
from dragoman.core.session_values import (
    Answer,
    Append,
    BufferCommitted,
    BufferSpeechStarted,
    Cancel,
    Command,
    Commit,
    Configure,
    ConversationItemAdded,
    ConversationItemDone,
    CreateItem,
    ItemDeleted,
    Refused,
    Respond,
    ResponseCreated,
    ResponseDone,
    SessionConfig,
    SessionCreated,
    SessionEvent,
    SessionResponse,
    SessionUpdated,
    TranscriptionCompleted,
    TranscriptionDelta,
    TranscriptionFailed,
    Truncate,
)
from dragoman.core.sound import milliseconds
from dragoman.engines.base import new_id
from dragoman.engines.remote_session import RemoteSession
from dragoman.engines.session import LiveSession, TurnSession, Voice
from dragoman.tools.function import as_tool
from dragoman.tools.run import Context, Result, Runner, Tool

from .client import engine_of

PATIENCE = 60.0
"""Seconds without any sign of what is waited for."""
ROUNDS = 16
"""Times that a model may call functions in one round of `full_round`."""
_MARK = "client_event_id"
"""The label by which a response is known as the one that was asked for."""

Loudspeaker = Callable[[bytes], Awaitable[None] | None]
"""Plays sound (PCM16, 24 kHz), and returns when that is played, or as good as."""


class Turn(Struct, frozen=True):
    """One answer of the model. `status` is "completed", "cancelled", "incomplete" or "failed"."""

    response: SessionResponse

    @property
    def status(self) -> str:
        """How it ended."""
        return self.response.status

    @property
    def text(self) -> str:
        """What was said, written or spoken."""
        return "".join(_text_of(item) for item in self.response.output)

    @property
    def calls(self) -> tuple[FunctionCall, ...]:
        """The functions that the model asks for."""
        return tuple(item for item in self.response.output if isinstance(item, FunctionCall))

    @property
    def usage(self) -> Usage:
        """What it took; its counts are None where nobody counted."""
        return self.response.usage or Usage()


def _text_of(item: Item | None) -> str:
    if not isinstance(item, Message):
        return ""
    return item.text + "".join(
        part.transcript or "" for part in item.parts if isinstance(part, Audio)
    )


class Speech:
    """One message of the user or the model, while it is said: iterate over its text, or await it
    for the whole. `fault` says why it broke off or was not understood, if it did."""

    def __init__(self, item_id: str, role: str) -> None:
        self.item_id = item_id
        self.role = role
        self.text = ""
        self.fault: Fault | None = None
        self.ended = False
        self._changed = asyncio.Event()

    def add(self, text: str) -> None:
        """More of the text."""
        self.text += text
        self._changed.set()

    def end(self, text: str | None = None, fault: Fault | None = None) -> None:
        """No more comes; with a text, that is all of it."""
        if not self.ended:
            if text is not None and text.startswith(self.text):
                self.text = text
            self.ended, self.fault = True, fault
            self._changed.set()

    async def __aiter__(self) -> AsyncIterator[str]:
        read = 0
        while True:
            if len(self.text) > read:
                piece, read = self.text[read:], len(self.text)
                yield piece
            elif self.ended:
                return
            else:
                self._changed.clear()
                await self._changed.wait()

    def __await__(self) -> Generator[Any, None, str]:
        return self._whole().__await__()

    async def _whole(self) -> str:
        async for _ in self:
            pass
        return self.text


class _Listener:
    """The events of a session from some time on, in their order; None at its end."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[SessionEvent | None] = asyncio.Queue()


class Conversation:
    """A session with a model, and what was said in it.

    `target` is the address of a server that speaks Realtime (`wss://…/v1`), or else whatever
    `dragoman.connect` takes: then the session is here, around that engine. `tools` are functions,
    or tools, which are run when the model calls them. `changes` are fields of
    `core.session_values.SessionConfig`.

    >>> async def main() -> str:
    ...     async with Conversation("script", model="script") as talk:
    ...         return (await talk.say("Count to two.")).text
    >>> asyncio.run(main())
    '1, 2.'
    """

    def __init__(
        self,
        target: str | Engine,
        *,
        model: str = "",
        tools: Iterable[Tool | Callable[..., Any]] = (),
        history: Iterable[Item] = (),
        key: Secret | str | None = None,
        beta: bool = False,
        voice: Voice | None = None,
        caller: Caller = ANYONE,
        patience: float = PATIENCE,
        **changes: Any,
    ) -> None:
        self._runner = Runner([as_tool(each) for each in tools])
        self._given = [*history]
        self._caller = caller
        self._patience = patience
        self._changes = changes
        self._live: LiveSession
        if isinstance(target, str) and target.startswith(("ws://", "wss://")):
            self._live = RemoteSession(target, model, self, key=key, beta=beta)
        else:
            config = SessionConfig(model=model, turn_detection=None)
            self._live = TurnSession(engine_of(target), config, caller, self, voice)
        self.state = "new"
        self.config = SessionConfig()
        self.errors: list[Fault] = []
        """Errors that were no answer to something asked here."""
        self._order: list[str] = []
        self._items: dict[str, Item] = {}
        self._active: set[str] = set()
        self._over: set[str] = set()
        self._listeners: set[_Listener] = set()
        self._fault: Fault | None = None
        self._labels = False  # the server repeats the labels of responses

    @property
    def history(self) -> tuple[Item, ...]:
        """The conversation so far, at any time."""
        return tuple([self._items[id] for id in self._order])

    # ---- opening and closing -------------------------------------------------------------------

    async def connect(self) -> Self:
        """Open the session, configure it, and put the history into it. Raises FaultError."""
        if self.state != "new":
            raise RuntimeError(f"the conversation is {self.state}: it connects once")
        self.state = "connecting"
        listener = self._listen()
        try:
            await self._live.open()
            await self._until(listener, SessionCreated)
            changes = {"tools": self._runner.offered(), **self._changes}
            await self.configure(**changes)
            for item in self._given:
                await self.add(item)
        except BaseException:
            await self.close()
            raise
        finally:
            self._listeners.discard(listener)
        self.state = "connected"
        return self

    async def close(self) -> None:
        """End the session. Its history can still be read."""
        self.state = "terminating"
        await self._live.close()
        self.ended(Fault("cancelled", "The conversation was closed.", "client"))
        self.state = "closed"

    async def __aenter__(self) -> Self:
        return await self.connect() if self.state == "new" else self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    # ---- single commands ------------------------------------------------------------------------

    async def configure(self, **changes: Any) -> SessionConfig:
        """Change the configuration. Raises FaultError where the session refuses."""
        await self._ask(Configure(changes=changes), SessionUpdated)
        return self.config

    async def add(self, item: Item | str) -> Item:
        """Put an item, or a user's text, at the end of the conversation."""
        if isinstance(item, str):
            item = Message("user", item)
        if item.id is None:
            item = replace(item, id=f"item_{new_id()[:24]}")
        id = item.id or ""
        await self._ask(
            CreateItem(item=item),
            ConversationItemAdded,
            lambda event: event.item.id == id,
        )
        return self._items.get(id, item)

    def append(self, audio: bytes) -> None:
        """Give the session more of the user's sound: PCM16, 24 kHz."""
        self._live.send(Append(audio=audio))

    def interrupt(self) -> None:
        """Cancel the model's answer, if it is answering."""
        if self._active:
            self._live.send(Cancel())

    # ---- turns -----------------------------------------------------------------------------------

    async def say(
        self, *items: Item | str, play: Loudspeaker | None = None, **changes: Any
    ) -> Turn:
        """Add these, and have the model answer; `play` gets its sound. Raises FaultError where the
        answer fails, the session ends, or nothing comes."""
        turn = None
        async for event in self.events(*items, **changes):
            if isinstance(event, ResponseDone):
                turn = Turn(event.response)
            elif play is not None and _is(event, "audio"):
                await _played(play, b64decode(_data(event)))
        if turn is None or turn.response.status == "failed":
            fault = turn and turn.response.fault
            raise FaultError(fault or Fault("upstream_error", "The answer failed.", "upstream"))
        return turn

    async def stream(self, *items: Item | str, **changes: Any) -> AsyncGenerator[str, None]:
        """The same, as pieces of the text, written or spoken."""
        async with aclosing(self.events(*items, **changes)) as events:
            async for event in events:
                if _is(event, "text") or _is(event, "transcript"):
                    yield _data(event)
                elif isinstance(event, ResponseDone) and event.response.fault is not None:
                    raise FaultError(event.response.fault)

    async def events(
        self, *items: Item | str, **changes: Any
    ) -> AsyncGenerator[SessionEvent, None]:
        """The same, as the events of the answer. One that is left is cancelled."""
        for each in items:
            await self.add(each)
        listener, mark, id = self._listen(), new_id(), ""
        over = False
        try:
            command = Respond(event_id=mark, metadata={_MARK: mark}, changes=changes)
            self._live.send(command)
            while not over:
                event = await self._next(listener)
                match event:
                    case Refused(event_id=about, fault=fault) if about in (mark, None) and not id:
                        over = True
                        raise FaultError(fault)
                    case ResponseCreated(response=response):
                        id = id or (response.id if self._is_ours(mark, event) else "")
                    case ResponseDone(response=response) if response.id == id:
                        over = True
                        yield event
                    case Answer(response_id=about) if about == id:
                        yield event
                    case _:
                        pass
        finally:
            self._listeners.discard(listener)
            if id and not over and self.state == "connected":
                self._live.send(Cancel(response_id=id))

    async def full_round(
        self, *given: Item | str, rounds: int = ROUNDS, **changes: Any
    ) -> AsyncGenerator[Item, None]:
        """Add these, and go on until the model has answered without calling a function: what is
        said, called and returned, item by item. Calls of one answer are run at once, and their
        results sent in the order of the calls, with one request for the next answer."""
        retries, items = True, given
        for number in range(rounds + 1):
            asked = dict(changes)
            if number == rounds or not retries:
                asked["tool_choice"] = "none"
            turn = await self.say(*items, **asked)
            for item in turn.response.output:
                yield item
            if not turn.calls or turn.status != "completed":
                return
            results = await self._run(turn.calls)
            for result in results:
                yield result.output
            retries = all(result.retry for result in results if result.error)
            items = tuple([result.output for result in results])
            if not any(result.after == "model" for result in results):
                for output in items:
                    await self.add(output)
                return

    async def _run(self, calls: Iterable[FunctionCall]) -> list[Result]:
        """Run calls, all at once."""
        return await asyncio.gather(
            *[self._runner.run(call, Context(call, self._caller)) for call in calls]
        )

    # ---- full duplex ---------------------------------------------------------------------------

    async def full_duplex(
        self, source: AsyncIterable[bytes], sink: Loudspeaker | None = None
    ) -> AsyncGenerator[Speech, None]:
        """Speak and listen at once: `source` gives the user's sound, `sink` plays the model's. A
        `Speech` comes for each message, of either side, as it begins; several may go on at a time.

        It ends when the source has, and what was said is answered. Raises what the source or the
        sink raises, and FaultError where the session ends.
        """
        duplex = Duplex(self, source, sink)
        try:
            while (speech := await duplex.speeches.get()) is not None:
                yield speech
            duplex.check()
        finally:
            await duplex.close()

    # ---- what the session says -----------------------------------------------------------------

    def receive(self, events: list[SessionEvent]) -> None:
        """Take events: the history first, then whoever waits for them."""
        for event in events:
            if isinstance(event, ResponseDone) and event.response.id in self._over:
                continue  # a `cancelled` behind a `completed`
            self._mirror(event)
            for listener in self._listeners:
                listener.queue.put_nowait(event)

    def ended(self, fault: Fault) -> None:
        """The session is over: so is every wait."""
        if self._fault is None:
            self._fault = fault
            self._active.clear()
            if self.state == "connected":
                self.state = "disconnected"
            for listener in self._listeners:
                listener.queue.put_nowait(None)

    def _mirror(self, event: SessionEvent) -> None:
        match event:
            case SessionCreated(config=config) | SessionUpdated(config=config):
                self.config = config
            case ConversationItemAdded(item=item, previous_item_id=previous):
                id = item.id or ""
                if id not in self._items:
                    known = previous in self._items
                    place = self._order.index(previous or "") + 1 if known else 0
                    self._order.insert(place if known or previous is None else len(self._order), id)
                self._items[id] = item
            case ConversationItemDone(item=item) if item.id in self._items:
                self._items[item.id or ""] = _merged(self._items[item.id or ""], item)
            case ItemDeleted(item_id=id) if id in self._items:
                del self._items[id]
                self._order.remove(id)
            case TranscriptionCompleted(item_id=id, content_index=number, transcript=text):
                said = self._items.get(id)
                if isinstance(said, Message) and number < len(said.parts):
                    parts = [*said.parts]
                    if isinstance(part := parts[number], Audio):
                        parts[number] = replace(part, transcript=text.strip())
                    self._items[id] = replace(said, content=tuple(parts))
            case ResponseCreated(response=response):
                self._active.add(response.id)
                self._labels = self._labels or _MARK in (response.metadata or {})
            case ResponseDone(response=response):
                self._active.discard(response.id)
                self._over.add(response.id)
                for each in response.output:  # all that says so in the beta dialect
                    if (known := self._items.get(each.id or "")) is not None:
                        self._items[each.id or ""] = _merged(known, each)
            case Refused(event_id=None, fault=fault):
                self.errors.append(fault)

    def _is_ours(self, mark: str, event: ResponseCreated) -> bool:
        """Whether an answer is the one that was asked for with this label, as far as the server
        repeats labels; a detector's answers have none."""
        label = (event.response.metadata or {}).get(_MARK)
        return label == mark or (label is None and not self._labels)

    def _listen(self) -> _Listener:
        listener = _Listener()
        self._listeners.add(listener)
        return listener

    async def _next(self, listener: _Listener) -> SessionEvent:
        """The next event. Raises FaultError at the end of the session, and after long silence."""
        if self._fault is not None and listener.queue.empty():
            raise FaultError(self._fault)
        try:
            async with asyncio.timeout(self._patience):
                event = await listener.queue.get()
        except TimeoutError:
            message = f"The session said nothing for {self._patience:g} s (patience)."
            raise FaultError(Fault("upstream_timeout", message, "upstream")) from None
        if event is None:
            raise FaultError(self._fault or Fault("upstream_cut", "It ended.", "upstream"))
        return event

    async def _until(
        self,
        listener: _Listener,
        kind: type,
        fits: Callable[[Any], bool] = lambda _: True,
        event_id: str | None = None,
    ) -> SessionEvent:
        """Wait for an event; what is refused meanwhile, by this id or by none, is raised."""
        while True:
            event = await self._next(listener)
            if isinstance(event, Refused) and event.event_id in (event_id, None):
                raise FaultError(event.fault)
            if isinstance(event, kind) and fits(event):
                return event

    async def _ask(
        self, command: Command, kind: type, fits: Callable[[Any], bool] = lambda _: True
    ) -> SessionEvent:
        """Send a command, and wait for what answers it: listening began before."""
        listener, event_id = self._listen(), new_id()
        try:
            self._live.send(replace(command, event_id=event_id))
            return await self._until(listener, kind, fits, event_id)
        finally:
            self._listeners.discard(listener)


class Duplex:
    """One full-duplex stretch of a conversation: its tasks, and the streams that are open."""

    def __init__(
        self, talk: Conversation, source: AsyncIterable[bytes], sink: Loudspeaker | None
    ) -> None:
        self.speeches: asyncio.Queue[Speech | None] = asyncio.Queue()
        self._talk = talk
        self._live = talk._live
        self._open: dict[str, Speech] = {}
        self._transcripts: set[str] = set()  # items of the user that are being transcribed
        self._error: BaseException | None = None
        self._source_over = False
        self._pending = False  # sound was sent that is in no item yet
        self._running: set[asyncio.Task[None]] = set()  # tools
        self._idle = asyncio.Event()
        self._player = _Player(sink, self._failed) if sink is not None else None
        self._listener = talk._listen()
        loop = asyncio.get_running_loop()
        self._reader = loop.create_task(self._read())
        self._sender = loop.create_task(self._send(source))

    def check(self) -> None:
        """Raise what went wrong."""
        if self._error is not None:
            raise self._error

    async def close(self) -> None:
        """End all tasks and streams."""
        self._talk._listeners.discard(self._listener)
        tasks = [self._reader, self._sender, *self._running]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._player is not None:
            await self._player.close()
        for speech in self._open.values():
            speech.end(fault=Fault("cancelled", "The conversation went no further.", "client"))

    def _failed(self, error: BaseException) -> None:
        self._error = self._error or error
        self.speeches.put_nowait(None)

    async def _send(self, source: AsyncIterable[bytes]) -> None:
        """Send the user's sound, and at its end what is left in the buffer."""
        try:
            async for audio in source:
                self._pending = True
                self._talk.append(audio)
                await self._live.drain()
            await self._talk.configure()  # answered behind all that was sent
            if self._pending:
                await self._finish()
            self._source_over = True
            self._check_over()
        except Exception as error:
            self._failed(error)

    async def _finish(self) -> None:
        """Nobody else commits what was said last, where no detector has found its end."""
        try:
            await self._talk._ask(Commit(), BufferCommitted)
        except FaultError as error:
            if error.fault.blame == "upstream" and self._talk._fault is not None:
                raise
            return  # there was too little
        if self._talk.config.kind == "realtime":
            self._start(self._respond())

    async def _read(self) -> None:
        try:
            while True:
                event = await self._listener.queue.get()
                if event is None:
                    raise FaultError(self._talk._fault or Fault("upstream_cut", "It ended."))
                self._take(event)
                self._check_over()
        except Exception as error:
            fault = error.fault if isinstance(error, FaultError) else None
            for speech in self._open.values():
                speech.end(fault=fault)
            self._failed(error)

    def _check_over(self) -> None:
        """End once the source has, and all that was said is answered."""
        busy = self._talk._active or self._running or self._transcripts
        playing = self._player is not None and self._player.busy
        if self._source_over and not busy:
            if playing and self._player is not None:
                self._player.then(self._check_over)
            else:
                self.speeches.put_nowait(None)

    def _take(self, event: SessionEvent) -> None:
        match event:
            case ConversationItemAdded(item=Message(role="user" | "assistant" as role) as item):
                speech = self._open[item.id or ""] = Speech(item.id or "", role)
                self.speeches.put_nowait(speech)
            case ConversationItemDone(item=Message(role="user") as item):
                spoken = any(isinstance(p, Audio) and p.transcript is None for p in item.parts)
                if spoken and self._talk.config.transcription is not None:
                    self._transcripts.add(item.id or "")
                else:
                    self._end(item.id or "", _text_of(item))
            case BufferCommitted():
                self._pending = False
            case BufferSpeechStarted():
                self._pending = True
                if self._player is not None and (heard := self._player.interrupt()) is not None:
                    id, number, ms = heard
                    self._live.send(Truncate(item_id=id, content_index=number, audio_end_ms=ms))
            case TranscriptionDelta(item_id=id, delta=text) if id in self._open:
                self._open[id].add(text)
            case TranscriptionCompleted(item_id=id, transcript=text):
                self._transcripts.discard(id)
                self._end(id, text.strip())
            case TranscriptionFailed(item_id=id, fault=fault):
                self._transcripts.discard(id)
                self._end(id, fault=fault)
            case ItemDeleted(item_id=id):
                self._transcripts.discard(id)
                self._end(id)
            case Answer(item_id=id, event=Delta(kind="audio", part_index=number, data=data)):
                if self._player is not None:
                    self._player.put(id, number, b64decode(data))
            case Answer(item_id=id, event=Delta(kind="text" | "transcript", data=data)):
                if id in self._open:
                    self._open[id].add(data)
            case ResponseDone(response=response):
                for each in response.output:
                    self._end(each.id or "", _text_of(each), response.fault)
                calls = [each for each in response.output if isinstance(each, FunctionCall)]
                if calls and response.status == "completed":
                    self._start(self._call(calls))

    def _end(self, id: str, text: str | None = None, fault: Fault | None = None) -> None:
        if (speech := self._open.pop(id, None)) is not None:
            speech.end(text, fault)

    def _start(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)
        self._check_over()

    async def _call(self, calls: list[FunctionCall]) -> None:
        """Run the calls of one answer, and ask once for the next when all results are in."""
        results = await self._talk._run(calls)
        for result in results:
            await self._talk.add(result.output)
        if any(result.after == "model" for result in results):
            await self._respond()

    async def _respond(self) -> None:
        """Ask for an answer as soon as there is none under way."""
        talk, listener = self._talk, self._talk._listen()
        try:
            while True:
                while talk._active:
                    await talk._next(listener)
                mark = new_id()
                ours = partial(talk._is_ours, mark)
                try:
                    await talk._ask(Respond(metadata={_MARK: mark}), ResponseCreated, ours)
                    return
                except FaultError as error:
                    if not talk._active or talk._fault is not None:
                        raise
                    del error  # another one was quicker
        finally:
            talk._listeners.discard(listener)


class _Player:
    """Plays sound piece by piece in a task of its own, and knows how much of which part was."""

    def __init__(self, sink: Loudspeaker, failed: Callable[[BaseException], None]) -> None:
        self._sink = sink
        self._failed = failed
        self._queue: asyncio.Queue[tuple[str, int, bytes]] = asyncio.Queue()
        self._current: tuple[str, int] | None = None
        self._played: dict[tuple[str, int], int] = {}
        self._then: Callable[[], None] | None = None
        self._task = asyncio.get_running_loop().create_task(self._play())

    @property
    def busy(self) -> bool:
        """Whether there is something to be played."""
        return self._current is not None or not self._queue.empty()

    def put(self, id: str, number: int, audio: bytes) -> None:
        """Play this after the rest."""
        self._queue.put_nowait((id, number, audio))

    def then(self, what: Callable[[], None]) -> None:
        """Call this when nothing is left."""
        self._then = what

    def interrupt(self) -> tuple[str, int, int] | None:
        """Drop what is not played; which part that was of, and the milliseconds that were heard."""
        place, self._current = self._current, None
        while not self._queue.empty():
            id, number, _ = self._queue.get_nowait()
            place = place or (id, number)
        if place is None:
            return None
        return *place, milliseconds(self._played.get(place, 0))

    async def close(self) -> None:
        """Play nothing more."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _play(self) -> None:
        try:
            while True:
                id, number, audio = await self._queue.get()
                self._current = (id, number)
                await _played(self._sink, audio)
                self._played[id, number] = self._played.get((id, number), 0) + len(audio)
                if self._queue.empty():
                    self._current = None
                    if self._then is not None:
                        self._then()
        except Exception as error:
            self._failed(error)


async def _played(sink: Loudspeaker, audio: bytes) -> None:
    done = sink(audio)
    if done is not None:
        await done


def _is(event: SessionEvent, kind: str) -> bool:
    return isinstance(event, Answer) and isinstance(event.event, Delta) and event.event.kind == kind


def _data(event: Any) -> str:
    return str(event.event.data)


def _merged(old: Item, new: Item) -> Item:
    """An item that is done: transcripts that came before stay."""
    if not isinstance(old, Message) or not isinstance(new, Message):
        return new
    parts = [
        replace(part, transcript=before.transcript)
        if isinstance(part, Audio) and part.transcript is None and isinstance(before, Audio)
        else part
        for part, before in zip(new.parts, [*old.parts, *new.parts[len(old.parts) :]], strict=False)
    ]
    return replace(new, content=tuple(parts))
